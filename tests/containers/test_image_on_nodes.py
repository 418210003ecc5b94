"""One directory of images and four nodes: an import that was killed, and preparing in a job."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.containers import SYSTEM_PATH, open_stand_ins
from tests.kit.needs import require
from tests.kit.recipes import SHELL
from tests.kit.registry import serving_tiny
from tests.kit.waiting import CEILING, until
from tests.prepare.test_parts import KEYS, hdf5, site_text

pytestmark = pytest.mark.slurm


def test_an_import_that_was_killed_is_taken_up_by_tasks_of_other_nodes_which_import_once(
    as_user, lab, work
):
    require("squashfs")
    first, *further = lab.plan.node_names
    for name in ("image.sh", "enroot.sh"):
        shutil.copy(SHELL / name, work / name)
        (work / name).chmod(0o755)
    with serving_tiny(lab.network.controller) as registry:
        # Each node has its own TEMP.
        task = f"""#!/bin/bash
export PATH={open_stand_ins(work / "bin")}:{SYSTEM_PATH} HOME=/tmp/import-$SLURM_JOB_ID
export XDG_RUNTIME_DIR=$HOME ENROOT_ALLOW_HTTP=y
exec bash {work}/image.sh import {registry.uri()} {work}/images r+bert+tiny+1.0
"""
        (work / "task.sh").write_text(task)
        registry.delay = CEILING
        words = ["sbatch", "--parsable", f"--nodelist={first}", f"--output={work}/out"]
        script = f"#!/bin/bash\nexec bash {work}/task.sh\n"
        assert as_user(words, stdin=script, cwd=work).stdout.strip().isdigit()
        until(lambda: registry.pulls("bert/tiny"), "nobody imports it")
        # As the kernel does when memory runs out. A job has process ids of its own.
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # Others' processes come and go.
                if f"{work}/image.sh".encode() in (path / "cmdline").read_bytes():
                    os.kill(int(path.name), signal.SIGKILL)
        registry.delay = 1.0
        words = ["srun", f"--nodelist={','.join(further)}", "--nodes=3", "--ntasks=24"]
        words += ["bash", f"{work}/task.sh"]
        result = as_user(words, cwd=work, env={"HPCBERT_STALE_AFTER": "3"})
        assert result.ok, result.stderr
        assert registry.pulls("bert/tiny") == 2
    assert "the importer before died" in result.stderr
    paths = result.stdout.split()
    assert len(paths) == 24
    assert len(set(paths)) == 1
    assert Path(paths[0]).is_file()
    assert list((work / "images").glob(".*")) == []


def test_prepare_runs_in_a_job_where_it_is_to(as_user, checkout, work):
    (work / "data").mkdir()
    for number in range(2):
        hdf5(work / "data" / f"training_{number}.hdf5", [*KEYS, "segment_ids"])
    (work / "site.toml").write_text(site_text("pytorch", f'data = "{work / "data"}"'))
    words = ("prepare", "--fw", "pytorch", "--only", "data", "--on-node", "--json")
    (part,) = checkout.cli(work, as_user)(*words, "--site", "site.toml", status=5).data["parts"]
    assert "has no masked_lm_positions, masked_lm_ids, next_sentence_labels" in part["detail"]

"""One directory of images and four nodes: one import for all jobs, and preparing in a job."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hpcbert.container.cache import SCRIPT
from hpcbert.lab.record import Lab
from tests.kit.containers import SYSTEM_PATH, open_stand_ins
from tests.kit.needs import require
from tests.kit.registry import Registry, serving_tiny
from tests.kit.waiting import CEILING, until
from tests.prepare.test_parts import KEYS, hdf5, site_text

pytestmark = pytest.mark.slurm
STEM = "r+bert+tiny+1.0"


@pytest.fixture
def registry(lab: Lab) -> Iterator[Registry]:
    """A registry that the nodes reach."""
    with serving_tiny(lab.network.controller) as server:
        yield server


@pytest.fixture
def job(work: Path, registry: Registry) -> list[str]:
    """The words of `bash -c` that make a task import the image, each node with its own TEMP."""
    require("squashfs")
    bins = open_stand_ins(work / "bin")
    for name in ("image.sh", "enroot.sh"):
        shutil.copy(SCRIPT.with_name(name), work / name)
        (work / name).chmod(0o755)
    lines = [
        f"export PATH={bins}:{SYSTEM_PATH} HOME=/tmp/import-$SLURM_JOB_ID ENROOT_ALLOW_HTTP=y",
        "export XDG_RUNTIME_DIR=$HOME",
        f"uri={registry.uri()}",
        f"exec bash {work}/image.sh import $uri {work}/images {STEM}",
    ]
    return ["bash", "-c", "\n".join(lines)]


def test_32_tasks_on_four_nodes_make_one_import(
    as_user: Any, work: Path, registry: Registry, job: list[str]
) -> None:
    registry.delay = 1.0
    result = as_user(["srun", "--nodes=4", "--ntasks=32", *job], cwd=work, timeout=CEILING)
    assert result.ok, result.stderr
    paths = result.stdout.split()
    assert len(paths) == 32
    assert len(set(paths)) == 1
    assert Path(paths[0]).is_file()
    assert registry.pulls("bert/tiny") == 1
    assert list((work / "images").glob(".*")) == []


def test_an_import_that_was_killed_is_taken_up_on_another_node(
    as_user: Any, lab: Lab, work: Path, registry: Registry, job: list[str]
) -> None:
    first, second, *_ = lab.plan.node_names
    registry.delay = CEILING
    (work / "task.sh").write_text(job[2])
    script = f"#!/bin/bash\nexec bash {work}/task.sh\n"
    words = ["sbatch", "--parsable", f"--nodelist={first}", f"--output={work}/out"]
    number = as_user(words, stdin=script, cwd=work).stdout.strip()
    assert number.isdigit()
    holder = work / "images" / f".{STEM}~lock" / "holder"
    until(lambda: holder.is_file() and holder.read_text(), "nobody took the lock")
    # As the kernel does when memory runs out. A job has process ids of its own.
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # Others' processes come and go.
            if f"{work}/image.sh".encode() in (path / "cmdline").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
    registry.delay = 0.0
    result = as_user(
        ["srun", f"--nodelist={second}", "--ntasks=1", *job],
        cwd=work,
        env={"HPCBERT_STALE_AFTER": "3"},
        timeout=CEILING,
    )
    assert result.ok, result.stderr
    assert "the importer before died" in result.stderr
    assert Path(result.stdout.strip()).is_file()
    assert list((work / "images").glob(".*")) == []


def test_prepare_runs_in_a_job_where_it_is_told_to(as_user: Any, checkout: Any, work: Path) -> None:
    (work / "data").mkdir()
    for number in range(2):
        hdf5(work / "data" / f"training_{number}.hdf5", [*KEYS, "segment_ids"])
    site = site_text("pytorch", f'data = "{work / "data"}"')
    (work / "site.toml").write_text(site)
    words = ["prepare", "--fw", "pytorch", "--only", "data", "--on-node", "--json"]
    words += ["--site", str(work / "site.toml")]
    result = as_user(
        [checkout.python, "-m", "hpcbert", *words],
        cwd=work,
        env={"PYTHONPATH": str(checkout.path)},
        timeout=CEILING,
    )
    document = json.loads(result.stdout)
    (part,) = document["data"]["parts"]
    assert document["exit_code"] == 5, result.stdout
    assert "has no masked_lm_positions, masked_lm_ids, next_sentence_labels" in part["detail"]

"""The programs that a job script starts for a repeat: each takes milliseconds, five times."""

from __future__ import annotations

import shlex
import shutil
from collections import Counter
from pathlib import Path

import pytest

from hpcbert.commands.submit import write_campaign
from tests.kit.cases import cases
from tests.kit.drafts import reference
from tests.kit.scripts import RECORDER, drafted, run_written, slurm_in, tool, with_python

pytestmark = pytest.mark.slow

COUNTED = (
    "cat", "cut", "date", "getent", "grep", "head", "hostname", "mkdir", "mv", "readlink", "rm",
    "sed", "sleep", "sort", "timeout", "tr", "uname", "wc",
)  # fmt: skip
# The program that describes the node writes one file, and looks what the Python is called.
DESCRIBING = {"timeout": 1, "mv": 1, "readlink": 1}


def write_counter(folder: Path, name: str, real: str) -> None:
    words = shlex.join([real])
    tool(folder, name, f'#!/bin/bash\necho {name} >>"$STARTED"\nexec {words} "$@"\n')


@cases
def test_a_repeat_of_one_rank_starts_few_programs(
    scheduler: str, more: dict[str, int], tmp_path: Path
) -> None:
    real = tool(tmp_path, "recorder", RECORDER)
    (tmp_path / "python").symlink_to(real)
    python = tmp_path / "python"
    draft = drafted(with_python(reference(tmp_path), python), shape="1n1g", scheduler=scheduler)
    variables, started = slurm_in(tmp_path / "slurm"), tmp_path / "started"
    if scheduler == "local":
        variables = {"PATH": variables["PATH"].partition(":")[2]}
    tools = tmp_path / "tools"
    for name in COUNTED:
        if program := shutil.which(name):
            write_counter(tools, name, program)
    for name in ("srun", "scontrol"):
        write_counter(tools, name, str(tmp_path / "slurm" / name))
    variables |= {"PATH": f"{tools}:{variables['PATH']}", "STARTED": str(started)}
    write_campaign(draft)
    # The first repeat makes the folders.
    for repeat in ("1", "2"):
        started.write_text("")
        written = run_written(draft, tmp_path, SLURM_ARRAY_TASK_ID=repeat, **variables)
        assert written.returncode == 0, written
    assert Counter(started.read_text().split()) == {**DESCRIBING, **more}

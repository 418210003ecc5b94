"""A job that a site renamed, of somebody whose USER is another name, in a hidden partition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.lab import Lab
from hpcbert.system.runner import Outcome, run
from tests.waiting import CEILING

pytestmark = pytest.mark.slurm

# Renames as a job_submit plugin does, and prints a quota after the id, and fails at last.
WRAPPER = """\
#!/bin/bash
job=$(/usr/bin/sbatch "$@") || exit
scontrol update jobid="$job" jobname="proj-$job" >&2
printf '%s\\n%s\\n' "$job" 7
exit 1
"""


@pytest.fixture
def hidden(lab: Lab) -> Iterator[None]:
    """The lab's partition is hidden."""

    def update(value: str) -> None:
        argv = ["scontrol", "update", "partitionname=gpu", f"hidden={value}"]
        done = run(argv, env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **lab.environment})
        assert done.ok, done.stderr

    update("yes")
    yield
    update("no")


@pytest.mark.usefixtures("hidden")
def test_a_renamed_job_is_followed_not_doubled_and_cancelled(
    as_user: Any, checkout: Any, work: Path
) -> None:
    folder = work / "bin"
    as_user(["mkdir", str(folder)])
    wrapper = folder / "sbatch"
    wrapper.write_text(WRAPPER)
    wrapper.chmod(0o755)

    def hpcbert(*words: str) -> Outcome:
        outcome: Outcome = as_user(
            [checkout.python, "-m", "hpcbert", *words, "--json"],
            env={
                "PYTHONPATH": str(checkout.path),
                "HPCBERT_RUNS": str(work / "runs"),
                "PATH": f"{folder}:/usr/bin:/bin:/usr/sbin:/sbin",
                "USER": "jovyan",
                "LOGNAME": "jovyan",
            },
            cwd=work,
            timeout=CEILING,
        )
        assert outcome.ok, outcome.stdout + outcome.stderr
        return outcome

    made = hpcbert(
        *("submit", "--fw", "pytorch", "--repeats", "2", "--python", "/usr/bin/python3"),
        "--sbatch-arg=--hold",
    )
    document = json.loads(made.stdout)
    (array,) = document["data"]["arrays"]
    job = array["job_id"]
    assert [one["what"] for one in array["changed"]] == ["JobName"]
    assert any(f"proj-{job}" in warning for warning in document["warnings"])
    directory = Path(document["data"]["directory"])
    assert store.read_manifest(directory).user != "jovyan"
    *events, _ = map(json.loads, hpcbert("monitor", "--once", str(directory)).stdout.splitlines())
    assert [event["state"] for event in events] == ["PENDING", "PENDING"]
    # By a relative path.
    hpcbert("retry", f"runs/{directory.name}")
    queue = ["squeue", "--all", "--noheader", "--states=pending,running", "--format=%A"]
    assert as_user(queue).stdout.split() == [job]
    cancelled = json.loads(hpcbert("cancel", "--yes", str(directory)).stdout)["data"]
    assert cancelled["jobs"] == [job]
    assert as_user(queue).stdout.split() == []

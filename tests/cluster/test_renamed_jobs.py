"""A job that a site renamed, of somebody whose USER is another name, in a hidden partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.lab.record import Lab
from hpcbert.system.runner import run
from tests.kit.cli import Cli
from tests.kit.scripts import tool


@pytest.fixture
def hidden(lab: Lab) -> Iterator[None]:
    """The lab's partition is hidden."""

    def update(value: str) -> None:
        argv = ["scontrol", "update", "partitionname=gpu", f"hidden={value}"]
        outcome = run(argv, env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **lab.environment})
        assert outcome.ok, outcome.stderr

    update("yes")
    yield
    update("no")


@pytest.mark.usefixtures("hidden")
def test_a_renamed_job_is_followed_not_doubled_and_cancelled(as_user: Any, hpcbert: Cli) -> None:
    # Renames as a job_submit plugin does, and prints a quota after the id, and fails at last.
    tool(
        hpcbert.cwd, "sbatch",
        '#!/bin/bash\njob=$(/usr/bin/sbatch "$@") || exit\n'
        'scontrol update jobid="$job" jobname="proj-$job" >&2\n'
        "printf '%s\\n%s\\n' \"$job\" 7\nexit 1\n",
    )  # fmt: skip
    path = f"{hpcbert.cwd}:/usr/bin:/bin:/usr/sbin:/sbin"
    somebody = {"PATH": path, "USER": "jovyan", "LOGNAME": "jovyan"}
    hpcbert = replace(hpcbert, env={**hpcbert.env, **somebody})
    queue = ["squeue", "--all", "--noheader", "--states=pending,running", "--format=%A"]
    before = set(as_user(queue).stdout.split())
    result = hpcbert(
        *("submit", "--fw", "pytorch", "--repeats", "2", "--python", "/usr/bin/python3"),
        *("--sbatch-arg=--hold", "--json"), status=0,
    )  # fmt: skip
    document = result.document
    (array,) = document["data"]["arrays"]
    job = array["job_id"]
    assert [change["what"] for change in array["changed"]] == ["JobName"]
    assert any(f"proj-{job}" in warning for warning in document["warnings"])
    directory = Path(document["data"]["directory"])
    assert store.read_manifest(directory).user != "jovyan"
    events = hpcbert("monitor", "--once", directory, "--json", status=0).events
    assert [event["state"] for event in events] == ["PENDING", "PENDING"]
    # By a relative path.
    hpcbert("retry", f"runs/{directory.name}", "--json", status=0)
    assert set(as_user(queue).stdout.split()) - before == {job}
    cancelled = hpcbert("cancel", "--yes", directory, "--json", status=0).data
    assert cancelled["jobs"] == [job]
    assert set(as_user(queue).stdout.split()) <= before

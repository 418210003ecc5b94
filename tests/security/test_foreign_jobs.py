"""What a manifest says is not enough to cancel a job: it may be a copy's, or anybody's invention."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.commands import submit
from hpcbert.scheduler.local import backend as local
from hpcbert.system.processes import machine_and_boot
from tests.kit.campaigns import Built
from tests.kit.waiting import CEILING, until

Make = Callable[..., Built]


def listed(line: str, workdir: object, *, uid: int | None = None, command: object = "") -> str:
    """Return a line of squeue with what tells whose job it is."""
    return f"{line.rstrip()}|//{os.geteuid() if uid is None else uid}|//{command}|//{workdir}\n"


def cancelled(hpcbert: Any, slurm: Any, directory: Path) -> tuple[dict[str, Any], list[list[str]]]:
    result = hpcbert("cancel", "--yes", "--json", str(directory))
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document, slurm.calls("scancel")


def test_a_copy_of_a_campaign_cancels_nothing_of_the_original(
    hpcbert: Any, slurm: Any, watched: Make, tmp_path: Path
) -> None:
    built = watched()
    slurm.answers(squeue=[listed(built.squeue(1, "RUNNING"), built.directory)])
    copy = tmp_path / built.directory.name
    shutil.copytree(built.directory, copy)
    document, calls = cancelled(hpcbert, slurm, copy)
    assert (calls, document["data"]["cancelled"], document["data"]["jobs"]) == ([], False, [])
    assert f"job 12 was submitted in {built.directory}, not in {copy}" in document["warnings"][0]
    _, calls = cancelled(hpcbert, slurm, built.directory)
    assert [call[1:] for call in calls] == [["12"]]


@pytest.mark.parametrize("name", ["as it was", "the other job's", ""])
def test_a_manifest_that_names_another_job_of_mine_does_not_cancel_it(
    hpcbert: Any, slurm: Any, watched: Make, tmp_path: Path, *, name: str
) -> None:
    """Somebody gave it to me; id, name, place and user in it are what they chose."""
    elsewhere = tmp_path / "thesis"
    elsewhere.mkdir()
    built = watched()
    array = replace(built.campaign.arrays[0], job_id="88", workdir=str(elsewhere))
    if name != "as it was":
        array = replace(array, name=name)
    store.write_manifest(
        built.directory, replace(built.campaign, uid=os.geteuid(), arrays=(array,))
    )
    line = built.squeue(1, "RUNNING", job="88_1", name="the other job's")
    slurm.answers(squeue=[listed(line, elsewhere, command="/home/me/thesis.sh")])
    document, calls = cancelled(hpcbert, slurm, built.directory)
    assert (calls, document["data"]["cancelled"]) == ([], False)
    assert f"job 88 was submitted in {elsewhere}" in document["warnings"][0]


def test_a_manifest_that_names_somebody_elses_job_does_not_cancel_it(
    hpcbert: Any, slurm: Any, watched: Make
) -> None:
    other_uid = 54321
    built = watched()
    store.write_manifest(built.directory, replace(built.campaign, uid=other_uid))
    slurm.answers(squeue=[listed(built.squeue(1, "RUNNING"), built.directory, uid=other_uid)])
    document, calls = cancelled(hpcbert, slurm, built.directory)
    assert (calls, document["data"]["cancelled"]) == ([], False)
    assert document["warnings"] == [f"Not cancelled: job 12 belongs to user {other_uid}."]


@pytest.mark.parametrize("case", ["linked", "moved", "by hand"])
def test_a_campaigns_own_jobs_are_cancelled(
    hpcbert: Any, slurm: Any, watched: Make, tmp_path: Path, *, case: str
) -> None:
    built = watched()
    script = built.directory / built.campaign.arrays[0].script
    place, command = built.directory, script
    if case == "linked":
        place = tmp_path / "link"
        place.symlink_to(built.directory)
    elif case == "moved":
        place = tmp_path / "where it was"
        command = place / built.campaign.arrays[0].script
    else:
        place = tmp_path
    line = built.squeue(1, "RUNNING", job="12_1" if case != "by hand" else "31_1")
    slurm.answers(squeue=[listed(line, place, command=command)])
    document, calls = cancelled(hpcbert, slurm, built.directory)
    assert document["warnings"] == []
    assert [call[1:] for call in calls] == [["31" if case == "by hand" else "12"]]


@pytest.mark.parametrize("case", ["another program", "another campaign's queue", "its own queue"])
def test_a_manifest_that_names_another_process_does_not_end_it(
    watched: Make, tmp_path: Path, case: str
) -> None:
    other = tmp_path / "another campaign"
    other.mkdir()
    built = watched(scheduler="local")
    place = built.directory if case == "its own queue" else other
    words = ["-m", "hpcbert.scheduler.local.worker", str(place)]
    (tmp_path / words[1]).write_text("sleep 600\n:\n")
    argv = ["sleep", "600"] if case == "another program" else ["sh", *words]
    with subprocess.Popen(argv, cwd=tmp_path, start_new_session=True) as process:
        try:
            job = local.queue_job_id(process.pid)
            arrays = tuple(replace(array, job_id=job) for array in built.campaign.arrays)
            built = Built(built.directory, replace(built.campaign, arrays=arrays))
            plan = local.Plan(machine_and_boot(), str(tmp_path / "lock"), 60.0, 1.0, ())
            (built.directory / local.PLAN_FILE).write_text(json.dumps(asdict(plan)))
            until(Path(f"/proc/{process.pid}/cmdline").read_bytes, "it is there")
            assert local.is_queue_alive(job)
            target = submit.find_living(built, run=None)  # type: ignore[arg-type]
            if case == "its own queue":
                assert (target.jobs, target.left) == ((job,), ())
                assert local.cancel_queue(built.directory, built.campaign)
                assert process.wait(CEILING)
                return
            assert (target.jobs, target.repeats) == ((), ())
            assert (str(other) if "queue" in case else case) in target.left[0]
            assert not local.cancel_queue(built.directory, built.campaign)
            assert process.poll() is None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

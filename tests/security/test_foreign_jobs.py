"""What a manifest says is not enough to cancel a job: it may be a copy's, or anybody's invention."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hpcbert.commands import submit
from hpcbert.scheduler.local import backend as local
from hpcbert.system.processes import machine_and_boot
from tests.kit.cli import run_here
from tests.kit.waiting import CEILING, until


def test_a_job_that_a_manifest_merely_names_is_not_cancelled_and_a_campaigns_own_is(
    hpcbert, slurm, watched, tmp_path
):
    """Somebody gave it to me; id, name, place and user in it are what they chose."""

    def owned(line, place, *, uid=None, script=""):
        """Return a line of squeue with what says whose job it is."""
        return f"{line.rstrip()}|//{uid or os.geteuid()}|//{script}|//{place}\n"

    def cancel(directory):
        ours = replace(hpcbert, run=run_here)
        return ours("cancel", "--yes", "--json", directory, status=0).document

    def warn_of(directory):
        document = cancel(directory)
        assert (document["data"]["cancelled"], document["data"]["jobs"]) == (False, [])
        assert slurm.calls("scancel") == []
        (warning,) = document["warnings"]
        return str(warning)

    built, elsewhere = watched(), tmp_path / "thesis"
    elsewhere.mkdir()
    slurm.answers(squeue=[owned(built.squeue(1, "RUNNING"), built.directory)])
    copy = shutil.copytree(built.directory, tmp_path / built.directory.name)
    assert f"job 12 was submitted in {built.directory}, not in {copy}" in warn_of(copy)
    (array,) = built.campaign.arrays
    thesis = built.squeue(1, "RUNNING", job="88_1", name="the other job's")
    slurm.answers(squeue=[owned(thesis, elsewhere, script="/home/me/thesis.sh")])
    for name in (array.name, "the other job's", ""):
        lie = replace(array, job_id="88", workdir=str(elsewhere), name=name)
        built.change(uid=os.geteuid(), arrays=(lie,))
        assert f"job 88 was submitted in {elsewhere}" in warn_of(built.directory)
    built.change(uid=54321)
    slurm.answers(squeue=[owned(built.squeue(1, "RUNNING"), built.directory, uid=54321)])
    assert warn_of(built.directory) == "Not cancelled: job 12 belongs to user 54321."
    # A campaign's own jobs are, as it was, linked, moved or submitted by hand.
    link, former = tmp_path / "link", tmp_path / "where it was"
    for number, name in enumerate(("as it was", "linked", "moved", "by hand")):
        built = watched(name)
        directory, script = built.directory, built.campaign.arrays[0].script
        link.unlink(missing_ok=True)
        link.symlink_to(directory)
        place, submitted_script, job = {
            "as it was": (directory, "", "12"),
            "linked": (link, directory / script, "12"),
            "moved": (former, former / script, "12"),
            "by hand": (tmp_path, directory / script, "31"),
        }[name]
        line = built.squeue(1, "RUNNING", job=f"{job}_1")
        slurm.answers(squeue=[owned(line, place, script=submitted_script)])
        document = cancel(directory)
        assert document["warnings"] == []
        assert [call[1:] for call in slurm.calls("scancel")][number:] == [[job]]


@pytest.mark.parametrize("case", ["another program", "another campaign's queue", "its own queue"])
def test_a_manifest_that_names_another_process_does_not_end_it(watched, tmp_path, case):
    other, built = tmp_path / "another campaign", watched(scheduler="local")
    other.mkdir()
    place = built.directory if case == "its own queue" else other
    words = ["-m", "hpcbert.scheduler.local.worker", str(place)]
    (tmp_path / words[1]).write_text("sleep 600\n:\n")
    argv = ["sleep", "600"] if case == "another program" else ["sh", *words]
    with subprocess.Popen(argv, cwd=tmp_path, start_new_session=True) as process:
        try:
            job = local.queue_job_id(process.pid)
            built = built.change(arrays=(replace(built.campaign.arrays[0], job_id=job),))
            plan = local.Plan(machine_and_boot(), str(tmp_path / "lock"), 60.0, 1.0, ())
            (built.directory / local.PLAN_FILE).write_text(json.dumps(asdict(plan)))
            until(Path(f"/proc/{process.pid}/cmdline").read_bytes, "it is there")
            assert local.is_queue_alive(job)
            target = submit.find_living(built, run=None)  # type: ignore[arg-type]
            if case == "its own queue":
                assert (target.jobs, target.left) == ((job,), ())
                assert local.cancel_queue(built.directory, built.campaign)
                assert process.wait(CEILING)
            else:
                assert (target.jobs, target.repeats) == ((), ())
                assert (str(other) if "queue" in case else case) in target.left[0]
                assert not local.cancel_queue(built.directory, built.campaign)
                assert process.poll() is None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

"""Submission against a small scripted Slurm: what it has queued is the truth."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands import submit as flow
from hpcbert.errors import HpcbertError, SchedulerError, UsageError
from hpcbert.model import MANIFEST, Shape
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.script.draft import Draft
from tests.kit.campaigns import updated
from tests.kit.drafts import combined, curve, drafted, hurried, reference
from tests.kit.slurm import Answer, Job, Slurm, failed


def submit_draft(draft: Draft, slurm: Slurm) -> list[str]:
    flow.write_campaign(draft)
    pauses: list[float] = []
    campaign = flow.submit(draft.directory, SchedulerContext(slurm, lambda: 1.0, pauses.append))
    assert campaign == store.read_manifest(draft.directory)
    return [array.job_id for array in campaign.arrays]


def test_one_sbatch_a_point_which_waits_for_the_one_before_and_every_id_in_the_manifest(
    tmp_path: Path,
) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    assert submit_draft(draft, slurm) == ["100", "101", "102", "103"]
    assert [call[0] for call in slurm.calls] == ["sbatch", "scontrol"] * 4
    assert all(call[1] == "--parsable" for call in slurm.calls[::2])
    waits = [call[2] if len(call) == 4 else "" for call in slurm.called("sbatch")]
    assert waits == ["", *(f"--dependency=afterany:{job}" for job in (100, 101, 102))]
    assert all(array.seen for array in store.read_manifest(draft.directory).arrays)


def draft_points(where: Path, count: int = 7) -> Draft:
    request = combined(Shape(1, 1), ("fp32",), tuple(range(1, count + 1)))
    return drafted(where, request)


@dataclass
class Turning(Slurm):
    """A wrapper of sbatch that prints another number from the fifth job on."""

    def do_sbatch(self, argv: tuple[str, ...], cwd: str) -> Answer:
        answer = super().do_sbatch(argv, cwd)
        self.jobs.setdefault("34", Job("somebody else's"))
        return answer if self.count("sbatch") < 5 else Answer("34\n")


@pytest.mark.parametrize("last", range(5, 8))
def test_killed_under_a_wrapper_that_prints_other_numbers_no_point_has_a_strangers_id(
    tmp_path: Path, last: int
) -> None:
    draft, slurm = draft_points(tmp_path), Turning()

    def kill(program: str) -> None:
        if program == "sbatch" and slurm.count("sbatch") == last:
            raise KeyboardInterrupt

    flow.write_campaign(draft)
    slurm.before = kill
    with pytest.raises(KeyboardInterrupt):
        flow.submit(draft.directory, hurried(slurm))
    arrays = store.read_manifest(draft.directory).arrays
    assert sum(bool(array.job_id) for array in arrays) == last - 1
    assert all(slurm.names[array.job_id] == array.name for array in arrays if array.job_id)
    waits = [call[2] for call in slurm.calls if call[0] == "sbatch" and len(call) == 4]
    assert (
        waits == [f"--dependency=afterany:{job}" for job in slurm.jobs if job != "34"][: last - 1]
    )
    slurm.before = lambda _: None
    campaign = flow.submit(draft.directory, hurried(slurm))
    assert all(slurm.names[array.job_id] == array.name for array in campaign.arrays)
    assert all(array.seen for array in campaign.arrays)
    assert campaign == store.read_manifest(draft.directory)
    assert len({array.job_id for array in campaign.arrays}) == 7


def test_many_unconfirmed_ids_are_confirmed_later_by_one_question(tmp_path: Path) -> None:
    draft, slurm = draft_points(tmp_path, 12), Slurm(away={"scontrol"})
    flow.write_campaign(draft)
    campaign = flow.submit(draft.directory, hurried(slurm))
    assert all(array.job_id and not array.seen for array in campaign.arrays)
    slurm.calls.clear()
    watched = TrackedCampaign(draft.directory, campaign)
    adopted_campaign = (
        scheduler.create_scheduler("slurm", SchedulerContext(slurm)).adopt_jobs(watched).campaign
    )
    assert [call[0] for call in slurm.calls] == ["squeue"]
    assert all(array.seen for array in adopted_campaign.arrays)
    assert adopted_campaign == store.read_manifest(draft.directory)


def test_points_that_may_run_at_once_wait_for_none_but_a_retry_for_its_own(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    flow.write_campaign(draft)
    free = replace(draft.campaign, concurrent_points=True)
    store.write_manifest(draft.directory, free)
    campaign = flow.submit(draft.directory, SchedulerContext(slurm))
    first = free.arrays[0]
    text = (draft.directory / first.script).read_text().replace(first.name, f"{first.name}.t1")
    (draft.directory / "scripts/again.sbatch").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    again = replace(
        first, name=f"{first.name}.t1", retry=1, script="scripts/again.sbatch", script_sha256=digest
    )
    store.write_manifest(draft.directory, replace(campaign, arrays=(*campaign.arrays, again)))
    flow.submit(draft.directory, SchedulerContext(slurm))
    waits = [call[2:-1] for call in slurm.calls if call[0] == "sbatch"]
    assert waits == [(), (), (), (), ("--dependency=afterany:100",)]


def test_the_manifest_is_on_disk_before_sbatch_is_called(tmp_path: Path) -> None:
    draft = curve(tmp_path)
    states = []

    def look(program: str) -> None:
        if program == "sbatch":
            manifest = store.read_manifest(draft.directory)
            states.append([array.state for array in manifest.arrays])

    flow.write_campaign(draft)
    flow.submit(draft.directory, hurried(Slurm(before=look)))
    assert states[0] == ["intended"] * 4
    assert states[3] == ["submitted"] * 3 + ["intended"]


@pytest.mark.parametrize("crash_at", [1, 2, 3, 4])
def test_a_crash_after_sbatch_queued_loses_and_doubles_nothing(
    tmp_path: Path, crash_at: int
) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    flow.write_campaign(draft)

    def die(program: str) -> None:
        slurm.dies = slurm.count("sbatch") == crash_at

    slurm.before = die
    with pytest.raises(KeyboardInterrupt):
        flow.submit(draft.directory, hurried(slurm))
    slurm.before = lambda _: None
    slurm.dies = False
    campaign = flow.submit(draft.directory, hurried(slurm))
    assert sorted(slurm.jobs) == ["100", "101", "102", "103"]
    assert sorted(array.job_id for array in campaign.arrays) == sorted(slurm.jobs)
    for array in campaign.arrays:
        assert slurm.names[array.job_id] == array.name
    assert flow.submit(draft.directory, hurried(slurm)) == campaign
    assert len(slurm.jobs) == 4


def test_a_busy_controller_is_asked_again(tmp_path: Path) -> None:
    busy = failed("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying")
    draft, slurm = curve(tmp_path), Slurm(sbatch=[busy, busy, None])
    assert len(submit_draft(draft, slurm)) == 4
    assert slurm.count("sbatch") == 6


def test_a_refusal_names_slurms_reason_and_submits_no_more(tmp_path: Path) -> None:
    refusal = failed("sbatch: error: invalid partition specified: gpuu")
    draft, slurm = curve(tmp_path), Slurm(sbatch=[None, refusal, None])
    flow.write_campaign(draft)
    with pytest.raises(SchedulerError, match="invalid partition specified: gpuu") as caught:
        flow.submit(draft.directory, hurried(slurm))
    assert caught.value.exit_code == 3
    assert "Submitted before it: 100" in str(caught.value)
    states = [array.state for array in store.read_manifest(draft.directory).arrays]
    assert states == ["submitted", "refused", "intended", "intended"]


@pytest.mark.parametrize(
    "lost",
    [
        failed("sbatch: error: Batch job submission failed: Socket timed out", acts=True),
        failed("", -9, acts=True),
    ],
    ids=["timed out", "killed"],
)
def test_an_sbatch_without_an_answer_may_have_submitted(tmp_path: Path, lost: Answer) -> None:
    draft, slurm = curve(tmp_path), Slurm(sbatch=[lost, None])
    assert submit_draft(draft, slurm) == ["100", "101", "102", "103"]
    assert slurm.count("sbatch") == 4


@pytest.mark.parametrize(
    "error",
    [
        "Socket timed out on send/recv operation",
        "Unable to contact slurm controller (receive failure)",
        "Zero Bytes were transmitted or received",
    ],
)
def test_a_lost_answer_is_looked_for_twice_before_sbatch_is_called_again(
    tmp_path: Path, error: str
) -> None:
    lost = failed(f"sbatch: error: Batch job submission failed: {error}")
    draft, slurm = curve(tmp_path), Slurm(sbatch=[lost, None])
    assert submit_draft(draft, slurm) == ["100", "101", "102", "103"]
    programs = [call[0] for call in slurm.calls]
    questions = ["squeue", "sacct", "squeue", "sacct", "scontrol"]
    assert programs[:7] == ["sbatch", *questions, "sbatch"]


@pytest.mark.parametrize("is_away", [False, True], ids=["Slurm answers", "Slurm is away"])
def test_a_timed_out_sbatch_that_queued_nothing_stays_intended(
    tmp_path: Path, is_away: bool
) -> None:
    lost = failed("sbatch: error: Batch job submission failed: Socket timed out")
    draft, slurm = curve(tmp_path), Slurm(sbatch=[*[lost] * (1 if is_away else 4), None])
    slurm.away = {"squeue", "sacct"} if is_away else set()
    flow.write_campaign(draft)
    for _ in range(2 if is_away else 1):
        with pytest.raises(SchedulerError, match=r"is unknown whether|Socket timed out"):
            flow.submit(draft.directory, hurried(slurm))
    assert slurm.count("sbatch") == (1 if is_away else 4)
    assert store.read_manifest(draft.directory).arrays[0].state == "intended"
    slurm.away = set()
    flow.submit(draft.directory, hurried(slurm))
    assert len(slurm.jobs) == 4


def test_what_squeue_does_not_list_is_looked_for_again_before_it_is_submitted(
    tmp_path: Path,
) -> None:
    """What a killed sbatch had sent may lie before slurmctld while squeue is answered."""
    draft, slurm = curve(tmp_path, ("fp32",)), Slurm()
    flow.write_campaign(draft)
    first, *_ = draft.campaign.arrays
    called = replace(first, called="2025-11-21T04:00:00Z")
    store.write_manifest(draft.directory, updated(draft.campaign, called))

    def arrives(_: float) -> None:
        slurm.jobs.setdefault("99", Job(first.name))

    campaign = flow.submit(draft.directory, SchedulerContext(slurm, pause=arrives))
    assert [array.job_id for array in campaign.arrays] == ["99", "101"]
    assert slurm.count("sbatch") == 1


def test_a_job_that_nobody_remembers_is_known_by_what_it_wrote(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path, ("fp32",)), Slurm(away={"squeue", "sacct"})
    flow.write_campaign(draft)
    first, *_ = draft.campaign.arrays
    called = replace(first, called="2025-11-21T04:00:00Z")
    store.write_manifest(draft.directory, updated(draft.campaign, called))
    (draft.directory / first.status(2)).write_text(
        '{"event":"start","time":1,"attempt":0,"job":"77_2","nodelist":"n1"}\n'
    )
    campaign = flow.submit(draft.directory, hurried(slurm))
    assert campaign.arrays[0].job_id == "77"


def test_a_job_whose_id_can_not_be_written_down_is_named_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, slurm = curve(tmp_path, ("fp32",)), Slurm()
    flow.write_campaign(draft)
    real = os.write

    def full(descriptor: int, line: memoryview) -> int:
        if not slurm.jobs:
            return real(descriptor, line)
        real(descriptor, line[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store.os, "write", full)  # type: ignore[attr-defined]
        with pytest.raises(HpcbertError, match="Job 100 was submitted") as caught:
            flow.submit(draft.directory, hurried(slurm))
    assert "--resume" in caught.value.hint
    campaign = flow.submit(draft.directory, hurried(slurm))
    assert [array.job_id for array in campaign.arrays] == sorted(slurm.jobs)
    assert not (draft.directory / store.CHANGES).exists()


def test_a_manifest_that_can_not_be_rewritten_in_the_end_has_its_changes_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    flow.write_campaign(draft)
    real = Path.replace

    def full(source: Path, target: Path) -> Path:
        if target.name == MANIFEST:
            raise OSError(28, "No space left on device")
        return real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        campaign = flow.submit(draft.directory, hurried(slurm))
    assert [array.job_id for array in campaign.arrays] == ["100", "101", "102", "103"]
    assert store.read_manifest(draft.directory) == campaign
    assert (draft.directory / store.CHANGES).exists()
    store.write_manifest(draft.directory, campaign)
    assert not (draft.directory / store.CHANGES).exists()
    assert store.read_manifest(draft.directory) == campaign


def test_changes_of_another_manifest_and_half_a_line_change_nothing(tmp_path: Path) -> None:
    draft = curve(tmp_path)
    flow.write_campaign(draft)
    changes = draft.directory / store.CHANGES
    first = replace(draft.campaign.arrays[0], state="submitted", job_id="7")
    with store.open_ledger(draft.directory, draft.campaign) as open_:
        open_.put(first)
        text = changes.read_text()
        changes.write_text(text + '{"arrays": [{"na')
        assert store.read_manifest(draft.directory).arrays[0] == first
        changes.write_text(text.replace('"continues": "', '"continues": "0'))
        assert store.read_manifest(draft.directory) == draft.campaign
        problems = {"is damaged": '{"arrays": 1}', "not a change of": "[]", "not valid JSON": "{"}
        for problem, line in problems.items():
            changes.write_text(f"{text}{line}\n")
            with pytest.raises(UsageError, match=problem):
                store.read_manifest(draft.directory)
        changes.write_text(text)
    assert store.read_manifest(draft.directory).arrays[0] == first


def test_no_sbatch_on_this_machine(tmp_path: Path) -> None:
    draft = curve(tmp_path)
    slurm = Slurm(sbatch=[failed("sbatch: no such program", 127), None])
    flow.write_campaign(draft)
    with pytest.raises(SchedulerError) as caught:
        flow.submit(draft.directory, hurried(slurm))
    assert "login node" in caught.value.hint


def test_a_script_changed_by_hand_is_not_submitted(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    flow.write_campaign(draft)
    script = draft.directory / draft.campaign.arrays[0].script
    script.write_text(script.read_text() + "\n# changed\n")
    with pytest.raises(UsageError, match="differs from the one that was rendered"):
        flow.submit(draft.directory, hurried(slurm))
    assert slurm.calls == []


@pytest.mark.parametrize("name", ["job.bash", "rank.bash", "bert_pretrain.py"])
@pytest.mark.parametrize("state", ["missing", "different"])
def test_a_library_changed_by_hand_is_not_submitted(tmp_path: Path, name: str, state: str) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    flow.write_campaign(draft)
    path = draft.directory / "scripts" / name
    path.unlink() if state == "missing" else path.write_text("# changed\n")
    with pytest.raises(UsageError, match=f"The file is {state}") as caught:
        flow.submit(draft.directory, hurried(slurm))
    assert caught.value.where == str(path)
    assert slurm.calls == []


def test_two_submits_of_one_campaign_one_wins_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    flow.write_campaign(draft)
    with store.locked(draft.directory), pytest.raises(UsageError, match="is working on this"):
        flow.submit(draft.directory, hurried(slurm))
    assert not slurm.jobs
    (draft.directory / store.LOCK).write_text(f"{socket.gethostname()} 4194999\n")
    flow.submit(draft.directory, hurried(slurm))
    assert len(slurm.jobs) == 4
    assert not (draft.directory / store.LOCK).exists()


def test_the_callers_slurm_variables_do_not_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """squeue obeys SQUEUE_PARTITION beside --name: a hidden job would be submitted again."""
    names = ("SBATCH_PARTITION", "SLURM_JOB_ID", "PMIX_RANK", "PYXIS_CONTAINER_IMAGE")
    for name in (*names, "SQUEUE_PARTITION", "SACCT_FORMAT", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "leak")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SLURM_CONF_SERVER", "controller")
    slurm = Slurm()
    submit_draft(curve(tmp_path), slurm)
    for call, environment in zip(slurm.calls, slurm.environments, strict=True):
        assert environment is not None
        leaks = {name for name, value in environment.items() if value == "leak"}
        assert leaks <= ({"SQUEUE_PARTITION", "SACCT_FORMAT"} if call[0] == "sbatch" else set())
        assert environment["SLURM_CONF"] == "/etc/slurm.conf"
        assert environment["SLURM_CONF_SERVER"] == "controller"


def test_a_manifest_reads_back_and_a_damaged_one_says_so(tmp_path: Path) -> None:
    draft = curve(tmp_path)
    flow.write_campaign(draft)
    path = draft.directory / MANIFEST
    assert store.read_manifest(draft.directory) == draft.campaign
    document = json.loads(path.read_text())
    for change in ({"schema": 99}, {"arrays": 3}, {"extra": 1}):
        path.write_text(json.dumps({**document, **change}))
        with pytest.raises(UsageError):
            store.read_manifest(draft.directory)
    path.write_text("{")
    with pytest.raises(UsageError, match="not valid JSON"):
        store.read_manifest(draft.directory)


def test_a_place_that_can_not_be_written_is_an_error_before_sbatch(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    draft = drafted(reference(tmp_path, runs=str(blocker)))
    with pytest.raises(HpcbertError, match="Can't make the campaign directory"):
        flow.write_campaign(draft)


def test_a_campaign_named_by_a_relative_path_is_submitted_by_its_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch is run in the campaign, where a path relative to where hpcbert was run leads nowhere."""
    draft, slurm = curve(tmp_path, ("fp32",)), Slurm()
    flow.write_campaign(draft)
    runs = draft.directory.parent
    monkeypatch.chdir(runs.parent)
    relative = Path(runs.name)
    for name in (f"{runs.name}/{draft.directory.name}", draft.directory.name, "abc123"):
        assert store.resolve(name, relative) == draft.directory
    monkeypatch.chdir(draft.directory)
    assert store.resolve(".", relative) == draft.directory
    monkeypatch.chdir(runs.parent)
    flow.submit(store.resolve("abc123", relative), hurried(slurm))
    assert all(Path(call[-1]).is_absolute() for call in slurm.calls if call[0] == "sbatch")

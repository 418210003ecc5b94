"""Submission and cancelling against a small scripted Slurm: what it has queued is the truth.

With a preflight: what waits for what, who keeps away from which node, what is said.
"""

import json
import signal
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcbert import scheduler
from hpcbert.campaign import preflight, store
from hpcbert.campaign.repeats import open_campaign
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli.progress import advise
from hpcbert.commands import retry, submit
from hpcbert.errors import HpcbertError, SchedulerError, UsageError
from hpcbert.model import Shape
from hpcbert.scheduler.base import RESUME, NoRoomError
from tests.kit import campaigns, cli, drafts, scripts
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import curve
from tests.kit.slurm import AWAY, Answer, Job, Slurm, failed, sinfo
from tests.kit.waiting import CEILING, until

JOBS = ["100", "101", "102", "103"]
EVENTS = read_constant(__file__, "EVENTS")


def list_ids(campaign):
    return [array.job_id for array in campaign.arrays]


def list_states(draft):
    return [array.state for array in store.read_manifest(draft.directory).arrays]


def list_options(slurm, first=0):
    return tuple(call[2:-1] for call in slurm.called("sbatch")[first:])


def test_one_sbatch_a_point_waits_for_the_one_before_and_the_manifest_is_first(tmp_path):
    draft, states = curve(tmp_path), []
    slurm = Slurm(before=lambda _: states.append(list_states(draft)))
    campaign = drafts.submit(draft, slurm)
    assert list_ids(campaign) == JOBS
    assert all(array.seen for array in campaign.arrays)
    # Between two calls of sbatch is one of scontrol, until a request was met without a change.
    assert states[0] == ["intended"] * 4
    assert states[6] == ["submitted"] * 3 + ["intended"]
    assert [call[0] for call in slurm.calls] == [*["sbatch", "scontrol"] * 3, "sbatch", "squeue"]
    assert all(call[1] == "--parsable" for call in slurm.called("sbatch"))
    assert list_options(slurm) == ((), *((f"--dependency=afterany:{job}",) for job in JOBS[:3]))
    slurm = Slurm()
    drafts.submit(curve(tmp_path / "at once", concurrent_points=True), slurm)
    assert list_options(slurm) == ((),) * 4


def test_a_busy_controller_is_asked_again_and_a_refusal_submits_no_more(tmp_path):
    busy = failed("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying")
    slurm = Slurm(sbatch=[busy, busy, None])
    assert list_ids(drafts.submit(curve(tmp_path / "busy"), slurm)) == JOBS
    assert slurm.count("sbatch") == 6
    draft = drafts.drafted(tmp_path / "no", drafts.combined(Shape(1, 1), (), (1, 2, 3, 4, 5)))
    answers = [None, None, None, failed("sbatch: error: invalid partition specified: gpuu"), None]
    with pytest.raises(SchedulerError, match="invalid partition specified: gpuu") as refused:
        drafts.submit(draft, Slurm(sbatch=answers))
    assert refused.value.exit_code == 3
    assert "Submitted before it: 100, 101, 102" in str(refused.value)
    assert list_states(draft) == ["submitted"] * 3 + ["refused", "intended"]
    assert all(array.seen for array in store.read_manifest(draft.directory).arrays[:3])
    with pytest.raises(SchedulerError) as refused:
        drafts.submit(curve(tmp_path / "absent"), Slurm(sbatch=[failed("no such program", 127)]))
    assert "login node" in refused.value.hint


def test_an_sbatch_without_an_answer_may_have_submitted(tmp_path):
    prefix = "sbatch: error: Batch job submission failed:"
    lost, killed = failed(f"{prefix} Socket timed out"), failed("", -9)
    for answer in (lost, killed):
        slurm = Slurm(sbatch=[answer._replace(acts=True), None])
        assert list_ids(drafts.submit(curve(tmp_path / f"queued {answer.code}"), slurm)) == JOBS
        assert slurm.count("sbatch") == 4
    # Otherwise the job is looked for twice before sbatch is called again.
    questions = ["squeue", "sacct", "squeue", "sacct", "scontrol"]
    for complaint in read_constant(__file__, "LOST"):
        slurm = Slurm(sbatch=[failed(f"{prefix} {complaint}"), None])
        assert list_ids(drafts.submit(curve(tmp_path / complaint[:4]), slurm)) == JOBS
        assert [call[0] for call in slurm.calls][:7] == ["sbatch", *questions, "sbatch"]
    # Where Slurm can't say what it has, nothing more is submitted.
    away, hangs = failed(f"{prefix} {AWAY}"), failed("sbatch gave no answer within 60 s", 124)
    for failure in (away, lost, hangs, killed):
        for silent in ({"squeue", "sacct"}, set()):
            draft = curve(tmp_path / f"{failure.code} {len(failure.complaint)} {len(silent)}")
            slurm = Slurm(away=silent, sbatch=[*[failure] * 4, None])
            with pytest.raises(SchedulerError) as error:
                drafts.submit(draft, slurm, again=retry.RETRY_COMMAND)
            assert slurm.count("sbatch") == (1 if silent else 4)
            refused = (RESUME, "refused") if failure == away and not silent else ()
            command, state = refused or (retry.RETRY_COMMAND, "intended")
            assert f"{command} {draft.campaign.id}" in error.value.hint, failure
            assert list_states(draft)[0] == state
            assert slurm.jobs == {}
            slurm.away = set()
            assert len(drafts.submit(draft, slurm).arrays) == len(slurm.jobs) == 4


def test_what_was_called_is_looked_for_again_before_it_is_submitted(tmp_path):
    """What a killed sbatch had sent may lie before slurmctld while squeue is answered."""
    draft, slurm = curve(tmp_path, ("fp32",)), Slurm()
    submit.write_campaign(draft)
    first = replace(draft.campaign.arrays[0], called="2025-11-21T04:00:00Z")
    called = replace(draft.campaign, arrays=(first, *draft.campaign.arrays[1:]))
    store.write_manifest(draft.directory, called)
    arrive = partial(slurm.jobs.setdefault, "99", Job(first.name))
    assert list_ids(drafts.submit(draft, slurm, pause=lambda _: arrive())) == ["99", "101"]
    assert slurm.count("sbatch") == 1
    # A job that nobody remembers is known by what it wrote.
    store.write_manifest(draft.directory, called)
    start = {"event": "start", "job": "77_2", "nodelist": "n1"}
    campaigns.status_file(draft.directory / first.status(2), start, time=1)
    assert list_ids(drafts.submit(draft, Slurm(away={"squeue", "sacct"})))[0] == "77"


def test_on_a_full_disk_no_job_is_lost(tmp_path, monkeypatch):
    draft, slurm, open_file, move = curve(tmp_path), Slurm(), store.Ledger._open, Path.replace

    def open_full(ledger, path):
        file = open_file(ledger, path)

        def write_some(line):
            if not slurm.jobs:
                return file.write(line)
            file.write(line[:20])
            file.flush()
            raise OSError(28, "No space left on device")

        return Mock(wraps=file, write=write_some)

    def move_some(source, target):
        if target.name == "manifest.json":
            raise OSError(28, "No space left on device")
        return move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(store.Ledger, "_open", open_full)
        with pytest.raises(HpcbertError, match="Job 100 was submitted") as refused:
            drafts.submit(draft, slurm)
    assert "--resume" in refused.value.hint
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", move_some)
        campaign = drafts.submit(draft, slurm)
    assert list_ids(campaign) == list(slurm.jobs) == JOBS
    assert (draft.directory / store.CHANGES).exists()


def test_a_damaged_manifest_and_changes_of_another_one_are_refused(tmp_path):
    draft = curve(tmp_path)
    submit.write_campaign(draft)
    changes, path = draft.directory / store.CHANGES, draft.directory / "manifest.json"
    assert store.read_manifest(draft.directory) == draft.campaign
    first = replace(draft.campaign.arrays[0], state="submitted", job_id="7")
    with closing(store.Ledger(draft.directory, draft.campaign)) as ledger:
        ledger.put(first)
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
    assert not changes.exists()
    assert store.read_manifest(draft.directory).arrays[0] == first
    document = json.loads(path.read_text())
    for change in ({"arrays": 3}, {"extra": 1}):
        path.write_text(json.dumps({**document, **change}))
        with pytest.raises(UsageError):
            store.read_manifest(draft.directory)


def test_what_another_submits_or_was_changed_by_hand_is_not_submitted(tmp_path):
    draft, slurm = curve(tmp_path), Slurm()
    submit.write_campaign(draft)
    with store.locked(draft.directory), pytest.raises(UsageError, match="is working on this"):
        drafts.submit(draft, slurm)
    script = draft.directory / draft.campaign.arrays[0].script
    script.write_text(script.read_text() + "\n# changed\n")
    with pytest.raises(UsageError, match="differs from the one that was rendered"):
        drafts.submit(draft, slurm)
    for name in ("job.bash", "rank.bash", "bert_pretrain.py"):
        path = draft.directory / "scripts" / name
        text = path.read_text()
        path.write_text("# changed\n")
        for problem in ("different", "missing"):
            with pytest.raises(UsageError, match=f"The file is {problem}") as refused:
                drafts.submit(draft, slurm)
            assert refused.value.where == str(path)
            path.unlink(missing_ok=True)
        path.write_text(text)
    assert slurm.calls == []
    blocker = tmp_path / "file"
    blocker.touch()
    with pytest.raises(HpcbertError, match="Can't make the campaign directory"):
        submit.write_campaign(drafts.drafted(drafts.reference(tmp_path, runs=str(blocker))))


def test_neither_the_callers_slurm_variables_nor_its_directory_matter(tmp_path, monkeypatch):
    """squeue obeys SQUEUE_PARTITION beside --name: a hidden job would be submitted again."""
    names = ("SBATCH_PARTITION", "SLURM_JOB_ID", "PMIX_RANK", "PYXIS_CONTAINER_IMAGE")
    for name in (*names, "SQUEUE_PARTITION", "SACCT_FORMAT", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "leak")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SLURM_CONF_SERVER", "controller")
    draft, slurm = curve(tmp_path), Slurm()
    submit.write_campaign(draft)
    runs = draft.directory.parent
    monkeypatch.chdir(runs.parent)
    submit.submit(store.resolve_submission("abc123", Path(runs.name))[0], drafts.hurried(slurm))
    assert len(slurm.jobs) == 4
    # sbatch is run in the campaign, where a path relative to where hpcbert was run leads nowhere.
    assert all(Path(call[-1]).is_absolute() for call in slurm.called("sbatch"))
    for call, environment in zip(slurm.calls, slurm.environments, strict=True):
        leaks = {name for name, value in environment.items() if value == "leak"}
        assert leaks <= ({"SQUEUE_PARTITION", "SACCT_FORMAT"} if call[0] == "sbatch" else set())
        assert environment["SLURM_CONF"] == "/etc/slurm.conf"
        assert environment["SLURM_CONF_SERVER"] == "controller"


@pytest.mark.parametrize("limit", ["AssocMaxSubmitJobLimit", "QOSMaxSubmitJobPerUserLimit", ""])
def test_an_array_is_submitted_in_parts_as_room_becomes_available(tmp_path, limit):
    class Limited(Slurm):
        """Takes so many repeats, as MaxSubmitJobs has it."""

        room = 3

        def do_sbatch(self, argv, cwd):
            answer = super().do_sbatch(argv, cwd)
            number = answer.out.strip()
            count = len(self.jobs[number].tasks)
            if count > self.room:
                del self.jobs[number]
                complaint = f"sbatch: error: {limit}\n" if limit else ""
                return failed(complaint + read_constant(__file__, "NO_ROOM"))
            self.room -= count
            return answer

    draft, slurm = curve(tmp_path, ("fp32",)), Limited()
    with pytest.raises(NoRoomError, match="3 repeats are submitted, 7 are not") as refused:
        drafts.submit(draft, slurm)
    assert refused.value.exit_code == 4
    assert f"hpcbert submit --resume {draft.campaign.id}" in refused.value.hint
    for room in (2, 2, 1):
        slurm.room = room
        with pytest.raises(NoRoomError):
            drafts.submit(draft, slurm)
    slurm.room = 2
    campaign = drafts.submit(draft, slurm)
    pairs = [(array.point, number) for array in campaign.arrays for number in array.repeats]
    assert sorted(number for _, number in pairs) == sorted([1, 2, 3, 4, 5] * 2)
    assert len(set(pairs)) == len(campaign.current) == 10
    names = {array.job_id: array.name for array in campaign.arrays}
    assert names == {number: job.name for number, job in slurm.jobs.items()}
    # A limit that no waiting helps against is a refusal.
    slurm, limit = Limited(), limit and "QOSMaxWallDurationPerJobLimit"
    slurm.room = 0
    with pytest.raises(SchedulerError, match="violates accounting") as error:
        drafts.submit(curve(tmp_path / "too long", ("fp32",)), slurm)
    assert error.value.exit_code == 3


def test_more_repeats_than_indices_are_several_arrays(tmp_path):
    draft = curve(tmp_path, ("fp32",), repeats=2500, most_indices=1000)
    arrays = draft.campaign.arrays[:3]
    spans = [(array.offset, len(array.repeats), array.request.array) for array in arrays]
    assert spans == [(0, 1000, "1-1000%1"), (1000, 1000, "1-1000%1"), (2000, 500, "1-500%1")]
    assert len({array.name for array in arrays}) == len({array.script for array in arrays}) == 3
    assert sorted(number for array in arrays for number in array.repeats) == list(range(1, 2501))
    last = replace(arrays[2], job_id="7")
    assert (last.element(2001), last.element(2500)) == ("7_1", "7_500")
    text = draft.scripts[last.name]
    lines = [line for line in text.splitlines() if line.startswith(("offset=", "repeats="))]
    program = "\n".join(["SLURM_ARRAY_TASK_ID=17", *sorted(lines), 'echo "$((repeats + offset))"'])
    assert scripts.bash("-c", program).stdout == "2017\n"
    scripts.bash("-n", stdin=text)
    # A retry of a repeat beyond an array has indices within it.
    draft = curve(tmp_path, ("fp32",), most_indices=3)
    submit.write_campaign(draft)
    first, second, *_ = draft.campaign.arrays
    invalid = [retry.InvalidRepeat(array, array.repeats[1], "", "") for array in (first, second)]
    findings = retry.RetryPlan(open_campaign(draft.directory), tuple(invalid))
    again = retry.plan_retry(findings, RetryPolicy(suspect=False), run=Slurm()).arrays
    assert [(array.repeats, array.offset) for array in again] == [((2,), 0), ((5,), 3)]
    assert again[1].request.array == "2%1"
    assert again[1].script == second.script.removesuffix(".sbatch") + ".t1.sbatch"
    # The cluster says how many indices it takes, and a script by hand has one array.
    for answer, most in (("MaxArraySize = 4\n", 3), ("nothing of it\n", 1000), (failed(""), 1000)):
        backend = scheduler.create_scheduler("slurm", drafts.hurried(Slurm(scontrol=answer)))
        assert backend.most_repeats(drafts.reference(tmp_path)) == most
    result = cli.run("render", "--repeats", 1001, "--output", tmp_path / "scripts", status=2)
    assert "at most 1000 repeats" in result.stderr


@pytest.mark.slow
@cases
def test_an_interrupt_says_what_is_queued_and_how_to_go_on(hpcbert, slurm, name, hold):
    """The signal comes while sbatch is called for the array of number `hold`."""
    slurm.answers(sbatch=[*[None] * hold, Answer(acts=True, waits=True), None])
    words = ("submit", "--fw", "pytorch", "--gpus-per-node", "4", "--scaling")
    ignore = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN) if "nohup" in name else None
    with hpcbert.start(*words, "--json", preexec_fn=ignore) as child:
        until((slurm.folder / "waits").exists, "sbatch was never called", pause=0.01)
        child.send_signal(signal.Signals[f"SIG{name.split()[0]}"])
        (slurm.folder / "go").touch()
        out, _ = child.communicate(timeout=CEILING)
    document = json.loads(out)
    (directory,) = store.find_campaigns(hpcbert.cwd / "runs")
    assert child.returncode == document["exit_code"] == (0 if ignore else 130)
    if ignore:
        assert all(array["job_id"] for array in document["data"]["arrays"])
        return
    (error,) = document["errors"]
    assert error["code"] == "interrupted"
    ids, count = JOBS[: hold + 1], 1 - hold
    assert f"{hold + 1} of 2 arrays are queued: {', '.join(ids)}." in error["message"]
    assert (f"submit --resume '{directory}'" in error["hint"]) == (count > 0)
    assert ("hpcbert monitor" in error["hint"]) == (count == 0)
    assert f"hpcbert cancel '{directory}'" in error["hint"]
    assert [array["job_id"] for array in document["data"]["arrays"]] == [*ids, *[None] * count]
    states = [array.state for array in store.read_manifest(directory).arrays]
    assert states == ["submitted"] * (hold + 1) + ["intended"] * count
    assert not (directory / "lock").exists()
    if name == "INT":  # The monitor advises to go on with the submission.
        result = replace(hpcbert, run=cli.run_here)("monitor", "--once", directory)
        assert result.stdout.count("it was never submitted") == 5
        advice = "run hpcbert submit --resume CAMPAIGN to continue the submission"
        assert f"UNKNOWN: {advice}" in result.stdout


@pytest.mark.slow
def test_each_command_names_itself(hpcbert, slurm):
    slurm.answers(away={"sbatch", "squeue", "sacct"})

    def hint(*words):
        return replace(hpcbert, run=cli.run_here)(*words, "--json", status=3).error["hint"]

    words = ("--fw", "pytorch", "--nodes", "1", "--gpus-per-node", "1", "--force")
    text = hint("submit", *words)
    (directory,) = store.find_campaigns(hpcbert.cwd / "runs")
    assert f"hpcbert submit --resume {directory.name}" in text
    for command in ("submit --resume", "retry", "cancel"):
        assert f"hpcbert {command} {directory.name}" in hint(*command.split(), directory.name)
    assert len(slurm.calls("sbatch")) == 1


def test_only_jobs_of_the_campaign_are_cancelled_and_a_failure_is_reported(watched):
    built = watched(jobs=("12", "13", "14"))
    lines = (
        built.squeue(1, "RUNNING")
        + built.squeue(2, "PENDING", array=1, user="somebody")
        + built.squeue(2, "PENDING", array=1, name="somebody's job of that number")
        + built.squeue(1, "COMPLETED", array=2)
        + built.squeue(1, "RUNNING", name="another job of mine", job="99")
    )
    ended = failed("scancel: error: Kill job error on job id 12: Invalid job id specified")
    slurm = Slurm(squeue=[lines], scancel=["", ended])
    target = submit.find_living(built, run=slurm)
    assert (target.jobs, [repeat.number for repeat in target.repeats]) == (("12",), [1])
    for _ in range(2):  # a job that has ended by itself meanwhile is none to complain of
        submit.cancel(built, target, run=slurm)
    assert slurm.calls[-2:] == [("scancel", "12")] * 2
    with pytest.raises(SchedulerError, match="Access denied"):
        submit.cancel(built, target, run=Slurm(scancel=[failed("scancel: error: Access denied")]))
    with pytest.raises(SchedulerError, match="Unable to contact"):
        submit.find_living(built, run=Slurm(away={"squeue"}))
    # An id that was used again is not cancelled, and a second job of the name is.
    lines = (
        built.squeue(1, "RUNNING", submit=int(built.since) - 1)
        + built.squeue(1, "RUNNING", name="the id was used again")
        + built.squeue(2, "PENDING", job="99_2")
    )
    target = submit.find_living(built, run=Slurm(squeue=[lines]))
    assert (target.jobs, [repeat.number for repeat in target.repeats]) == (("99",), [2])


def draft_points(where, **options):
    """Draft a campaign of three points, after a preflight."""
    request = drafts.combined(Shape(2, 2), ("fp32",), scaling=True, repeats=2, device="cpu")
    return drafts.drafted(drafts.reference(where), request, options={"preflight": True, **options})


def track(draft, *events):
    """Let the preflight's job write events, and return the campaign as it is on disk."""
    path = draft.directory / draft.campaign.preflight.status(1)
    path.unlink(missing_ok=True)
    campaigns.status_file(path, *events, time=9)
    return open_campaign(draft.directory)


def test_points_wait_for_the_preflight(tmp_path):
    slurm = Slurm()
    campaign = drafts.submit(draft_points(tmp_path), slurm)
    after, kill = "--dependency=afterok:100", "--kill-on-invalid-dep=yes"
    waits = (f"{after},afterany:{job}" for job in (101, 102))
    assert list_options(slurm) == ((), (after, kill), *((wait, kill) for wait in waits))
    assert campaign.preflight
    assert campaign.preflight.job_id == "100"
    assert not any(array.changed for array in campaign.arrays)


def test_what_is_submitted_later_keeps_away_from_what_it_found(tmp_path):
    def interrupt(name, nodes=4):
        """Let Slurm take the preflight and then go away; return the draft, and that Slurm."""
        draft = draft_points(tmp_path / name, concurrent_points=True)
        names = (f"n{number}" for number in range(1, nodes + 1))
        slurm = Slurm(sinfo=sinfo(*names), sbatch=[None, failed(AWAY)])
        with pytest.raises(SchedulerError):
            drafts.submit(draft, slurm)
        slurm.sbatch = None
        return draft, slurm

    for number, (base, more, nodes, options) in enumerate(read_constant(__file__, "LATER")):
        draft, slurm = interrupt(str(number), nodes)
        count = slurm.count("sbatch")
        track(draft, *EVENTS[base], *more)
        drafts.submit(draft, slurm)
        assert list_options(slurm, count) == options, (base, more)
    draft, slurm = interrupt("failed")
    track(draft, *EVENTS["well"], *campaigns.ended(1))
    with pytest.raises(SchedulerError, match="preflight failed") as refused:
        drafts.submit(draft, slurm)
    assert "--preflight" in refused.value.hint
    assert list(slurm.jobs) == ["100"]


def test_what_it_found_is_said_in_words(tmp_path):
    draft = draft_points(tmp_path)
    drafts.submit(draft, Slurm())
    for base, more, expected, warned in read_constant(__file__, "SAID"):
        watched = track(draft, *EVENTS[base], *more)
        texts = preflight.describe_preflight(watched)
        assert len(texts) == len(expected)
        assert all(part in text for part, text in zip(expected, texts, strict=True))
        assert bool(preflight.warn_about_preflight(watched, over=False)) == warned
    # That somebody ended it is not said to wait or run.
    for base in ("none", "started"):
        (warning,) = preflight.warn_about_preflight(track(draft, *EVENTS[base]), over=True)
        assert "job 100, has recorded no end" in warning
    for event in read_constant(__file__, "DAMAGED"):
        assert preflight.describe_preflight(
            track(draft, *EVENTS["started"], event, *campaigns.ended())
        )
    # One that failed gives the cause, and points lead to it.
    watched = track(draft, *EVENTS["started"], *campaigns.ended(1))
    log = preflight.find_log(watched, watched.campaign.preflight)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("job.bash: line 9: all_reduce_perf: command not found\n")
    (text,) = preflight.describe_preflight(watched)
    assert "all_reduce_perf: command not found" in text
    point = next(repeat for repeat in watched.repeats if not repeat.array.preflight)
    state = campaigns.report_states(default="CANCELLED")(watched)[point.key]
    assert "preflight failed" in advise(point, state)


@pytest.mark.slow
def test_a_dry_run_shows_it_first_a_plan_counts_it_and_a_cancel_names_it(hpcbert):
    hpcbert = replace(hpcbert, run=cli.run_here)
    words = ("--fw", "pytorch", "--device", "cpu", "--nodes", 4, "--preflight", "--force")
    arrays = hpcbert("submit", *words, "--dry-run", "--json").data["arrays"]
    assert [array["name"].startswith("pre4n1g") for array in arrays] == [True, False]
    data = hpcbert("plan", *words[:-1], "--json").data
    points = data["campaigns"][0]["points"]
    assert [point["preflight"] for point in points] == [False, True]
    total = data["total"]
    assert (total["points"], total["repeats"], total["jobs"]) == (1, 5, 6)
    assert total["rank_hours"] == 20 + 2
    name = hpcbert("submit", *words, "--rehearse", "--json", status=0).data["campaign"]
    result = hpcbert("cancel", name, "--yes", status=0)
    assert result.stdout.startswith(f"Cancelled 5 repeats and the preflight of {name}")

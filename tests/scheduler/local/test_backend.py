"""The local queue with real processes: scripts that sleep instead of training."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.commands import submit
from hpcbert.errors import SchedulerError
from hpcbert.scheduler.local import backend as local
from hpcbert.scheduler.local.backend import lock_path, read_states, start_queue
from hpcbert.slurm.states import RepeatState
from hpcbert.system.processes import descendants, machine_and_boot, read_start_time
from hpcbert.system.runner import Outcome
from tests.kit.campaigns import Build, Built
from tests.kit.cases import read_constant
from tests.kit.waiting import until

pytestmark = pytest.mark.slow

# What every script does first and last, as the rendered ones do.
FRAME = read_constant(__file__, "FRAME")


@dataclass
class Queue:
    """A campaign in the local queue."""

    watched: Built
    tag: str

    def states(self) -> list[RepeatState]:
        return list(read_states(self.watched).values())

    def words(self) -> list[str]:
        return [state.word for state in self.states()]

    def wait(self, come: Callable[[list[RepeatState]], bool]) -> None:
        until(lambda: come(self.states()), lambda: (self.states(), self.output()))

    def wait_for_end(self) -> None:
        """Wait until every state is an end and the queue process has left."""
        self.wait(lambda repeat_states: all(state.kind.over for state in repeat_states))
        until(lambda: not local.is_queue_alive(self.job_id), self.output)

    @property
    def job_id(self) -> str:
        return self.watched.campaign.arrays[0].job_id

    @property
    def pid(self) -> int:
        return int(self.job_id.split("-")[1])

    def output(self) -> str:
        return (self.watched.directory / local.OUTPUT_FILE).read_text()

    def survivors(self) -> list[int]:
        """Processes with this test's tag in their environment."""
        pids = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and read_start_time(int(path.name)):
                try:
                    environment = (path / "environ").read_bytes()
                except OSError:
                    continue
                if f"HPCBERT_TEST_TAG={self.tag}".encode() in environment:
                    pids.append(int(path.name))
        return pids


@pytest.fixture
def run_locally(tmp_path: Path, tracked: Build) -> Iterator[Callable[..., Queue]]:
    """Write scripts, start the queue, and leave nothing of it behind."""
    queues: list[Queue] = []

    def start(
        *bodies: str,
        repeats: int = 1,
        name: str = "here",
        minutes: float = 1.0,
        grace: float = 1.0,
        env: dict[str, str] | None = None,
        together: bool = False,
    ) -> Queue:
        built = tracked(
            *("" for _ in bodies), repeats=repeats, name=name, scheduler="local", together=together
        )
        for array, body in zip(built.campaign.arrays, bodies, strict=True):
            text = FRAME.format(status=f"status/{array.point.key}", body=body)
            (built.directory / array.script).write_text(body if together else text)
        tag = f"{os.getpid()}-{name}-{tmp_path.name}"
        places = {"XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path)}
        environ = {**os.environ, **places, "HPCBERT_TEST_TAG": tag}
        job_id = start_queue(
            built.directory, built.campaign, time_limit_minutes=minutes, grace=grace,
            environ={**environ, **(env or {})},
        )  # fmt: skip
        arrays = [
            replace(array, job_id=job_id, state="submitted") for array in built.campaign.arrays
        ]
        campaign = replace(built.campaign, arrays=tuple(arrays))
        store.write_manifest(built.directory, campaign)
        queues.append(Queue(Built(built.directory, campaign), tag))
        return queues[-1]

    yield start
    for queue in queues:
        for pid in queue.survivors():
            with suppress(ProcessLookupError):  # Its parent may have ended it meanwhile.
                os.kill(pid, signal.SIGKILL)


Start = Callable[..., Queue]


def test_elements_run_one_after_another_in_order(run_locally: Start) -> None:
    note = 'echo "begin $SLURM_ARRAY_TASK_ID" >>order; sleep 0.2; echo end >>order'
    queue = run_locally(note, note, repeats=2)
    queue.wait_for_end()
    assert queue.words() == ["COMPLETED"] * 4
    order = (queue.watched.directory / "order").read_text().split("\n")
    assert order == ["begin 1", "end", "begin 2", "end", "begin 1", "end", "begin 2", "end", ""]
    for state in queue.states():
        assert (state.source, state.exit_code, state.nodes) == (
            *("status-file", 0),
            (os.uname().nodename,),
        )
        assert state.start is not None
        assert state.limit == 60
    assert not queue.survivors()


def test_each_point_and_repeat_has_an_output_of_its_own_and_no_pickle(run_locally: Start) -> None:
    say = 'echo "out $0 $SLURM_ARRAY_TASK_ID"; echo "err" >&2'
    queue = run_locally(say, say, repeats=2)
    queue.wait_for_end()
    outputs = sorted((queue.watched.directory / "slurm").glob("local-*.out"))
    assert len(outputs) == 4
    assert len({path.read_text() for path in outputs}) == 4
    assert all(path.read_text().endswith("err\n") for path in outputs)
    names = {path.suffix for path in queue.watched.directory.rglob("*") if path.is_file()}
    assert names <= {".json", ".out", ".jsonl", ".sbatch", ".toml"}


def test_ranks_get_the_callers_environment_without_his_slurm_job(run_locally: Start) -> None:
    mine = {
        "SLURM_JOB_ID": "77",
        "SLURM_NTASKS": "8",
        "SBATCH_PARTITION": "x",
        "PMIX_RANK": "3",
        "MY_OWN": "kept as it is",
        "CUDA_VISIBLE_DEVICES": "4,5,6",
    }
    queue = run_locally("env >environment", "env >environment2", env=mine)
    queue.wait_for_end()
    lines = (queue.watched.directory / "environment").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    assert env["MY_OWN"] == "kept as it is"
    assert env["HPCBERT_LOCAL"] == "1"
    assert env["SLURM_ARRAY_TASK_ID"] == "1"
    assert env["SLURM_ARRAY_JOB_ID"] == queue.job_id
    assert env["CUDA_VISIBLE_DEVICES"] == "4", "the point has one GPU"
    variables = {"SLURM_JOB_ID", "SLURM_NTASKS", "SBATCH_PARTITION", "PMIX_RANK"}
    assert not variables & set(env)
    assert not [name for name in env if name.startswith("SUBMITIT")]
    second = (queue.watched.directory / "environment2").read_text()
    assert "CUDA_VISIBLE_DEVICES=4,5\n" in second


def test_an_exit_status_is_a_failure_and_the_next_repeat_runs(run_locally: Start) -> None:
    # 144 is what submitit's controller takes for a wish to be run again.
    queue = run_locally("echo x >>runs; exit $((SLURM_ARRAY_TASK_ID == 1 ? 144 : 0))", repeats=2)
    queue.wait_for_end()
    failed, completed = queue.states()
    assert (failed.word, failed.exit_code, failed.kind) == ("FAILED", 144, "failed")
    assert "exit status 144" in failed.detail
    assert completed.word == "COMPLETED"
    assert (queue.watched.directory / "runs").read_text() == "x\nx\n"


def test_a_repeat_is_over_when_the_queue_has_written_so_too(run_locally: Start) -> None:
    """Until then its status file is still written to, and who collects it would refuse it."""
    wait = 'mark end ",\\"exit\\":0"; trap - EXIT; until [ -e go ]; do sleep 0.05; done'
    queue = run_locally(wait)
    status = queue.watched.directory / queue.watched.campaign.arrays[0].status(1)
    until(lambda: status.exists() and '"event":"end"' in status.read_text(), queue.output)
    assert queue.words() == ["RUNNING"]
    (queue.watched.directory / "go").touch()
    queue.wait(lambda repeat_states: repeat_states[0].word == "COMPLETED")
    assert '"finished"' in status.read_text()


def test_whatever_a_script_leaves_behind_is_ended(run_locally: Start) -> None:
    leave = (
        "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'trap \"\" TERM; sleep 1000' &) ; sleep 0.3"
    )
    queue = run_locally(leave, "exit 0")
    queue.wait_for_end()
    assert queue.words() == ["COMPLETED", "COMPLETED"]
    assert not queue.survivors()


def test_the_time_limit_ends_a_script_and_its_ranks(run_locally: Start) -> None:
    queue = run_locally(
        "(trap '' TERM; sleep 1000) & sleep 1000 & wait", "exit 0", minutes=0.02, grace=0.5
    )
    queue.wait_for_end()
    first, second = queue.states()
    assert (first.word, first.kind, first.exit_code) == ("TIMEOUT", "failed", 143)
    assert "time limit of 1.2 s" in first.detail
    assert second.word == "COMPLETED"
    assert not queue.survivors()


def test_a_script_that_ignores_its_end_is_killed(run_locally: Start) -> None:
    queue = run_locally("trap '' TERM; while true; do sleep 0.1; done", minutes=0.01, grace=0.3)
    queue.wait_for_end()
    (state,) = queue.states()
    assert (state.word, state.exit_code) == ("TIMEOUT", 137)
    assert not queue.survivors()


def test_cancelling_ends_what_runs_and_starts_nothing_more(run_locally: Start) -> None:
    queue = run_locally("sleep 1000 & wait", "touch started", repeats=2)
    queue.wait(lambda repeat_states: repeat_states[0].word == "RUNNING")
    target = submit.find_living(queue.watched, run=no_slurm)
    assert target.jobs == (queue.job_id,)
    assert len(target.repeats) == 4
    submit.cancel(queue.watched, target, run=no_slurm)
    queue.wait_for_end()
    assert queue.words() == ["CANCELLED"] * 4
    assert "before it started" in queue.states()[1].detail
    assert not (queue.watched.directory / "started").exists()
    assert not queue.survivors()
    assert submit.find_living(queue.watched, run=no_slurm).jobs == ()
    with pytest.raises(SchedulerError, match="has ended already"):
        submit.cancel(queue.watched, target, run=no_slurm)


def no_slurm(argv: Sequence[str], **_: Any) -> Outcome:
    pytest.fail(f"Slurm has nothing to do with it: {argv}")


def test_a_killed_queue_takes_its_script_along_and_says_so(run_locally: Start) -> None:
    queue = run_locally("sleep 1000 & wait", repeats=2)
    queue.wait(lambda repeat_states: repeat_states[0].word == "RUNNING")
    assert descendants(queue.pid)
    os.kill(queue.pid, signal.SIGKILL)
    queue.wait(lambda states: states[0].word == "CANCELLED")
    first, second = queue.states()
    assert "queue process was killed" in first.detail
    assert (second.word, second.kind) == ("UNKNOWN", "unknown")
    assert "the local queue process has died" in second.detail
    until(lambda: not queue.survivors(), "the killed queue's processes are alive")


def test_a_killed_supervisor_is_a_failure_and_the_queue_goes_on(run_locally: Start) -> None:
    queue = run_locally("echo $PPID >supervisor; setsid sleep 1000 & sleep 1000", "exit 0")
    pid = queue.watched.directory / "supervisor"
    queue.wait(lambda repeat_states: pid.exists() and pid.read_text() != "")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    queue.wait_for_end()
    first, second = queue.states()
    assert first.word == "FAILED"
    assert second.word == "COMPLETED"
    assert not queue.survivors()


def test_campaigns_of_one_machine_wait_for_each_other(run_locally: Start) -> None:
    first = run_locally("until [ -e go ]; do sleep 0.05; done", name="first")
    first.wait(lambda repeat_states: repeat_states[0].word == "RUNNING")
    second = run_locally("exit 0", name="second")
    time.sleep(0.5)
    (state,) = second.states()
    assert (state.word, state.kind) == ("PENDING", "waiting")
    assert state.detail == "another campaign is running on this machine"
    (first.watched.directory / "go").touch()
    first.wait_for_end()
    second.wait_for_end()
    assert second.words() == ["COMPLETED"]
    starts = [queue.states()[0].start for queue in (first, second)]
    assert starts[0] is not None
    assert starts[1] is not None
    assert starts[0] <= starts[1]


def test_a_campaign_that_waits_can_be_cancelled(run_locally: Start) -> None:
    first = run_locally("sleep 1000", name="first")
    first.wait(lambda repeat_states: repeat_states[0].word == "RUNNING")
    second = run_locally("exit 0", name="second")
    assert local.cancel_queue(second.watched.directory, second.watched.campaign)
    second.wait_for_end()
    assert second.words() == ["CANCELLED"]
    assert first.words() == ["RUNNING"]


def test_repeats_that_share_a_job_are_one_run_of_the_script(run_locally: Start) -> None:
    body = (
        "#!/bin/bash\nfor n in 1 2 3; do\n"
        '  echo \'{"event":"start","time":1,"attempt":0}\' >>status/KEY.$n.jsonl\n'
        "  if ((n == 3)); then exit 7; fi\n"
        '  echo \'{"event":"end","time":2,"attempt":0,"exit":\'$((n - 1))\'}\' >>status/KEY.$n.jsonl\n'
        "done\n"
    ).replace("KEY", "bert-tiny_1n1g_fp32_b4")
    queue = run_locally(body, repeats=3, together=True)
    queue.wait_for_end()
    assert queue.words() == ["COMPLETED", "FAILED", "FAILED"]
    assert [state.exit_code for state in queue.states()] == [0, 1, 7]


def test_without_a_bash_every_repeat_fails_with_a_reason(
    run_locally: Start, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    queue = run_locally("exit 0", repeats=2, env={"PATH": str(tmp_path / "empty")})
    queue.wait_for_end()
    assert queue.words() == ["FAILED", "FAILED"]
    assert "could not start" in queue.states()[0].detail
    assert queue.states()[0].exit_code == 127


def test_a_vanished_directory_ends_the_queue_quietly(run_locally: Start, tmp_path: Path) -> None:
    queue = run_locally("echo x >began; sleep 1", repeats=3)
    queue.wait(lambda repeat_states: repeat_states[0].word == "RUNNING")
    queue.watched.directory.rename(tmp_path / "elsewhere")
    until(lambda: not local.is_queue_alive(queue.job_id), "the queue is alive")
    assert not queue.survivors()
    assert "UNKNOWN" in queue.words()


def test_a_status_file_cut_by_a_full_disk_keeps_its_last_event_apart(run_locally: Start) -> None:
    queue = run_locally('printf \'{"event":"st\' >>"$status"; trap - EXIT')
    queue.wait_for_end()
    assert queue.words() == ["COMPLETED"]


def test_a_queue_of_another_machine_or_none_is_not_called_dead_or_alive(
    run_locally: Start, tracked: Build
) -> None:
    queue = run_locally("sleep 1000 & wait")
    queue.wait(lambda repeat_states: repeat_states[0].word == "RUNNING")
    plan = queue.watched.directory / local.PLAN_FILE
    text = plan.read_text()
    plan.write_text(text.replace(machine_and_boot(), "otherhost 0000"))
    (state,) = queue.states()
    assert (state.word, state.detail) == (
        *("RUNNING",),
        "by its own account; its queue was started on otherhost",
    )
    assert not local.cancel_queue(queue.watched.directory, queue.watched.campaign)
    plan.write_text("{")
    assert queue.words() == ["UNKNOWN"]
    plan.write_text(text)
    never = tracked("local-1-1", name="never", scheduler="local", repeats=1)
    (state,) = read_states(never).values()
    assert (state.word, state.detail) == (
        "UNKNOWN",
        "never started: the local queue was never started",
    )


@pytest.mark.parametrize(
    ("machine", "word"),
    [("otherhost 0000", "PENDING"), (f"{os.uname().nodename} 0000", "UNKNOWN")],
    ids=["another-host", "this-host-before-its-restart"],
)
def test_what_another_machine_has_not_begun_waits_there(
    run_locally: Start, machine: str, word: str
) -> None:
    """A retry here would run it twice; after a restart nothing is left that could run it."""
    queue = run_locally("sleep 1000 & wait", repeats=2)
    queue.wait(lambda repeat_states: repeat_states[0].word == "RUNNING")
    plan = queue.watched.directory / local.PLAN_FILE
    plan.write_text(plan.read_text().replace(machine_and_boot(), machine))
    assert queue.words() == ["RUNNING", word]


def test_a_queue_that_cannot_start_says_why(tracked: Build, tmp_path: Path) -> None:
    built = tracked("", scheduler="local")
    (tmp_path / "file").touch()
    with pytest.raises(SchedulerError, match="Can't start the local queue"):
        start_queue(
            built.directory,
            built.campaign,
            time_limit_minutes=1,
            environ={**os.environ, "XDG_STATE_HOME": str(tmp_path / "file")},
        )


@pytest.mark.parametrize("above", ["home", "home/.local", "home/.local/state"])
def test_a_home_that_is_read_only_has_the_lock_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, above: str
) -> None:
    """Also if parts of the way exist; a directory that was named is used, or refused."""
    (tmp_path / above).mkdir(parents=True)
    environ = {"HOME": str(tmp_path / "home")}
    assert lock_path(environ).is_relative_to(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _: not Path(path).is_relative_to(tmp_path))
    assert lock_path(environ).is_relative_to(f"/var/tmp/hpcbert-{os.geteuid()}")
    named = {**environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    assert lock_path(named).is_relative_to(tmp_path / "state")


@pytest.mark.needs("users")
def test_a_place_of_somebody_else_for_the_lock_is_refused(tracked: Build, tmp_path: Path) -> None:
    built = tracked("", scheduler="local")
    (tmp_path / "hpcbert").mkdir()
    os.chown(tmp_path / "hpcbert", 65534, 65534)
    with pytest.raises(SchedulerError, match="It belongs to nobody"):
        start_queue(
            built.directory,
            built.campaign,
            time_limit_minutes=1,
            environ={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        )


def test_what_watches_steps_back_and_what_is_measured_does_not(run_locally: Start) -> None:
    queue = run_locally("sleep 1000 & wait")
    queue.wait(lambda repeat_states: repeat_states[0].word == "RUNNING")
    (supervisor,) = (pid for pid in descendants(queue.pid) if parent(pid) == queue.pid)
    watched_over = descendants(supervisor)
    assert len(watched_over) == 2
    assert [os.sched_getscheduler(pid) for pid in watched_over] == [os.SCHED_OTHER] * 2
    assert os.sched_getscheduler(supervisor) == os.SCHED_IDLE


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

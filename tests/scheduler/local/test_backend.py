"""The local queue with real processes: scripts that sleep instead of training."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.commands import submit
from hpcbert.errors import SchedulerError
from hpcbert.model import JobRequest
from hpcbert.scheduler import create_scheduler
from hpcbert.scheduler.base import SchedulerContext, Target
from hpcbert.scheduler.local import backend as local
from hpcbert.scheduler.local.worker import PLAN_FILE
from hpcbert.system.processes import descendants, machine_and_boot, read_start_time
from tests.kit.cases import read_constant
from tests.kit.slurm import Slurm
from tests.kit.waiting import until

pytestmark = pytest.mark.slow
backend = create_scheduler("local", SchedulerContext(Slurm()))


class Queue:
    """A campaign in the local queue, whose processes have a tag in their environment."""

    def __init__(self, watched, tag):
        self.watched, self.tag = watched, f"HPCBERT_TEST_TAG={tag}".encode()
        self.directory, self.job = watched.directory, watched.campaign.arrays[0].job_id

    def states(self):
        return list(backend.states(self.watched).values())

    def words(self):
        return [state.word for state in self.states()]

    def wait(self, word="RUNNING"):
        until(lambda: self.words()[0] == word, lambda: (self.states(), self.output()))

    def wait_for_end(self, *words):
        """Wait until the queue process has left; check that these are all ends, and nothing is left."""
        until(lambda: not local.is_queue_alive(self.job), self.output)
        assert tuple(self.words()) == words, self.output()
        assert not self.survivors()
        return self.states()

    def output(self):
        return (self.directory / local.OUTPUT_FILE).read_text()

    def survivors(self):
        pids = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.tag in (path / "environ").read_bytes() and read_start_time(int(path.name)):
                    pids.append(int(path.name))
        return pids


@pytest.fixture
def run_locally(tmp_path, watched):
    """Write scripts, start the queue, and leave nothing of it behind."""
    queues: list[Queue] = []

    def start(*bodies, name="here", limit="1", repeats=1, together=False, **env):
        points = {"repeats": repeats, "together": together, "scheduler": "local"}
        built = watched(name, jobs=("",) * len(bodies), **points)
        # What every script does first and last, as the rendered ones do.
        frame = "{body}" if together else read_constant(__file__, "FRAME")
        for array, body in zip(built.campaign.arrays, bodies, strict=True):
            text = frame.format(status=f"status/{array.point.key}", body=body)
            (built.directory / array.script).write_text(text)
        tag = f"{tmp_path}/{name}"
        places = {"XDG_STATE_HOME": f"{tmp_path}/state", "TMPDIR": str(tmp_path)}
        environ = {**os.environ, **places, "HPCBERT_TEST_TAG": tag, **env}
        arrays, request = built.campaign.arrays, JobRequest(time_limit=limit)
        built = built.change(arrays=tuple(replace(array, request=request) for array in arrays))
        job = local.start_queue(built.directory, built.campaign, grace=0.3, environ=environ)
        arrays = (replace(array, job_id=job, state="submitted") for array in built.campaign.arrays)
        queues.append(Queue(built.change(arrays=tuple(arrays)), tag))
        return queues[-1]

    yield start
    for pid in [pid for queue in queues for pid in queue.survivors()]:
        with suppress(ProcessLookupError):  # Its parent may have ended it meanwhile.
            os.kill(pid, signal.SIGKILL)


def test_elements_run_in_order_in_the_callers_environment_without_his_job(run_locally):
    note = (
        'echo "begin $SLURM_ARRAY_TASK_ID" >>order; echo "out $0 $SLURM_ARRAY_TASK_ID"; '
        "echo err >&2; sleep 0.1; echo end >>order; env >environment"
    )
    slurm = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SBATCH_PARTITION": "x", "PMIX_RANK": "3"}
    own = {"MY_OWN": "kept as it is", "CUDA_VISIBLE_DEVICES": "4,5,6"}
    queue = run_locally(note, f"{note}2", repeats=2, **slurm, **own)
    for state in queue.wait_for_end(*["COMPLETED"] * 4):
        assert (state.source, state.exit_code, state.limit) == ("status-file", 0, 60)
        assert state.nodes == (os.uname().nodename,)
        assert state.start is not None
    order = (queue.directory / "order").read_text().split("\n")
    assert order == ["begin 1", "end", "begin 2", "end"] * 2 + [""]
    texts = {path.read_text() for path in queue.directory.glob("slurm/local-*.out")}
    assert len(texts) == 4
    assert all(text.endswith("err\n") for text in texts)
    names = {path.suffix for path in queue.directory.rglob("*") if path.is_file()}
    assert names <= {".json", ".out", ".jsonl", ".sbatch", ".toml", ""}, "no pickle"
    lines = (queue.directory / "environment").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    assert (env["MY_OWN"], env["HPCBERT_LOCAL"]) == ("kept as it is", "1")
    assert (env["SLURM_ARRAY_TASK_ID"], env["SLURM_ARRAY_JOB_ID"]) == ("2", queue.job)
    assert env["CUDA_VISIBLE_DEVICES"] == "4", "the point has one GPU"
    assert not slurm.keys() & env.keys()
    assert not [name for name in env if name.startswith("SUBMITIT")]
    assert "CUDA_VISIBLE_DEVICES=4,5\n" in (queue.directory / "environment2").read_text()


def test_a_repeat_is_over_when_the_queue_has_written_so_too(run_locally):
    """Until then its status file is still written to, and who collects it would refuse it."""
    wait = 'mark end ",\\"exit\\":0"; trap - EXIT; until [ -e go ]; do sleep 0.05; done'
    queue = run_locally(wait)
    status = queue.watched.status_path("1n1g", 1)
    until(lambda: status.exists() and '"event":"end"' in status.read_text(), queue.output)
    assert queue.words() == ["RUNNING"]
    (queue.directory / "go").touch()
    queue.wait("COMPLETED")
    assert '"finished"' in status.read_text()


def test_a_queue_goes_on_whatever_a_script_does_and_leaves_nothing_of_it(run_locally):
    # 144 is what submitit's controller takes for a wish to be run again.
    scripts = {
        "echo x >>runs; exit 144": ("FAILED", 144, "exit status 144"),
        read_constant(__file__, "LEAVES_PROCESSES"): ("COMPLETED", 0, ""),
        # A status file that a full disk cut keeps its last event apart.
        'printf \'{"event":"st\' >>"$status"; trap - EXIT': ("COMPLETED", 0, ""),
        "setsid sleep 1000 & kill -KILL $PPID; sleep 1000": ("FAILED", None, "supervisor"),
        "exit 0": ("COMPLETED", 0, ""),
    }
    queue = run_locally(*scripts)
    states = queue.wait_for_end(*(word for word, _, _ in scripts.values()))
    assert [state.exit_code for state in states] == [code for _, code, _ in scripts.values()]
    texts = [text for _, _, text in scripts.values()]
    assert all(text in state.detail for text, state in zip(texts, states, strict=True))
    assert (queue.directory / "runs").read_text() == "x\n"


def test_the_time_limit_ends_a_script_and_its_ranks(run_locally):
    ranks = "(trap '' TERM; sleep 1000) & sleep 1000 & wait"
    queue = run_locally(ranks, "trap '' TERM; while true; do sleep 0.1; done", limit="0:01")
    first, second = queue.wait_for_end("TIMEOUT", "TIMEOUT")
    assert (first.kind, first.exit_code, second.exit_code) == ("failed", 143, 137)
    assert "time limit of 1 s" in first.detail


def test_cancelling_ends_what_runs_and_starts_nothing_more(run_locally):
    queue, slurm = run_locally("sleep 1000 & wait", "touch started", repeats=2), Slurm()
    queue.wait()
    target = submit.find_living(queue.watched, run=slurm)
    assert (target.jobs, len(target.repeats)) == ((queue.job,), 4)
    submit.cancel(queue.watched, target, run=slurm)
    assert "before it started" in queue.wait_for_end(*["CANCELLED"] * 4)[1].detail
    assert not (queue.directory / "started").exists()
    assert submit.find_living(queue.watched, run=slurm).jobs == ()
    with pytest.raises(SchedulerError, match="has ended already"):
        submit.cancel(queue.watched, target, run=slurm)
    assert slurm.calls == []


def test_only_a_killed_queue_of_this_machine_is_called_dead(run_locally, watched):
    """A retry here would run what waits twice; after a restart nothing is left that could run it."""
    queue = run_locally("sleep 1000 & wait", repeats=2)
    queue.wait()
    # What watches steps back, and what is measured does not.
    pid = int(queue.job.split("-")[1])
    supervisor = max(descendants(pid), key=lambda child: len(descendants(child)))
    policies = [os.sched_getscheduler(child) for child in descendants(supervisor)]
    assert policies == [os.SCHED_OTHER] * 2
    assert os.sched_getscheduler(supervisor) == os.SCHED_IDLE
    plan = queue.directory / PLAN_FILE
    text = plan.read_text().replace('"script"', '"as_another_version_names_it"')
    plan.write_text(text)
    assert queue.words() == ["RUNNING", "PENDING"]
    plan.write_text(text.replace(machine_and_boot(), "otherhost 0000"))
    running, waiting = queue.states()
    assert (running.word, waiting.word) == ("RUNNING", "PENDING")
    assert running.detail == "by its own account; its queue was started on otherhost"
    with pytest.raises(SchedulerError, match="otherhost"):
        backend.cancel(queue.watched, Target((queue.job,), ()))
    plan.write_text(text.replace(machine_and_boot(), f"{os.uname().nodename} 0000"))
    assert queue.words() == ["RUNNING", "UNKNOWN"]
    plan.write_text("{")
    assert queue.words() == ["UNKNOWN", "UNKNOWN"]
    plan.write_text(text)
    other = watched("never", job_id="local-1-1", scheduler="local", repeats=1)
    (state,) = backend.states(other).values()
    assert (state.word, state.detail.count("never started")) == ("UNKNOWN", 2)
    # Killed, it takes its script along.
    os.kill(pid, signal.SIGKILL)
    queue.wait("CANCELLED")
    first, second = queue.states()
    assert "queue process was killed" in first.detail
    assert (second.word, second.kind) == ("UNKNOWN", "unknown")
    assert "the local queue process has died" in second.detail
    until(lambda: not queue.survivors(), "the killed queue's processes are alive")


def test_campaigns_of_one_machine_wait_for_each_other_and_can_be_cancelled_meanwhile(run_locally):
    first = run_locally("until [ -e go ]; do sleep 0.05; done", name="first")
    first.wait()
    second, third = (run_locally("exit 0", name=name) for name in ("second", "third"))
    time.sleep(0.3)
    (state,) = second.states()
    assert (state.word, state.kind) == ("PENDING", "waiting")
    assert state.detail == "earlier repeats come first, or those of another campaign"
    backend.cancel(third.watched, Target((third.job,), ()))
    third.wait_for_end("CANCELLED")
    assert first.words() == ["RUNNING"]
    (first.directory / "go").touch()
    (before,), (after,) = first.wait_for_end("COMPLETED"), second.wait_for_end("COMPLETED")
    assert (before.start or 0) <= (after.start or 0)


def test_repeats_that_share_a_job_are_one_run_of_the_script(run_locally):
    queue = run_locally(read_constant(__file__, "TOGETHER"), repeats=3, together=True)
    states = queue.wait_for_end("COMPLETED", "FAILED", "FAILED")
    assert [state.exit_code for state in states] == [0, 1, 7]


def test_without_a_bash_every_repeat_fails_and_without_its_directory_the_queue_ends(
    run_locally, tmp_path
):
    (tmp_path / "empty").mkdir()
    queue = run_locally("exit 0", repeats=2, PATH=str(tmp_path / "empty"))
    first, _ = queue.wait_for_end("FAILED", "FAILED")
    assert ("could not start" in first.detail, first.exit_code) == (True, 127)
    vanishing = run_locally("echo x >began; sleep 0.5", repeats=3, name="vanishing")
    vanishing.wait()
    vanishing.directory.rename(tmp_path / "elsewhere")
    until(lambda: not local.is_queue_alive(vanishing.job), "the queue is alive")
    assert not vanishing.survivors()
    assert "UNKNOWN" in vanishing.words()


def test_a_home_that_is_read_only_has_the_lock_elsewhere(monkeypatch, tmp_path, watched):
    """Also if parts of the way exist; a directory that was named is used, or refused."""
    built, home = watched(job_id="", scheduler="local"), tmp_path / "home"
    environ = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(tmp_path / "state")}
    for folder in (home, home / ".local", home / ".local/state"):
        folder.mkdir()
        with monkeypatch.context() as patch:
            assert local.lock_path({"HOME": str(home)}).is_relative_to(home)
            patch.setattr(os, "access", lambda path, _: not Path(path).is_relative_to(tmp_path))
            elsewhere = local.lock_path({"HOME": str(home)})
            assert elsewhere.is_relative_to(f"/var/tmp/hpcbert-{os.geteuid()}")
            assert local.lock_path(environ).is_relative_to(tmp_path / "state")
    (tmp_path / "state").touch()
    with pytest.raises(SchedulerError, match="Can't start the local queue"):
        local.start_queue(built.directory, built.campaign, environ=environ)


@pytest.mark.needs("users")
def test_a_lock_that_belongs_to_somebody_else_is_not_used(watched, tmp_path):
    built = watched(job_id="", scheduler="local")
    (tmp_path / "hpcbert").mkdir()
    os.chown(tmp_path / "hpcbert", 65534, 65534)
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with pytest.raises(SchedulerError, match="It belongs to nobody"):
        local.start_queue(built.directory, built.campaign, environ=environ)

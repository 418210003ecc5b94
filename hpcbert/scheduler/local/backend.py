"""The local queue: campaigns on one machine, for users without Slurm.

`start_queue` writes what to run into the campaign and starts one process that runs it
(`hpcbert.scheduler.local.worker`); that process is found again by its id and start time.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.config.schedulers import LOCAL
from hpcbert.config.site import Site
from hpcbert.errors import ConfigError, SchedulerError, join_names
from hpcbert.finding import Finding
from hpcbert.model import Array, Campaign
from hpcbert.scheduler.base import PlainScheduler, Target
from hpcbert.scheduler.local.worker import (
    CANCELLED_FILE,
    PLAN_FILE,
    Element,
    Plan,
    has_ended,
    queue_job_id,
    read_plan,
)
from hpcbert.slurm import commands
from hpcbert.slurm.state_sources import JobRecord
from hpcbert.slurm.states import UNKNOWN, UNSUBMITTED, Kind, RepeatState
from hpcbert.system import files, machine
from hpcbert.system.processes import is_alive, machine_and_boot
from hpcbert.system.runner import start_detached
from hpcbert.timelimit import TimeLimit

OUTPUT_FILE = "slurm/local.out"
GRACE = 10.0

# Returns the words before the command that runs the script of an array.
Launch = Callable[[Array], tuple[str, ...]]


def list_elements(campaign: Campaign, launch: Launch = lambda _: ()) -> Iterator[Element]:
    """Yield the scripts to run, in their order."""
    for array in campaign.arrays:
        groups = [array.repeats] if array.together else [(repeat,) for repeat in array.repeats]
        for repeats in groups:
            task = "" if array.together else str(repeats[0])
            yield Element(
                script=array.script,
                name=f"{array.point.key}_{task or 'all'}",
                task=task,
                statuses=tuple(map(array.status, repeats)),
                first_attempt=array.first_attempt,
                gpus=0 if array.point.device == "cpu" else array.point.shape.gpus_per_node,
                launcher=launch(array),
            )


def lock_path(environ: Mapping[str, str], allocation: str = "") -> Path:
    """Return the lock of this user on this machine, or in an allocation.

    In the state directory and not in XDG_RUNTIME_DIR: that one disappears with the last login,
    while a queue runs on. The host's name is in the path because homes are shared. If the home is
    read-only, the lock is in /var/tmp.
    """
    home = environ.get("HOME") or str(Path.home())
    state_home = environ.get("XDG_STATE_HOME")
    state = Path(state_home or f"{home}/.local/state")
    if not state_home and not _is_writable(state):
        state = Path(f"/var/tmp/hpcbert-{os.geteuid()}")  # noqa: S108  start_queue checks its owner
    name = f"allocation-{allocation}" if allocation else f"local-{socket.gethostname()}"
    return state / "hpcbert" / f"{name}.lock"


def _is_writable(directory: Path) -> bool:
    """Return whether files can be created in a directory, after it is created if need be."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return os.access(existing, os.W_OK)


def start_queue(
    directory: Path,
    campaign: Campaign,
    *,
    environ: Mapping[str, str],
    grace: float = GRACE,
    allocation: str = "",
    launch: Launch = lambda _: (),
) -> str:
    """Start the queue of a campaign and return its job id.

    Its arrays run in order, their repeats one after another; without a time limit, as long as the
    longest allows.

    Args:
        grace: Seconds that a script gets to end its ranks between TERM and KILL.
        allocation: Id of the job whose steps they are; empty: they run on this machine.

    Raises:
        SchedulerError: The queue can't be started.
    """
    directory = directory.absolute()
    lock = lock_path(environ, allocation)
    plan = Plan(
        machine=machine_and_boot(),
        lock=str(lock),
        minutes=TimeLimit.parse_reported(campaign.arrays[0].request.time_limit).bound / 60,
        grace=grace,
        elements=tuple(list_elements(campaign, launch)),
        allocation=allocation,
    )
    env = commands.submission_environment(environ)
    argv = [sys.executable, "-m", "hpcbert.scheduler.local.worker", str(directory)]
    try:
        lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if owner := files.find_foreign_owner(lock.parent):
            raise PermissionError(errno.EPERM, f"It belongs to {owner}", str(lock.parent))
        # It was for the queue before this one.
        (directory / CANCELLED_FILE).unlink(missing_ok=True)
        text = json.dumps(asdict(plan), indent=1) + "\n"
        (directory / PLAN_FILE).write_text(text, encoding="utf-8")
        pid = start_detached(argv, log_path=directory / OUTPUT_FILE, env=env, cwd=Path("/"))
    except OSError as error:
        raise SchedulerError(
            f"Can't start the local queue: {error.strerror}.",
            where=error.filename or str(directory),
            hint="Free some space or fix the permissions; XDG_STATE_HOME has the lock.",
        ) from error
    return queue_job_id(pid, allocation)


def find_queue(directory: Path) -> str:
    """Return the job id of the queue process that runs a campaign on this machine, or nothing."""
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        if _read_campaign_path(pid) == str(directory.absolute()):
            return queue_job_id(pid, read_plan(directory).allocation)
    return ""


def _read_campaign_path(pid: int) -> str:
    """Return the campaign that a queue process runs; empty for another process."""
    with contextlib.suppress(OSError):
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        words = [os.fsdecode(word) for word in argv[1:]]
        if words[:-1] == ["-m", "hpcbert.scheduler.local.worker"]:
            return words[-1]
    return ""


def describe_other_process(directory: Path, job_id: str) -> str:
    """Describe the process of a job id; empty: it is this campaign's queue, or gone.

    A manifest may be a copy's, or forged. A campaign that was moved keeps its queue.
    """
    pid, _ = _parse_job_id(job_id)
    if not is_queue_alive(job_id):
        return ""
    path = _read_campaign_path(pid)
    if not path:
        return "another program"
    with contextlib.suppress(OSError):
        return "" if directory.samefile(path) else path
    return ""


def is_queue_alive(job_id: str) -> bool:
    """Return whether a queue runs on this machine; False if its process id was reused."""
    pid, start_time = _parse_job_id(job_id)
    return bool(start_time) and is_alive(pid, start_time)


def _resolve_state(repeat: Repeat, queue: _QueueState, *, now: float) -> RepeatState:
    if repeat.array.state == "intended" and not repeat.array.called:
        return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=UNSUBMITTED)
    job_record = repeat.newest
    state = _recorded_end(repeat, queue) or _open_state(job_record, queue)
    if state.kind == Kind.RUNNING and job_record.start is not None:
        state = replace(state, elapsed=max(0.0, now - job_record.start))
    return replace(job_record.complete(state), limit=queue.limit)


@dataclass(frozen=True)
class _QueueState:
    """The state of a queue process.

    Attributes:
        alive: Whether it is alive; None: it is on another machine, or began before this one did.
        detail: A sentence about that, or the reason why repeats wait.
        limit: Time limit of one element, seconds.
        elsewhere: Whether it is on a machine of another name, so that it may live.
    """

    alive: bool | None
    detail: str
    limit: float | None = None
    cancelled: bool = False
    elsewhere: bool = False


def _parse_job_id(job_id: str) -> tuple[int, int]:
    with contextlib.suppress(ValueError):
        word, pid, start_time = job_id.split("-")
        is_queue = word == LOCAL or word.isdecimal()
        return (int(pid), int(start_time)) if is_queue else (0, 0)
    return 0, 0


def _recorded_end(repeat: Repeat, queue: _QueueState) -> RepeatState | None:
    """Return a repeat's end; None while its files are written to.

    A queue that lives writes how an element ended after its script has. Of repeats that share a
    job, only the last one waits for that.
    """
    array = repeat.array
    is_last = repeat.number == array.repeats[-1] or not array.together
    if queue.alive and is_last and not repeat.newest.state:
        return None
    return repeat.newest.end_state


def _open_state(job_record: JobRecord, queue: _QueueState) -> RepeatState:
    # Where nobody can look, a repeat that has not begun waits: a retry would run it twice.
    if job_record.start is None and (queue.alive or queue.elsewhere):
        return RepeatState("PENDING", Kind.WAITING, "status-file", detail=queue.detail)
    if job_record.start is not None and queue.alive is not False:
        detail = "" if queue.alive else f"by its own account; {queue.detail}"
        return RepeatState("RUNNING", Kind.RUNNING, "status-file", detail=detail)
    if queue.cancelled:
        return RepeatState("CANCELLED", Kind.FAILED, "status-file", detail=queue.detail)
    had = "never recorded its end" if job_record.start is not None else "never started"
    return RepeatState(UNKNOWN, Kind.UNKNOWN, "status-file", detail=f"{had}: {queue.detail}")


class Local(PlainScheduler):
    """Runs campaigns on this machine, one repeat after another."""

    one_job = True

    def start(self, directory: Path, campaign: Campaign) -> str:
        """Start a queue on this machine."""
        return start_queue(directory, campaign, environ=self.context.environ)

    def find(self, directory: Path, arrays: Sequence[Array]) -> str:
        """Return the queue that runs for this campaign."""
        return find_queue(directory)

    def states(self, watched: TrackedCampaign) -> Mapping[Key, RepeatState]:
        """Read the status files, and check whether the queue is alive."""
        job_ids = {array.job_id for array in watched.campaign.arrays}
        queues = {job_id: self._read_queue(watched.directory, job_id) for job_id in job_ids}
        # Only now: a queue that has ended wrote all ends before.
        watched.records.refresh(watched.directory)
        repeats = (
            Repeat(watched, array, number)
            for array in watched.campaign.arrays
            for number in array.repeats
        )
        return {
            repeat.key: _resolve_state(repeat, queues[repeat.array.job_id], now=self.context.now())
            for repeat in repeats
        }

    def _read_queue(self, directory: Path, job_id: str) -> _QueueState:
        try:
            plan = read_plan(directory)
        except (OSError, ValueError, ConfigError):
            return _QueueState(alive=False, detail="the local queue was never started")
        detail = (
            "the local queue process has died; use hpcbert retry for the missing repeats "
            f"({OUTPUT_FILE} may say why)"
        )
        queue = _QueueState(alive=False, detail=detail, limit=plan.minutes * 60)
        if plan.machine != machine_and_boot():
            context = self.context
            if plan.allocation and has_ended(plan.allocation, context.run, context.environ):
                return replace(queue, detail=f"its allocation, job {plan.allocation}, has ended")
            host = plan.machine.partition(" ")[0]
            elsewhere = host != os.uname().nodename
            detail = f"its queue was started on {host}"
            return replace(queue, alive=None, detail=detail, elsewhere=elsewhere)
        if is_queue_alive(job_id):
            detail = "earlier repeats come first, or those of another campaign"
            return replace(queue, alive=True, detail=detail)
        if (directory / CANCELLED_FILE).exists():
            return replace(queue, cancelled=True, detail="it was cancelled")
        return queue

    def living_jobs(self, watched: TrackedCampaign) -> Target:
        """Leave a process alone that a manifest names but that is not this campaign's queue."""
        target = super().living_jobs(watched)
        other_programs = {
            job: program
            for job in target.jobs
            if (program := describe_other_process(watched.directory, job))
        }
        return Target(
            tuple(job for job in target.jobs if job not in other_programs),
            tuple(repeat for repeat in target.repeats if repeat.array.job_id not in other_programs),
            left=tuple(
                f"Not cancelled: {job} runs {program}." for job, program in other_programs.items()
            ),
        )

    def cancel(self, watched: TrackedCampaign, target: Target) -> None:
        """Make the queue end the running repeats and start no more; it needs some seconds."""
        queues = {job_id: self._read_queue(watched.directory, job_id) for job_id in target.jobs}
        places = {queue.detail for queue in queues.values() if queue.alive is None}
        if places:
            raise SchedulerError(
                f"Nothing was cancelled: {join_names(places)}.",
                hint="Cancel it there, with the same command.",
            )
        for job_id, queue in queues.items():
            if queue.alive and not describe_other_process(watched.directory, job_id):
                pid, _ = _parse_job_id(job_id)
                with contextlib.suppress(OSError):
                    (watched.directory / CANCELLED_FILE).touch()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGTERM)
                    return
        raise SchedulerError("The local queue has ended already, so there is nothing to cancel.")

    def examine(self, site: Site, *, nodes: int) -> Iterable[Finding]:
        """Check that hpcbert's own Python has torch, which the pytorch recipe needs."""
        if importlib.util.find_spec("torch"):
            return [Finding("PyTorch", "ok", "the pytorch recipe can train on this machine")]
        detail = "not installed in hpcbert's environment; the pytorch recipe can't train here"
        install = machine.describe_torch_install()
        hint = f"Name another interpreter in the site.toml, or install it. {install}"
        return [Finding("PyTorch", "warn", detail, hint)]

"""The processes of the local queue: `python -m hpcbert.scheduler.local.worker CAMPAIGN`.

The queue waits until no other campaign runs on this machine, then runs the elements in order. For
each it forks a supervisor, which runs the script.

Nothing that a script starts outlives it: the supervisor, and above it the queue, inherit every
process that loses its parent, and kill the rest when the script has ended. A supervisor whose queue
has died ends its script. Both sleep until a signal comes: a child's end, or a request to stop.

The first script waits until this module is imported, so it imports only what each queue needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hpcbert.campaign.record import read_record
from hpcbert.config.schedulers import LOCAL
from hpcbert.slurm import commands
from hpcbert.slurm.state_sources import JobRecord
from hpcbert.system import lock
from hpcbert.system.decode import decode
from hpcbert.system.processes import (
    adopt_orphans,
    die_with_parent,
    kill_descendants,
    read_start_time,
    reap_children,
    run_only_when_idle,
)
from hpcbert.system.runner import Runner, run, start_detached

PLAN_FILE = "slurm/local.json"
# Its presence says that the campaign was cancelled, even to a queue that has only just started.
CANCELLED_FILE = "slurm/local.cancelled"
# Seconds between two attempts to get the lock that another campaign has.
_LOCK_PAUSE = 0.2
_NOT_FOUND = 127
_RUNNING = {"RUNNING", "SUSPENDED"}


@dataclass(frozen=True)
class Element:
    """One script to run: a repeat, or all repeats of a point if they share a job.

    Attributes:
        script: Its path in the campaign.
        name: The point's key, and the repeat's number or `all`.
        task: The repeat's number; empty if all repeats share the job.
        statuses: Where each repeat's events go, relative to the campaign.
        gpus: GPUs that the ranks use on their node.
        launcher: Words before the command that runs the script; empty: it runs on this machine.
    """

    script: str
    name: str
    task: str
    statuses: tuple[str, ...]
    first_attempt: int
    gpus: int
    launcher: tuple[str, ...] = ()

    def output(self, job_id: str) -> str:
        """Return the path of the script's own output, relative to the campaign."""
        return f"slurm/{job_id}_{self.name}.out"

    def newest(self, path: Path) -> JobRecord:
        """Return the newest attempt in a status file, which repeats and the queue write."""
        return read_record(path).newest(first=self.first_attempt)


@dataclass(frozen=True)
class Plan:
    """The work of a queue process: slurm/local.json.

    Attributes:
        lock: File that is locked while a campaign runs on that machine.
        minutes: Time limit of one element.
        grace: Seconds between TERM and KILL.
        allocation: Id of the job of Slurm whose steps they are; empty: there is none.
    """

    machine: str
    lock: str
    minutes: float
    grace: float
    elements: tuple[Element, ...]
    allocation: str = ""


def read_plan(directory: Path, *, whole: bool = False) -> Plan:
    """Read slurm/local.json.

    Args:
        whole: With its elements, which the queue alone needs: another version's differ.

    Raises:
        OSError, ValueError, ConfigError: It is missing or damaged.
    """
    path = directory / PLAN_FILE
    document = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(document, dict) and not whole:
        document["elements"] = []
    return decode(Plan, document, file=str(path))


def queue_job_id(pid: int, allocation: str = "") -> str:
    """Return a queue's job id: `local-PID-STARTTIME`, or `JOB-PID-STARTTIME` in an allocation."""
    return f"{allocation or LOCAL}-{pid}-{read_start_time(pid)}"


def has_ended(job_id: str, run: Runner, environ: Mapping[str, str]) -> bool:
    """Return whether Slurm says that the allocation of a job is over."""
    environment = commands.query_environment(environ)
    outcome = run(commands.squeue_argv(ids=[job_id]), env=environment, timeout=60)
    if not outcome.ok:
        return commands.is_unknown_job(outcome.stderr)
    listing = commands.read_squeue(outcome.stdout)
    return not listing.garbage and not any(row.state in _RUNNING for row in listing.rows)


class Stop:
    """Remembers the first request to end: a state for the record, and the reason in words."""

    def __init__(self) -> None:
        self.why = ""
        self.reason = ""
        self._ear, mouth = os.pipe()
        for end in (self._ear, mouth):
            fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK)
        signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
        # INT too: a process in the background of a shell without job control ignores it, and so
        # would everything below this process, including the script's trap for it.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.why = self.why or "CANCELLED"

    def rest(self, seconds: float | None = None) -> None:
        """Sleep until a signal comes, or has come since the last rest, or time is up."""
        select.select([self._ear], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._ear, select.PIPE_BUF):
                pass


@dataclass(frozen=True)
class End:
    """How an element ended: state, exit status as in a shell, and the reason if it needs words."""

    state: str
    code: int | None
    reason: str = ""


def append_event(path: Path, event: dict[str, Any]) -> None:
    """Append an event to a status file; report a file system that refuses."""
    line = json.dumps({"event": "finished", "time": int(time.time()), **event})
    try:
        cut = path.exists() and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n" if cut else f"{line}\n")
    except OSError as error:
        print_line(f"can't write {path}: {error.strerror}")


def print_line(text: str) -> None:
    """Print a line to the queue's own output, slurm/local.out."""
    with contextlib.suppress(OSError):
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        sys.stdout.write(f"{moment} {text}\n")
        sys.stdout.flush()


def record_end(directory: Path, element: Element, end: End) -> None:
    """Record how an element ended, for each of its repeats.

    If it ran several, those that recorded an end of their own keep it.
    """
    for path in element.statuses:
        job_record = element.newest(directory / path)
        repeat_end = end
        if not element.task and job_record.exit is not None:
            repeat_end = End("FAILED" if job_record.exit else "COMPLETED", job_record.exit)
        event = {"attempt": job_record.attempt, "state": repeat_end.state, "exit": repeat_end.code}
        reason = {"reason": repeat_end.reason} if repeat_end.reason else {}
        append_event(directory / path, {**event, **reason})


def run_queue(directory: Path) -> None:
    """Run the elements of a campaign, one after another."""
    stop = Stop()
    adopt_orphans()
    plan = read_plan(directory, whole=True)
    job_id = queue_job_id(os.getpid(), plan.allocation)
    if (directory / CANCELLED_FILE).exists():
        stop.why = "CANCELLED"
    with hold_lock(Path(plan.lock), stop):
        for element in plan.elements:
            notice_end_of_allocation(plan, stop)
            if not stop.why:
                print_line(element.output(job_id))
                _run_supervised(directory, element, plan, job_id=job_id, stop=stop)
            if not all(element.newest(directory / path).state for path in element.statuses):
                reason = stop.reason or "it was cancelled before it started"
                cancelled = End("CANCELLED", None, reason)
                died = End("FAILED", None, "its supervisor ended without recording an end")
                record_end(directory, element, cancelled if stop.why else died)
    print_line("cancelled" if stop.why else "done")


def notice_end_of_allocation(plan: Plan, stop: Stop) -> None:
    """Stop if the allocation is over: no step can start in it any more."""
    if plan.allocation and not stop.why and has_ended(plan.allocation, run, os.environ):
        stop.why, stop.reason = "CANCELLED", f"its allocation, job {plan.allocation}, has ended"


@contextlib.contextmanager
def hold_lock(path: Path, stop: Stop) -> Iterator[None]:
    """Hold a lock, waiting for it as long as nothing asks this process to end.

    The system releases it when this process and the supervisor, which inherits it, have ended:
    then a script is really over.
    """
    with path.open("a") as file:
        try:
            lock.lock_descriptor(file.fileno(), may_wait=lambda: not stop.why, seconds=_LOCK_PAUSE)
        except OSError as error:
            print_line(
                f"this file system has no locks ({error.strerror}), so campaigns may overlap"
            )
        yield


def _run_supervised(
    directory: Path, element: Element, plan: Plan, *, job_id: str, stop: Stop
) -> None:
    queue = os.getpid()
    sys.stdout.flush()
    supervisor = os.fork()
    if not supervisor:
        try:
            die_with_parent(queue, signal.SIGTERM)
            own_stop = Stop()
            # A signal may have come before this process had its own handlers.
            own_stop.why = own_stop.why or stop.why
            end = _run_script(directory, element, plan, job_id=job_id, stop=own_stop)
            record_end(directory, element, end)
        except BaseException:  # noqa: BLE001 - the interpreter would have printed it
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)  # The frames above belong to the queue.
    signal_sent = False
    while supervisor not in reap_children():
        if stop.why and not signal_sent:
            signal_sent = True
            os.kill(supervisor, signal.SIGTERM)
        stop.rest()
    _clean_up()


def _clean_up() -> None:
    if survivors := kill_descendants():
        print_line(f"processes that can't be killed: {survivors}")


def _run_script(directory: Path, element: Element, plan: Plan, *, job_id: str, stop: Stop) -> End:
    queue = os.getppid()
    adopt_orphans()
    env = {**os.environ, "HPCBERT_LOCAL": "1", "SLURM_ARRAY_JOB_ID": job_id}
    if not element.launcher:
        # The GPUs that ranks may see: the first of the caller's, or of all.
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        words = map(str, range(element.gpus)) if devices is None else devices.split(",")
        env["CUDA_VISIBLE_DEVICES"] = ",".join(list(words)[: element.gpus])
    if element.task:
        env["SLURM_ARRAY_TASK_ID"] = element.task
    output = directory / element.output(job_id)
    try:
        argv = [*element.launcher, "bash", str(directory / element.script)]
        pid = start_detached(argv, log_path=output, env=env, cwd=directory)
    except OSError as error:
        return End("FAILED", _NOT_FOUND, f"the script could not start: {error.strerror}")
    run_only_when_idle()
    code = _wait_for_script(pid, element, plan, queue=queue, stop=stop)
    _clean_up()
    if code:
        notice_end_of_allocation(plan, stop)
    if stop.why:
        return End(stop.why, code, stop.reason)
    return End("FAILED" if code else "COMPLETED", code)


def _wait_for_script(pid: int, element: Element, plan: Plan, *, queue: int, stop: Stop) -> int:
    """Wait for the script and return its exit status; end it when its time is up."""
    limit = plan.minutes * 60
    deadline = time.monotonic() + limit
    term_sent = False
    while (code := reap_children().get(pid)) is None:
        time_is_up = time.monotonic() >= deadline
        if term_sent and time_is_up:
            kill_descendants()
            return 128 + signal.SIGKILL
        if time_is_up and not stop.why:
            stop.why, stop.reason = "TIMEOUT", f"reached its time limit of {limit:g} s"
        if stop.why and not term_sent:
            term_sent, deadline = True, time.monotonic() + plan.grace
            if os.getppid() != queue:
                stop.reason = "its queue process was killed"
            with contextlib.suppress(ProcessLookupError):
                # srun hands only SIGINT on, so that the script can end its own steps.
                os.kill(pid, signal.SIGINT if element.launcher else signal.SIGTERM)
        stop.rest(max(0.0, deadline - time.monotonic()))
    return code


def main() -> None:
    """Run the queue of a campaign."""
    run_queue(Path(sys.argv[1]))


if __name__ == "__main__":
    main()

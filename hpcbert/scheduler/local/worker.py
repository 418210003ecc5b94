"""The processes of the local queue: `python -m hpcbert.scheduler.local.worker CAMPAIGN [ELEMENT]`.

Without ELEMENT it is the queue: it waits until no other campaign runs on this machine, then has
submitit's local controller run the elements one after another. The controller starts this module
again with ELEMENT, as the element's supervisor, which runs the script.

submitit's controller is used and not its LocalExecutor, which would pickle a function and its
result to run what is a command. The controller takes a command, and writes but two logs, to a
folder that is removed in the end. What it can't do is the supervisor's part: it knows no exit
status, gives one second between INT and KILL, signals only the process that it started, and runs
a command that ends with status 144 again. So its own time limit lies beyond the supervisor's.

Nothing a script starts outlives it: the supervisor, and above it the queue, inherit whatever
process loses its parent, and kill what is left when the script has ended. A supervisor whose queue
has died ends its script.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert.model import utc
from hpcbert.scheduler.local.queue import CANCELLED, alive, name_of, read_plan
from hpcbert.system import lock
from hpcbert.system.processes import adopt_orphans, kill_descendants, reap, step_back
from hpcbert.system.runner import start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from hpcbert.scheduler.local.queue import Element, Plan

# Seconds between two looks: of the supervisor at its script, of the queue at all the rest.
_TICK, _SLOW_TICK = 0.2, 0.5
# What the controller grants beyond the supervisor's limit and grace.
_BEYOND = 60.0
_NOT_FOUND = 127


class Stop:
    """Remembers what first asked this process to end: a state for the record, and words."""

    def __init__(self) -> None:
        self.why = ""
        self.reason = ""
        # INT too: who is started in the background of a shell without job control ignores it, and
        # so would everything below this process, the script's trap for it included.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # The controller says INT when its time limit is reached.
        self.why = self.why or ("TIMEOUT" if number == signal.SIGINT else "CANCELLED")


@dataclass(frozen=True)
class End:
    """How an element ended: state, exit status as a shell gives it, and why if that needs words."""

    state: str
    code: int | None
    reason: str = ""


def record(path: Path, event: dict[str, Any]) -> None:
    """Append an event to a status file; a file system that refuses is complained of."""
    line = json.dumps({"event": "finished", "time": int(time.time()), **event})
    try:
        cut = path.exists() and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n" if cut else f"{line}\n")
    except OSError as error:
        say(f"can't write {path}: {error.strerror}")


def say(text: str) -> None:
    """Print a line to the queue's own output, slurm/local.out."""
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{utc(time.time())} {text}\n")
        sys.stdout.flush()


def finish(directory: Path, element: Element, end: End) -> None:
    """Record how an element ended, for each of its repeats.

    Where it went through several, those that wrote an end of their own stand by it.
    """
    for path in element.statuses:
        seen = element.newest(directory / path)
        one = end
        if element.together and seen.exit is not None:
            one = End("FAILED" if seen.exit else "COMPLETED", seen.exit)
        event = {"attempt": seen.attempt, "state": one.state, "exit": one.code}
        reason = {"reason": one.reason} if one.reason else {}
        record(directory / path, {**event, **reason})


def run_queue(directory: Path) -> None:
    """Run the elements of a campaign, one after another."""
    stop = Stop()
    adopt_orphans()
    plan, job_id = read_plan(directory), name_of(os.getpid())
    if (directory / CANCELLED).exists():
        stop.why = "CANCELLED"
    with held(Path(plan.lock), stop), tempfile.TemporaryDirectory(prefix="hpcbert-") as folder:
        for number, element in enumerate(plan.elements):
            if not stop.why:
                say(element.output(job_id))
                _control(directory, number, element, plan, folder=Path(folder), stop=stop)
            if not all(element.newest(directory / path).state for path in element.statuses):
                cancelled = End("CANCELLED", None, "it was cancelled before it started")
                died = End("FAILED", None, "its supervisor ended without a word")
                finish(directory, element, cancelled if stop.why else died)
    say("cancelled" if stop.why else "done")


@contextlib.contextmanager
def held(path: Path, stop: Stop) -> Iterator[bool]:
    """Hold a lock, waiting for it as long as nothing asks this process to end.

    The system lets go of it when the process ends, however that happens.
    """
    with path.open("a+") as file:
        try:
            taken = lock.wait(file.fileno(), patient=lambda: not stop.why, pause=_TICK)
        except OSError as error:
            taken = True
            say(f"this file system has no locks ({error.strerror}): two campaigns may run at once")
        if taken:
            file.truncate(0)
            file.write(name_of(os.getpid()))
            file.flush()
        yield taken
        if taken:
            file.truncate(0)


def _control(
    directory: Path, number: int, element: Element, plan: Plan, *, folder: Path, stop: Stop
) -> None:
    """Have submitit's controller run the supervisor of one element, and clean up behind it."""
    os.environ["SUBMITIT_LOG_LEVEL"] = "NOCONFIG"
    from submitit.local.local import start_controller

    words = [sys.executable, "-m", "hpcbert.scheduler.local.worker", str(directory)]
    words += [str(number), name_of(os.getpid())]
    # The GPUs that ranks may see: the first of the caller's, or of all.
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = map(str, range(element.gpus)) if devices is None else devices.split(",")
    controller = start_controller(
        folder,
        shlex.join(words),
        cuda_devices=",".join(list(known)[: element.gpus]),
        timeout_min=plan.minutes + (plan.grace + _BEYOND) / 60,
        # Its warning signal is for submitit's own checkpoints; 0 is never.
        signal_delay_s=0,
        stderr_to_stdout=True,
    )
    while controller.poll() is None:
        if stop.why:
            controller.terminate()
        time.sleep(_SLOW_TICK)
    _clean_up()
    for log in folder.iterdir():
        sys.stdout.write(log.read_text(encoding="utf-8", errors="replace"))
        log.unlink()


def _clean_up() -> None:
    if left := kill_descendants():
        say(f"processes that can't be killed: {left}")


def supervise(directory: Path, number: int, job_id: str) -> None:
    """Run one element's script and record how it ended."""
    stop = Stop()
    adopt_orphans()
    # The controller looks at this process 24 times a second: 0.8 % of a core where it was tried.
    step_back(os.getppid())
    plan = read_plan(directory)
    element = plan.elements[number]
    # The queue's lock goes with the queue; this one goes when the script is really over.
    with held(Path(f"{plan.lock}.element"), stop):
        finish(directory, element, _run(directory, element, plan, job_id=job_id, stop=stop))


def _run(directory: Path, element: Element, plan: Plan, *, job_id: str, stop: Stop) -> End:
    env = {name: text for name, text in os.environ.items() if not name.startswith("SUBMITIT_")}
    env |= {"HPCBERT_LOCAL": "1", "SLURM_ARRAY_JOB_ID": job_id}
    if not element.together:
        env["SLURM_ARRAY_TASK_ID"] = str(element.repeats[0])
    output = directory / element.output(job_id)
    try:
        argv = ["bash", str(directory / element.script)]
        pid = start(argv, output=output, env=env, cwd=directory)
    except OSError as error:
        return End("FAILED", _NOT_FOUND, f"the script can't be started: {error}")
    step_back()
    code = _watch(pid, plan, job_id=job_id, stop=stop)
    _clean_up()
    if stop.why:
        return End(stop.why, code, stop.reason)
    return End("FAILED" if code else "COMPLETED", code)


def _watch(pid: int, plan: Plan, *, job_id: str, stop: Stop) -> int:
    """Wait for the script and return its exit status; end it when it is time to."""
    limit = plan.minutes * 60
    deadline = time.monotonic() + limit
    last = 0.0
    while (code := reap().get(pid)) is None:
        time.sleep(_TICK)
        if not stop.why and time.monotonic() > deadline:
            stop.why, stop.reason = "TIMEOUT", f"reached its time limit of {limit:g} s"
        if not stop.why and not alive(job_id):
            stop.why, stop.reason = "CANCELLED", "its queue process was killed"
        if stop.why and not last:
            last = time.monotonic() + plan.grace
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        if last and time.monotonic() > last:
            kill_descendants()
            return 128 + signal.SIGKILL
    return code


def main() -> None:
    """Be the queue of a campaign, or the supervisor of one of its elements."""
    directory = Path(sys.argv[1])
    if len(sys.argv) > 2:  # noqa: PLR2004
        supervise(directory, int(sys.argv[2]), sys.argv[3])
    else:
        run_queue(directory)


if __name__ == "__main__":
    main()

"""One kind of work on many files, by parallel processes on all available cores.

The outcome is that of one process: results in the order of the files, and the first of several
errors. Processes are forks that take tasks from a list; each keeps its results until the list is
empty. If there is little work, or a lack of cores or processes, this process does the work.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import struct
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar

from hpcbert.errors import HpcbertError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")
R = TypeVar("R")

# The least work for one process, in bytes of a large log: starting it takes milliseconds.
LEAST = 1 << 25
# The cost of opening, reading and judging a file, in the same bytes.
EACH = 1 << 18
# Others use a login node too.
MOST = 16
# Tasks per process: few enough to cost nothing, enough that all end at about the same time.
_TASKS = 32
# All of them fit into a pipe, however small the system makes it (pipe(7): one page).
_TASK = struct.Struct("=I")
_TASKS_AT_MOST = 4096 // _TASK.size
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores() -> int:
    """Return how many cores this process may use, by its affinity and its cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    try:
        groups = _OWN_CGROUPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        groups = []
    return max(1, int(min(allowed, _quota(_CGROUPS, groups))))


def _quota(root: Path, groups: Sequence[str]) -> float:
    """Return the cores that the quotas of this process's cgroup and those above it allow.

    Args:
        root: Where cgroups are mounted.
        groups: Lines of /proc/self/cgroup, `hierarchy:controllers:path` (cgroups(7)).
    """
    least = float("inf")
    for line in groups:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / controllers if controllers else root
        folder = top / path.strip("/")
        for one in (folder, *folder.parents):
            least = min(least, _of_group(one))
            if one == top:
                break
    return least


def _of_group(folder: Path) -> float:
    # Version 2: `max 100000` or `150000 100000`; version 1: -1 in a file of its own.
    words = _words(folder / "cpu.max")
    words = words or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
    numbers = [int(word) for word in words if word.isdecimal()]
    return numbers[0] / numbers[1] if len(numbers) > 1 and numbers[1] else float("inf")


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def spread(work: Callable[[T], R], items: Sequence[T], sizes: Sequence[int]) -> list[R]:
    """Return the results of some work on each item, in their order.

    Args:
        work: The work. It may run in another process: its changes there stay there.
        items: Its arguments.
        sizes: Bytes that it reads for each.

    Raises:
        HpcbertError: A process was killed.
        Exception: The error of the first item for which the work raises one.
    """
    weights = [size + EACH for size in sizes]
    count = min(cores(), MOST, sum(weights) // LEAST, len(items))
    made: dict[int, R] = {}
    if count > 1 and _is_alone():
        made = _Crew(work, items, _shares(weights, count * _TASKS)).run(count)
    # An item that raised an error raises it again here, the first of several.
    return [made[at] if at in made else work(item) for at, item in enumerate(items)]


def _is_alone() -> bool:
    """Return whether this process has one thread: a fork may wait forever for another's lock."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1
    except OSError:
        return False


def _shares(weights: Sequence[int], count: int) -> list[range]:
    """Return items cut into runs of about equal weight, the heavy ones first."""
    count = min(count, _TASKS_AT_MOST)
    total, sums = sum(weights), 0
    starts: list[int] = []
    for at, weight in enumerate(weights):
        if sums * count >= len(starts) * total and len(starts) < count:
            starts.append(at)
        sums += weight
    shares = [range(*pair) for pair in zip(starts, [*starts[1:], len(weights)], strict=True)]
    return sorted(shares, key=lambda share: -sum(weights[share.start : share.stop]))


class _Crew(Generic[T, R]):
    """Processes for one kind of work."""

    def __init__(self, work: Callable[[T], R], items: Sequence[T], shares: Sequence[range]) -> None:
        self.work = work
        self.items = items
        self.shares = shares
        self.parent = os.getpid()

    def run(self, count: int) -> dict[int, R]:
        """Return the results by the items' numbers; items that raised an error are absent.

        Raises:
            HpcbertError: A process was killed.
        """
        tasks, todo = os.pipe()
        os.write(todo, b"".join(map(_TASK.pack, range(len(self.shares)))))
        os.close(todo)
        # The answers, by process id.
        running: dict[int, BinaryIO] = {}
        made: dict[int, R] = {}
        try:
            for _ in range(count):
                # An interrupt between a fork and the note of it would leave the process running.
                with _uninterrupted() as before:
                    self._start(tasks, running, before)
            for pid, data in _ended(running):
                _, status = os.waitpid(pid, 0)
                running.pop(pid).close()
                _refuse_killed(os.waitstatus_to_exitcode(status))
                made.update(pickle.loads(data))  # noqa: S301 - this program wrote it just now
        finally:
            os.close(tasks)
            for pid, said in running.items():
                said.close()
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        return made

    def _start(self, tasks: int, running: dict[int, BinaryIO], mask: set[int]) -> None:
        """Start one process, unless the system has none left: the others then do its work.

        Args:
            tasks: The pipe with the list of tasks.
            running: The dictionary that gets the process.
            mask: The signals that are blocked in it.
        """
        source, sink = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(source)
            os.close(sink)
            return
        if not pid:
            # Neither the handlers of this process nor its actions at exit may run twice.
            status = 1
            try:
                for number in _INTERRUPTS:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                data = self._pickled(self._work(tasks))
                with os.fdopen(sink, "wb") as file:
                    file.write(data)
                status = 0
            finally:
                os._exit(status)
        os.close(sink)
        running[pid] = os.fdopen(source, "rb")

    def _work(self, tasks: int) -> dict[int, R]:
        made = {}
        while task := os.read(tasks, _TASK.size):
            for at in self.shares[_TASK.unpack(task)[0]]:
                if os.getppid() != self.parent:
                    return {}  # The parent no longer waits for it.
                with suppress(Exception):
                    made[at] = self.work(self.items[at])
        return made

    @staticmethod
    def _pickled(made: dict[int, R]) -> bytes:
        try:
            return pickle.dumps(made, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError):
            return pickle.dumps({})


@contextmanager
def _uninterrupted() -> Iterator[set[int]]:
    """Block interrupts; return the signals that were blocked before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ended(running: Mapping[int, BinaryIO]) -> Iterator[tuple[int, bytes]]:
    """Yield each process and its answer, in the order in which they end.

    This listens to all of them at once: it notices a killed one before the others have done its
    work, and none waits until others are read.
    """
    heard = {pid: bytearray() for pid in running}
    with selectors.DefaultSelector() as selector:
        for pid, said in running.items():
            selector.register(said, selectors.EVENT_READ, pid)
        while selector.get_map():
            for key, _ in selector.select():
                if data := os.read(key.fd, 1 << 20):
                    heard[key.data] += data
                else:
                    selector.unregister(key.fileobj)
                    yield key.data, bytes(heard.pop(key.data))


def _refuse_killed(code: int) -> None:
    if code:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise HpcbertError(
            f"One of the processes that read files {how}, so there is no result.",
            hint="If this machine ran out of memory (dmesg says so), try again where there is more"
            " of it.",
        )

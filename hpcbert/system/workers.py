"""Long work: its progress, and one kind of work on many files, by processes on all available cores.

A command may install a listener for progress; without one, work is silent.

The outcome is that of one process: results in the order of the files, and the first of several
errors. If there is little work, or a lack of cores or processes, this process does the work.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpcbert.errors import HpcbertError
from hpcbert.system.processes import die_with_parent

T = TypeVar("T")
R = TypeVar("R")

# Receives what is worked on, the number that is done, and the number of all.
Listener = Callable[[str, int, int], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Send the reports of this thread to a listener until the context ends."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(activity: str, count: int, total: int) -> None:
    """Report that so many of all items are done."""
    if listener := _listener.get():
        listener(activity, count, total)


def track(items: Collection[T], activity: str) -> Iterator[T]:
    """Yield items, and report each that is done."""
    total = len(items)
    if total > 1:
        report(activity, 0, total)
    for number, item in enumerate(items, 1):
        yield item
        if total > 1:
            report(activity, number, total)


# --- Parallel processes ---------------------------------------------------------------------------

# The least work for one process, in bytes of a large log: starting it takes milliseconds.
MIN_BYTES = 1 << 25
# The cost of opening, reading and judging a file, in the same bytes.
BYTES_PER_FILE = 1 << 18
# Others use a login node too.
MAX_PROCESSES = 16
# Chunks per process: few enough to cost nothing, enough that all end at about the same time.
_CHUNKS = 8
# The work and its items in a worker, which inherits them: neither has to be pickled.
_inherited_work: list[Any] = []


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def map_in_parallel(
    work: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], activity: str = "reading logs"
) -> list[R]:
    """Return the results of some work on each item, in their order.

    Args:
        work: The work. It may run in another process: its changes there stay there.

    Raises:
        HpcbertError: A process was killed.
        Exception: The error of the first item for which the work raises one.
    """
    count = min(
        count_cores(),
        MAX_PROCESSES,
        (sum(sizes) + BYTES_PER_FILE * len(items)) // MIN_BYTES,
        len(items),
    )
    if count <= 1 or not _has_one_thread():
        return [work(item) for item in track(items, activity)]
    try:
        attempts = _run_in_parallel(work, items, count, activity)
    except OSError:  # No process can be started.
        return [work(item) for item in items]
    # An item that raised an error raises it again here, the first of several.
    return [
        result if succeeded else work(item)
        for (succeeded, result), item in zip(attempts, items, strict=True)
    ]


def _has_one_thread() -> bool:
    """Return whether a fork is safe: with threads, the child may wait forever for a lock."""
    with suppress(OSError):
        return len(list(Path("/proc/self/task").iterdir())) == 1
    return False


def _run_in_parallel(
    work: Callable[[T], R], items: Sequence[T], count: int, activity: str
) -> list[tuple[bool, Any]]:
    import multiprocessing
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

    chunk_size = max(1, len(items) // (count * _CHUNKS))
    context = multiprocessing.get_context("fork")
    initializer = partial(_initialize_worker, os.getpid(), work, items)
    with ProcessPoolExecutor(count, context, initializer=initializer) as pool:
        try:
            outcomes = pool.map(_attempt_item, range(len(items)), chunksize=chunk_size)
            return [next(outcomes) for _ in track(items, activity)]
        except BrokenProcessPool as error:
            raise HpcbertError(
                "One of the processes that read files was killed, so there is no result.",
                hint="If this machine ran out of memory (dmesg says so), try again where there is"
                " more of it.",
            ) from error
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _initialize_worker(parent: int, work: Callable[[T], R], items: Sequence[T]) -> None:
    """Prepare a worker: it ends with the command, which alone reacts to an interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent(parent, signal.SIGKILL)
    _inherited_work[:] = [work, items]


def _attempt_item(index: int) -> tuple[bool, Any]:
    work, items = _inherited_work
    try:
        return True, work(items[index])
    except Exception:  # noqa: BLE001 - the command itself raises it
        return False, None

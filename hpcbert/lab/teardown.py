"""Take a lab down, even if only parts of it are left."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbert.lab import network, people
from hpcbert.lab.namespaces import inside, is_daemon, marked
from hpcbert.lab.record import MARK, RECORD, UNFINISHED, load, locked
from hpcbert.lab.requirements import check_root
from hpcbert.system.files import mounts_below
from hpcbert.system.processes import boot_id, end

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcbert.lab.record import Lab
    from hpcbert.system.processes import Process
    from hpcbert.system.runner import Runner

_ROUNDS = 5
_END_TIMEOUT = 60.0


@dataclass(frozen=True)
class Removal:
    """The result of `down`.

    Attributes:
        ended: Number of ended processes.
        left: Remains, in words; empty if nothing is left.
    """

    ended: int = 0
    left: tuple[str, ...] = ()


def down(directory: Path, *, run: Runner, report: Callable[[str], None]) -> Removal:
    """End every process of a lab and remove all that it made, campaigns in its `runs` included.

    Works on a whole lab, on one that only partly came up, and on the remains after a reboot;
    without a lab, it does nothing.

    Raises:
        UsageError: This process is not root.
        CheckError: Another process is starting or ending this lab.
    """
    check_root()
    directory = directory.resolve()
    if not directory.is_dir():
        return Removal()
    with locked(directory):
        lab = load(directory)
        if lab is None:
            return _sweep(directory)
        # While the switch is alive, the link's name can't belong to another lab.
        network.unplug(lab, run)
        ended, left = _end_all(lab, report)
        left += network.remains(lab, run) + people.dismiss(lab, run)
        # While something is left, the record stays, so that another `down` can continue.
        return Removal(ended, left or _remove_files(lab, report))


def _sweep(directory: Path) -> Removal:
    """Remove the files of an `up` that was killed while it wrote its first record."""
    unfinished = tuple(directory.glob(UNFINISHED))
    for path in unfinished:
        path.unlink(missing_ok=True)
    if unfinished:
        _remove_if_empty(directory)
    return Removal()


def _end_all(lab: Lab, report: Callable[[str], None]) -> tuple[int, tuple[str, ...]]:
    """End all processes; return how many there were, and which are left, in words."""
    if lab.boot != boot_id():
        return 0, ()
    ended: set[Process] = set()
    for _ in range(_ROUNDS):
        processes = _members(lab)
        if not processes:
            return len(ended), ()
        report(f"ending {len(processes)} processes")
        ended |= processes
        end(processes, timeout=_END_TIMEOUT)
    return len(ended), tuple(f"process {each.pid}" for each in _members(lab))


def _members(lab: Lab) -> set[Process]:
    """Find the lab's living processes: marked, recorded daemons, or in a namespace of a node."""
    # A daemon may write its title over its environment; hosts keep theirs.
    daemons = {one for one in lab.daemons.values() if one and one.alive and is_daemon(one)}
    ours = daemons | set(marked(f"{MARK}={lab.mark}"))
    return ours | set(inside(ours))


def _remove_files(lab: Lab, report: Callable[[str], None]) -> tuple[str, ...]:
    """Remove the files, the record last; return what is left."""
    mounts = tuple(f"mount {mount}" for mount in mounts_below(lab.root))
    if mounts:
        return mounts
    report(f"removing {lab.root}")
    record = lab.directory / RECORD
    outside = lab.root != lab.directory
    entries = (lab.root,) if outside else (e for e in lab.directory.iterdir() if e != record)
    left = tuple(complaint for entry in entries if (complaint := _remove(entry)))
    if left:
        return left
    for path in (record, *lab.directory.glob(UNFINISHED)):
        path.unlink(missing_ok=True)
    for directory in reversed(lab.made):
        _remove_if_empty(directory)
    if lab.directory in lab.made and lab.directory.exists():
        return (f"{lab.directory}: it holds files of others",)
    return ()


def _remove(path: Path) -> str:
    """Remove a file or a tree; return what could not be removed and why, or an empty text."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error)
    return ""


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()

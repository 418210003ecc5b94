"""The lock of a campaign: one writer at a time, on whichever host and in whichever container.

The lock is a file that `link` makes whole; on NFS too `link` is atomic. The file names its holder
by host name, process id, start of the process in clock ticks since the machine's boot (whatever the
time namespace), boot id, inode of the PID namespace and machine id. A holder can be found dead only
from the same boot and PID namespace, where ids mean the same (pid_namespaces(7)). Two containers on
one host may have the same host name, and neither sees the other's processes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.errors import UsageError
from hpcbert.system import files
from hpcbert.system.processes import boot_id, lives, started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCK = "lock"
# Inode of the PID namespace that a machine boots with (torvalds/linux, include/linux/proc_ns.h,
# PROC_PID_INIT_INO).
_FIRST_NAMESPACE = "4026531836"
# In place of an unreadable value: a word, so that the other fields keep their places.
_UNKNOWN = "-"
# The most bytes of a lock; somebody else's file may hold anything.
_MOST = 4096


class Holder(NamedTuple):
    """The holder of a lock.

    Attributes:
        host: Host name.
        pid: Process id in its namespace.
        born: When the process was started, clock ticks since boot; empty: not recorded.
        boot: Boot id of the kernel; empty in locks written before hpcbert recorded it.
        namespace: Inode of the PID namespace.
        machine: The machine's id, `/etc/machine-id`.
    """

    host: str = ""
    pid: str = ""
    born: str = ""
    boot: str = ""
    namespace: str = ""
    machine: str = ""


def here() -> Holder:
    """Return this process as the holder of a lock."""
    return Holder(
        host=os.uname().nodename,
        pid=str(os.getpid()),
        born=str(started(os.getpid()) or _UNKNOWN),
        boot=boot_id() or _UNKNOWN,
        namespace=_word(lambda: Path("/proc/self/ns/pid").stat().st_ino),
        machine=_word(lambda: Path("/etc/machine-id").read_text(encoding="utf-8")),
    )


def _word(look: Callable[[], object]) -> str:
    try:
        return str(look()).strip() or _UNKNOWN
    except (OSError, ValueError):
        return _UNKNOWN


def wait(handle: int, *, patient: Callable[[], bool], pause: float = 0.05) -> bool:
    """Lock an open file or directory, waiting for it; the kernel unlocks it when the process ends.

    It works between hosts only if the file system supports that; most NFS does not.

    Args:
        handle: Its descriptor; closing it ends the lock.
        patient: Whether to wait while another process has it.
        pause: Seconds between two tries.

    Returns:
        Whether it is locked now.

    Raises:
        OSError: The file system has no locks.
    """
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if not patient():
            return False
        time.sleep(pause)


@contextlib.contextmanager
def locked(directory: Path, what: str = "campaign") -> Iterator[None]:
    """Lock a campaign for one writer; take over the lock of a dead holder.

    Args:
        directory: The directory of the lock.
        what: The name of the locked thing, if that is not a campaign.

    Raises:
        UsageError: Somebody else is, or may be, working on it.
        HpcbertError: The directory can't be written to.
    """
    path = directory / LOCK
    holder = " ".join(here()) + "\n"
    if not _take(path, holder, what):
        _refuse_unless_dead(path, what)
        _take_over(path, holder, what)
    try:
        yield
    finally:
        # If that fails, another process takes the lock over later, because this process is gone.
        with contextlib.suppress(OSError):
            path.unlink()


def _take(path: Path, holder: str, what: str) -> bool:
    """Make the lock with its holder; return whether it was free."""
    own = files.temporary_for(path)
    with files.refusal(f"lock the {what}", path):
        try:
            files.write_through(own, holder.encode())
            _link(own, path)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(OSError):
                own.unlink()
    return True


def _link(own: Path, path: Path) -> None:
    try:
        os.link(own, path)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}:
            raise
        # There are no hard links here: make it in place. A process killed in between leaves it
        # empty.
        files.write_through(path, own.read_bytes())


def _take_over(path: Path, holder: str, what: str) -> None:
    """Replace the lock of a holder that is gone; if several processes try, one gets it."""
    with (path.with_name(f".{path.name}.takeover")).open("w") as file:
        with contextlib.suppress(OSError):
            wait(file.fileno(), patient=lambda: True)
        while True:
            _refuse_unless_dead(path, what)
            path.unlink(missing_ok=True)
            if _take(path, holder, what):
                return


def _refuse_unless_dead(path: Path, what: str) -> None:
    """Refuse to continue while the holder of a lock lives, or can't be checked from here."""
    try:
        with path.open("rb") as file:
            words = file.read(_MOST).decode("utf-8", "replace").split()
    except FileNotFoundError:
        return
    holder = Holder(*words[: len(Holder._fields)])
    unseen = _unseen(holder, here())
    if unseen is None:
        dated = holder.born.lstrip("-").isdecimal()
        if not (lives(holder.pid, int(holder.born)) if dated else started(holder.pid)):
            return
    raise UsageError(
        f"Process {holder.pid or '?'} on {holder.host or 'an unknown host'} is working on this "
        f"{what}{unseen or ''}.",
        where=str(path),
        hint=f"Wait for it. If it has certainly ended, remove {path}.",
    )


def _unseen(holder: Holder, own: Holder) -> str | None:
    """Return why a holder can't be checked from here; None if it can, or if it surely ended.

    After another boot of the machine, its earlier processes are gone. Only in its first PID
    namespace is it known to be the same machine: containers of one image can share all names.
    """
    if holder.host != own.host or not holder.pid:
        return ""
    if not holder.boot:  # A lock of an older hpcbert, which compared only the host name.
        return None
    if holder.boot != own.boot or _UNKNOWN in {holder.boot, holder.namespace}:
        first = holder.namespace == own.namespace == _FIRST_NAMESPACE
        same = holder.machine == own.machine != _UNKNOWN and holder.boot != _UNKNOWN
        return None if first and same else ", or was: that is another machine with the same name"
    if holder.namespace != own.namespace:
        return ", or was: this process can't see into its container (another PID namespace)"
    return None

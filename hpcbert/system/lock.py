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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hpcbert.errors import UsageError
from hpcbert.system import files
from hpcbert.system.processes import boot_id, is_alive, read_start_time

LOCK = "lock"
# Inode of the PID namespace that a machine boots with (torvalds/linux, include/linux/proc_ns.h,
# PROC_PID_INIT_INO).
_FIRST_NAMESPACE = "4026531836"
# In place of an unreadable value: a word, so that the other fields keep their places.
_UNKNOWN = "-"
# The most bytes of a lock; somebody else's file may hold anything.
_MAX_BYTES = 4096


class Holder(NamedTuple):
    """The holder of a lock.

    Attributes:
        born: When the process was started, clock ticks since boot.
        boot: Boot id of the kernel; empty: not recorded.
        namespace: Inode of the PID namespace.
    """

    host: str = ""
    pid: str = ""
    born: str = ""
    boot: str = ""
    namespace: str = ""
    machine: str = ""


def current_holder() -> Holder:
    """Return this process as the holder of a lock."""
    namespace = machine = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    with contextlib.suppress(OSError, ValueError):
        machine = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
    return Holder(
        host=os.uname().nodename,
        pid=str(os.getpid()),
        born=str(read_start_time(os.getpid()) or _UNKNOWN),
        boot=boot_id() or _UNKNOWN,
        namespace=namespace or _UNKNOWN,
        machine=machine or _UNKNOWN,
    )


def lock_descriptor(
    descriptor: int, *, may_wait: Callable[[], bool], seconds: float = 0.05
) -> bool:
    """Lock an open file or directory, waiting for it; the kernel unlocks it when the process ends.

    It works between hosts only if the file system supports that; most NFS does not.

    Args:
        descriptor: Its descriptor; closing it ends the lock.

    Raises:
        OSError: The file system has no locks.
    """
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if not may_wait():
            return False
        time.sleep(seconds)


@contextlib.contextmanager
def hold_lock(directory: Path, subject: str = "campaign", name: str = LOCK) -> Iterator[None]:
    """Lock a campaign for one writer; take over the lock of a dead holder.

    Raises:
        UsageError: Somebody else is, or may be, working on it.
        HpcbertError: The directory can't be written to.
    """
    path = directory / name
    record = " ".join(current_holder()) + "\n"
    if not _create_lock(path, record, subject):
        _refuse_unless_dead(path, subject)
        _replace_dead_lock(path, record, subject)
    try:
        yield
    finally:
        # If that fails, another process takes the lock over later, because this process is gone.
        with contextlib.suppress(OSError):
            path.unlink()


def _create_lock(path: Path, record: str, subject: str) -> bool:
    """Make the lock with its holder; return whether it was free."""
    temporary = files.temporary_for(path)
    with files.translate_errors(f"lock the {subject}", path):
        try:
            files.write_through(temporary, record.encode())
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}:
                raise
            # There are no hard links here: make it in place. A process killed in between leaves it
            # empty.
            with contextlib.suppress(FileExistsError):
                files.write_through(path, record.encode())
                return True
            return False
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    return True


def _replace_dead_lock(path: Path, record: str, subject: str) -> None:
    """Replace the lock of a holder that is gone; if several processes try, one gets it."""
    with (path.with_name(f".{path.name}.takeover")).open("w") as file:
        with contextlib.suppress(OSError):
            lock_descriptor(file.fileno(), may_wait=lambda: True)
        while True:
            _refuse_unless_dead(path, subject)
            path.unlink(missing_ok=True)
            if _create_lock(path, record, subject):
                return


def _refuse_unless_dead(path: Path, subject: str) -> None:
    """Refuse to continue while the holder of a lock lives, or can't be checked from here."""
    try:
        with path.open("rb") as file:
            words = file.read(_MAX_BYTES).decode("utf-8", "replace").split()
    except FileNotFoundError:
        return
    holder = Holder(*words[: len(Holder._fields)])
    obstacle = _explain_unverifiable(holder, current_holder())
    if obstacle is None:
        is_running = bool(read_start_time(holder.pid))
        if holder.born.lstrip("-").isdecimal():
            is_running = is_alive(holder.pid, int(holder.born))
        if not is_running:
            return
    raise UsageError(
        f"Process {holder.pid or '?'} on {holder.host or 'an unknown host'} is working on this "
        f"{subject}{obstacle or ''}.",
        where=str(path),
        hint=f"Wait for it. If it has certainly ended, remove {path}.",
    )


def _explain_unverifiable(holder: Holder, this_process: Holder) -> str | None:
    """Return a clause if a holder can't be checked from here; empty if on another host.

    None if it can be checked, or has surely ended.

    After another boot of the machine, its earlier processes are gone. Only in its first PID
    namespace is it known to be the same machine: containers of one image can share all names.
    """
    if holder.host != this_process.host or not holder.pid:
        return ""
    if not holder.boot:  # Only host and process are recorded.
        return None
    if holder.boot != this_process.boot or _UNKNOWN in {holder.boot, holder.namespace}:
        is_first_namespace = holder.namespace == this_process.namespace == _FIRST_NAMESPACE
        is_same_machine = holder.machine == this_process.machine != _UNKNOWN
        if is_first_namespace and is_same_machine and holder.boot != _UNKNOWN:
            return None
        return ", or was: that is another machine with the same name"
    if holder.namespace != this_process.namespace:
        return ", or was: this process can't see into its container (another PID namespace)"
    return None

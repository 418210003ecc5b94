"""System calls that Python 3.10 has no name for."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUSER = 0x20000, 0x2000000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_RELATIME = 0x20, 0x400, 1 << 21
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 0x1000, 0x4000, 1 << 18, 1 << 19
MNT_DETACH = 2
PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _text(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    call = (_text(source), _text(target), _text(kind), ctypes.c_ulong(flags), _text(data or None))
    _call("mount", *call)


def umount(target: str) -> None:
    _call("umount2", _text(target), MNT_DETACH)


def unshare(flags: int) -> None:
    _call("unshare", flags)


def join(pid: str, *kinds: str) -> None:
    """Enter namespaces of another process: `user`, `mnt`, `cgroup`."""
    flags = {"user": CLONE_NEWUSER, "mnt": CLONE_NEWNS, "cgroup": CLONE_NEWCGROUP}
    mine, theirs = (
        {kind: Path("/proc", who, "ns", kind) for kind in kinds} for who in ("self", pid)
    )
    foreign_kinds = [kind for kind in kinds if mine[kind].readlink() != theirs[kind].readlink()]
    spaces = [(os.open(theirs[kind], os.O_RDONLY), flags[kind]) for kind in foreign_kinds]
    for space, flag in spaces:
        _call("setns", space, flag)


def forbid_new_privileges() -> None:
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def enter_root(rootfs: str) -> None:
    """Make a directory that is a mount point the root of this mount namespace (pivot_root(2))."""
    old, new = (os.open(path, os.O_PATH | os.O_DIRECTORY) for path in ("/", rootfs))
    os.fchdir(new)
    _call("pivot_root", b".", b".")
    os.fchdir(old)
    mount(None, ".", None, MS_REC | MS_SLAVE)
    umount(".")
    os.fchdir(new)
    os.chroot(".")
    os.close(old)
    os.close(new)

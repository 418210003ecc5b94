"""fstab lines as enroot reads them, carried out inside a rootfs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.containers.enroot_stand_in import kernel

_SET = {
    "bind": kernel.MS_BIND,
    "rbind": kernel.MS_BIND | kernel.MS_REC,
    "ro": kernel.MS_RDONLY,
    "nosuid": kernel.MS_NOSUID,
    "nodev": kernel.MS_NODEV,
    "noexec": kernel.MS_NOEXEC,
    "remount": kernel.MS_REMOUNT,
    "silent": kernel.MS_SILENT,
    "noatime": kernel.MS_NOATIME,
    "relatime": kernel.MS_RELATIME,
    "strictatime": kernel.MS_STRICTATIME,
    "x-move": kernel.MS_MOVE,
}
_CLEAR = {
    "rw": kernel.MS_RDONLY,
    "suid": kernel.MS_NOSUID,
    "dev": kernel.MS_NODEV,
    "exec": kernel.MS_NOEXEC,
    "atime": kernel.MS_NOATIME,
}
_PROPAGATION = {
    f"{depth}{name}": flag | (kernel.MS_REC if depth else 0)
    for depth in ("", "r")
    for name, flag in {
        "shared": kernel.MS_SHARED,
        "slave": kernel.MS_SLAVE,
        "private": kernel.MS_PRIVATE,
        "unbindable": kernel.MS_UNBINDABLE,
    }.items()
}
_NO_MEANING = {"auto", "defaults", "nofail", "user", "users", "x-detach"}
_CREATE = re.compile(r"x-create=(file|dir|auto)")
# Flags that a mount made outside a user namespace keeps inside it (mount_namespaces(7)).
_LOCKED = {
    os.ST_NOSUID: kernel.MS_NOSUID,
    os.ST_NODEV: kernel.MS_NODEV,
    os.ST_NOEXEC: kernel.MS_NOEXEC,
    os.ST_RDONLY: kernel.MS_RDONLY,
    os.ST_NOATIME: kernel.MS_NOATIME,
    os.ST_RELATIME: kernel.MS_RELATIME,
}
_DEPTH = 40


class Entry(NamedTuple):
    """One line: source, target, file system type, options."""

    source: str
    target: str
    kind: str
    options: tuple[str, ...]

    def said(self, name: str) -> bool:
        return name in self.options


def parse(line: str) -> Entry | None:
    """Read one line; parts that are left out are guessed as enroot does."""
    words = [_unescape(word) for word in line.partition("#")[0].split()]
    if not words:
        return None
    while words[-1].lstrip("-").isdigit():
        words.pop()
    options: str | None = None
    if len(words) > 1 and len(words) < 4 and _is_options(words[-1]):
        options = words.pop()
    elif len(words) > 3:
        options = words[3]
    source, target, kind = (*words, "", "", "")[:3]
    if source == "tmpfs":
        kind = "tmpfs"
    elif options is None and kind in ("", "none"):
        options = "rbind,x-create=auto"
    parts = tuple(part for part in (options or "").split(",") if part)
    return Entry(source, target if target not in ("", "none") else source, kind or "none", parts)


def carry_out(rootfs: str, lines: Iterable[str]) -> None:
    """Mount all lines below a root, or end this process at the first that fails without `nofail`."""
    for line in lines:
        entry = parse(line)
        if entry is None:
            continue
        target = resolve(rootfs, entry.target)
        try:
            _create(entry, target)
            _mount(entry, target)
        except OSError as error:
            what = "unmount" if entry.said("x-detach") else "mount"
            text = f"failed to {what}: {entry.source} at {target}: {error.strerror}"
            if not entry.said("nofail"):
                sys.exit(f"enroot-mount: {text}")
            if not entry.said("silent"):
                sys.stderr.write(f"enroot-mount: {text}\n")


def resolve(root: str, path: str) -> str:
    """Resolve a path as if `root` were /, so that no link leads out of it."""
    done: list[str] = []
    left = path.split("/")[::-1]
    links = 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not done:
                sys.exit(
                    f"enroot-mount: failed to resolve path: {root}{path}: Invalid cross-device link"
                )
            done.pop()
            continue
        here = "/".join([root, *done, part])
        if not Path(here).is_symlink():
            done.append(part)
            continue
        links += 1
        if links > _DEPTH:
            sys.exit(
                f"enroot-mount: failed to resolve path: {root}{path}: Too many levels of symbolic links"
            )
        link = str(Path(here).readlink())
        if link.startswith("/"):
            done = []
        left += link.split("/")[::-1]
    return "/".join([root, *done])


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def _is_options(word: str) -> bool:
    known = {*_SET, *_CLEAR, *_PROPAGATION, *_NO_MEANING}
    return "," in word or word in known or _CREATE.fullmatch(word) is not None


def _create(entry: Entry, target: str) -> None:
    wanted = next((match[1] for o in entry.options if (match := _CREATE.fullmatch(o))), "")
    if wanted == "auto":
        source = Path(entry.source)
        binds = entry.said("bind") or entry.said("rbind")
        if binds and not source.exists():
            return
        wanted = "file" if binds and not source.is_dir() else "dir"
    path = Path(target)
    if wanted == "dir":
        path.mkdir(parents=True, exist_ok=True)
    elif wanted == "file" and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _mount(entry: Entry, target: str) -> None:
    if entry.said("x-detach"):
        kernel.umount(target)
        return
    flags, data = _flags(entry)
    kind = None if entry.kind == "none" else entry.kind
    if kind is not None or flags & ~(kernel.MS_REC | kernel.MS_SILENT):
        kept = _kept(target if flags & kernel.MS_REMOUNT else entry.source, flags)
        flags |= kept
        kernel.mount(entry.source, target, kind, flags, data)
        if flags & kernel.MS_BIND and not flags & kernel.MS_REMOUNT:
            kernel.mount(None, target, None, flags | kernel.MS_REMOUNT, data)
    for option in entry.options:
        if option in _PROPAGATION:
            kernel.mount(None, target, None, _PROPAGATION[option])


def _kept(path: str, flags: int) -> int:
    if not flags & (kernel.MS_REMOUNT | kernel.MS_BIND):
        return 0
    try:
        found = os.statvfs(path).f_flag
    except OSError:
        return 0
    return sum(flag for seen, flag in _LOCKED.items() if found & seen)


def _flags(entry: Entry) -> tuple[int, str]:
    flags, data = 0, []
    for option in entry.options:
        if option in _SET:
            flags |= _SET[option]
        elif option in _CLEAR:
            flags &= ~_CLEAR[option]
        elif option not in _PROPAGATION and option not in _NO_MEANING and not _CREATE.match(option):
            data.append(option)
    return flags, ",".join(data)

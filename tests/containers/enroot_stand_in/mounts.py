"""fstab lines as enroot reads them, carried out inside a rootfs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.containers.enroot_stand_in import kernel

_FLAGS = {
    "bind": kernel.MS_BIND,
    "rbind": kernel.MS_BIND | kernel.MS_REC,
    "ro": kernel.MS_RDONLY,
    "nosuid": kernel.MS_NOSUID,
    "nodev": kernel.MS_NODEV,
    "noexec": kernel.MS_NOEXEC,
    "remount": kernel.MS_REMOUNT,
}
_PROPAGATION = {
    "private": kernel.MS_PRIVATE,
    "slave": kernel.MS_SLAVE,
    "rslave": kernel.MS_SLAVE | kernel.MS_REC,
}
_OTHERS = re.compile(r"rw|nofail|x-detach|x-create=(file|dir|auto)")
# Flags that a mount made outside a user namespace keeps inside it (mount_namespaces(7)).
_LOCKED = {
    os.ST_NOSUID: kernel.MS_NOSUID,
    os.ST_NODEV: kernel.MS_NODEV,
    os.ST_NOEXEC: kernel.MS_NOEXEC,
    os.ST_RDONLY: kernel.MS_RDONLY,
    os.ST_NOATIME: kernel.MS_NOATIME,
    os.ST_RELATIME: kernel.MS_RELATIME,
}


class Entry(NamedTuple):
    """One line: source, target, file system type, options."""

    source: str
    target: str
    kind: str
    options: tuple[str, ...]


def _is_known(option: str) -> bool:
    return option in {*_FLAGS, *_PROPAGATION} or _OTHERS.fullmatch(option) is not None


def parse(line: str) -> Entry | None:
    """Read one line; parts that are left out are guessed as enroot does."""
    octal = re.compile(r"\\([0-7]{3})")
    words = [
        octal.sub(lambda it: chr(int(it[1], 8)), word)
        for word in line.split("#", maxsplit=1)[0].split()
    ]
    if not words:
        return None
    options = words[3] if len(words) > 3 else None
    if 1 < len(words) < 4 and ("," in words[-1] or _is_known(words[-1])):
        options = words.pop()
    source, target, kind = (*words, "", "")[:3]
    kind = "tmpfs" if source == "tmpfs" else kind or "none"
    if options is None and kind == "none":
        options = "rbind,x-create=auto"
    parts = tuple((options or "").split(",")) if options else ()
    return Entry(source, target if target not in ("", "none") else source, kind, parts)


def carry_out(rootfs: str, lines: Iterable[str]) -> None:
    """Mount all lines below a root, or end this process at the first that fails without `nofail`."""
    for entry in filter(None, map(parse, lines)):
        target = resolve(rootfs, entry.target)
        try:
            _create(entry, target)
            _mount(entry, target)
        except OSError as error:
            text = f"enroot-mount: failed: {entry.source} at {target}: {error.strerror}"
            if "nofail" not in entry.options:
                sys.exit(text)
            sys.stderr.write(f"{text}\n")


def resolve(root: str, path: str) -> str:
    """Resolve a path as if `root` were /, so that no link leads out of it."""
    parts: list[str] = []
    words = path.split("/")[::-1]
    while words:
        part = words.pop()
        candidate = Path("/".join([root, *parts, part]))
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", ".") and candidate.is_symlink():
            link = str(candidate.readlink())
            parts = [] if link.startswith("/") else parts
            words += link.split("/")[::-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join([root, *parts])


def _create(entry: Entry, target: str) -> None:
    kind = next((o.partition("=")[2] for o in entry.options if o.startswith("x-create=")), "")
    if kind == "auto":
        source = Path(entry.source)
        binds = bool({"bind", "rbind"} & {*entry.options})
        if binds and not source.exists():
            return
        kind = "file" if binds and not source.is_dir() else "dir"
    path = Path(target)
    if kind == "dir":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "file" and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _mount(entry: Entry, target: str) -> None:
    if "x-detach" in entry.options:
        kernel.umount(target)
        return
    flags = 0
    for option in entry.options:
        flags |= _FLAGS.get(option, 0)
    data = ",".join(option for option in entry.options if not _is_known(option))
    kind = None if entry.kind == "none" else entry.kind
    if kind is not None or flags & ~kernel.MS_REC:
        flags |= _kept(target if flags & kernel.MS_REMOUNT else entry.source, flags)
        kernel.mount(entry.source, target, kind, flags, data)
        if flags & kernel.MS_BIND and not flags & kernel.MS_REMOUNT:
            kernel.mount(None, target, None, flags | kernel.MS_REMOUNT, data)
    for option in entry.options:
        if option in _PROPAGATION:
            kernel.mount(None, target, None, _PROPAGATION[option])


def _kept(path: str, flags: int) -> int:
    if not flags & (kernel.MS_REMOUNT | kernel.MS_BIND) or not Path(path).exists():
        return 0
    f_flag = os.statvfs(path).f_flag
    return sum(flag for statvfs_flag, flag in _LOCKED.items() if f_flag & statvfs_flag)

"""ENROOT_* settings, and how enroot speaks of what went wrong."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NoReturn

# An option's values, in their order.
Options = dict[str, list[str]]
_OFF = re.compile(r"no?|N[oO]?|[fF](alse)?|FALSE")


def log(text: str, level: str = "INFO") -> None:
    sys.stderr.write(f"[{level}] {text}\n")
    sys.stderr.flush()


def fail(text: str) -> NoReturn:
    log(text, "ERROR")
    sys.exit(1)


class Settings:
    """What the environment says, with enroot's defaults; the four directories are made at once."""

    def __init__(self) -> None:
        home = os.environ.get("HOME") or str(Path("~").expanduser())
        self.runtime = _path("RUNTIME", os.environ.get("XDG_RUNTIME_DIR") or "/run")
        self.config = _path("CONFIG", os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config")
        self.cache = _path("CACHE", os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache")
        self.data = _path("DATA", os.environ.get("XDG_DATA_HOME") or f"{home}/.local/share")
        self.temp = Path(os.environ.get("ENROOT_TEMP_PATH") or os.environ.get("TMPDIR") or "/tmp")
        self.processors = os.environ.get("ENROOT_MAX_PROCESSORS") or str(os.cpu_count())
        squash = os.environ.get("ENROOT_SQUASH_OPTIONS") or "-comp lzo -noD -exit-on-error"
        self.squash_options = squash.split()
        before = os.umask(0o077)
        try:
            for path in (self.cache, self.data, self.runtime):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"mkdir: cannot create directory '{error.filename}': {error.strerror}")
        os.umask(before)

    def on(self, name: str, default: str = "false") -> bool:
        """Tell whether a boolean is on: only n, no, f, false and their like switch one off."""
        return not _OFF.fullmatch(os.environ.get(f"ENROOT_{name}") or default)

    def rootfs(self, name: str) -> Path:
        if not name or "/" in name:
            fail(f"Invalid argument: {name}")
        return self.data.resolve() / name

    def existing(self, name: str) -> Path:
        rootfs = self.rootfs(name)
        if not rootfs.is_dir():
            fail(f"No such file or directory: {rootfs}")
        return rootfs

    def free(self, path: Path) -> None:
        """Make sure that nothing is in the way of an output."""
        if path.exists():
            fail(f"File already exists: {path}")


def _path(name: str, base: str) -> Path:
    return Path(os.environ.get(f"ENROOT_{name}_PATH") or f"{base}/enroot")


def remove_all(path: Path) -> None:
    """Remove a file or a tree, whatever modes an image gave its directories."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    open_up(path)
    import shutil

    shutil.rmtree(path)


def open_up(tree: Path) -> None:
    """Let the owner do with all directories of a tree what owners do."""
    tree.chmod(tree.stat().st_mode | 0o700)
    for folder, names, _ in os.walk(tree):
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o700)

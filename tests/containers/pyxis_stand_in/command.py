"""`srun` with the options of pyxis."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_TEXTS = ("image", "workdir", "name")
_LISTS = ("mounts", "env")
_SWITCHES = {
    "container-mount-home": ("mount_home", True),
    "no-container-mount-home": ("mount_home", False),
    "container-remap-root": ("remap_root", True),
    "no-container-remap-root": ("remap_root", False),
    "container-entrypoint": ("entrypoint", True),
    "no-container-entrypoint": ("entrypoint", False),
    "container-writable": ("writable", True),
    "container-readonly": ("writable", False),
}
_DEFAULTS = {"tmpfs": "x-create=dir", "umount": "x-detach"}
_NAME_FLAGS = ("auto", "create", "exec", "no_exec")
# srun's short options that take a value.
_SHORT = set("ABCDFGJLMNPRSTWcdeimnopqrtwx")


@dataclass
class Container:
    """What the options ask for; None: not said, so that enroot's own setting holds."""

    image: str = ""
    workdir: str = ""
    name: str = ""
    mounts: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    env: list[str] = dataclasses.field(default_factory=list)
    mount_home: bool | None = None
    remap_root: bool | None = None
    entrypoint: bool | None = None
    writable: bool | None = None


def main(argv: list[str]) -> NoReturn:
    # The interpreter may have set LC_CTYPE for itself; the job must not see that.
    block = Path("/proc/self/environ").read_bytes()
    environment = dict(
        os.fsdecode(entry).split("=", 1) for entry in block.split(b"\0") if b"=" in entry
    )
    srun = _real_srun(environment)
    if "--help" in argv:
        subprocess.run([srun, *argv], check=False)
        for option in (*_TEXTS, *_LISTS):
            sys.stdout.write(f"      --container-{option}=[pyxis] see its manual\n")
        for option in _SWITCHES:
            sys.stdout.write(f"      --{option}  [pyxis] see its manual\n")
        sys.exit(0)
    container, options, command = _split(argv)
    if not container.image and not container.name:
        _say_what_is_ignored(container)
        os.execve(srun, [srun, *options, *command], environment)
    here = Path(sys.argv[0]).resolve().parent
    words = [f"--task-epilog={here / 'task-exit'}", str(here / "task-init")]
    said = json.dumps(dataclasses.asdict(container))
    os.execve(srun, [srun, *options, *words, said, *command], environment)


def fail(text: str) -> NoReturn:
    sys.stderr.write(f"srun: error: pyxis: {text}\n")
    sys.exit(1)


def _real_srun(environment: dict[str, str]) -> str:
    own = Path(sys.argv[0]).resolve().parent
    folders = environment.get("PATH", os.defpath).split(":")
    rest = ":".join(each for each in folders if Path(each).resolve() != own)
    return shutil.which("srun", path=rest) or fail("no srun to stand before")


def _split(argv: list[str]) -> tuple[Container, list[str], list[str]]:
    """Take pyxis' options out of srun's; the command begins at the first word that is none."""
    container = Container()
    options: list[str] = []
    words = argv[::-1]
    while words and words[-1].startswith("-"):
        word = words.pop()
        if word == "--":
            break
        name, equals, value = word.removeprefix("--").partition("=")
        short = name.removeprefix("container-")
        if word.startswith("--") and name in _SWITCHES:
            _switch(container, *_SWITCHES[name])
        elif word.startswith("--container-") and short in (*_TEXTS, *_LISTS):
            _take(container, short, value if equals else words.pop())
        elif len(word) == 2 and word[1] in _SHORT and words:
            options += [word, words.pop()]
        else:
            options.append(word)
    return container, options, words[::-1]


def _switch(container: Container, field: str, on: bool) -> None:
    if getattr(container, field) not in (None, on):
        both = [f"--{name}" for name, (which, _) in _SWITCHES.items() if which == field]
        fail(f"both {both[0]} and {both[1]} were specified")
    setattr(container, field, on)


def _take(container: Container, option: str, value: str) -> None:
    if not value:
        fail(f"--container-{option}: argument required")
    if option == "mounts":
        for each in value.split(","):
            mount = _mount(each)
            if mount not in container.mounts:
                container.mounts.append(mount)
        return
    if option == "env":
        if not all(value.split(",")):
            fail(f"--container-env: invalid format: {value}")
        container.env = list(dict.fromkeys([*container.env, *value.split(",")]))
        return
    if getattr(container, option) not in ("", value):
        fail(f"--container-{option} specified multiple times")
    if option == "name" and value.partition(":")[2] not in ("", *_NAME_FLAGS):
        fail('--container-name: flag must be "auto", "create", "exec" or "no_exec"')
    setattr(container, option, value)


def _mount(text: str) -> tuple[str, str, str]:
    source, *rest = text.split(":", 2)
    target = rest[0] if rest else source
    if not source or not target:
        fail(f"--container-mounts: invalid format: {text}")
    if source not in _DEFAULTS and source[0] not in "./":
        fail('mount source must be a relative path, an absolute path, "tmpfs" or "umount"')
    if target[0] not in "./":
        fail("mount target must be a relative path or an absolute path")
    flags = [_DEFAULTS.get(source, "x-create=auto,rbind")]
    flags += [rest[1].replace("+", ",")] if rest[1:] and rest[1] else []
    return source, target, ",".join(flags)


def _say_what_is_ignored(container: Container) -> None:
    said = {
        "container-mounts": bool(container.mounts),
        "container-workdir": bool(container.workdir),
        "[no-]container-mount-home": container.mount_home is not None,
        "[no-]container-remap-root": container.remap_root is not None,
        "[no-]container-entrypoint": container.entrypoint is not None,
        "container-readonly": container.writable is False,
        "container-writable": container.writable is True,
    }
    for option in (option for option, was in said.items() if was):
        why = "because neither --container-image nor --container-name is set"
        sys.stderr.write(f"srun: error: pyxis: ignoring --{option} {why}\n")

"""`srun` with the options of pyxis."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from tests.containers.pyxis_stand_in.task import environment_of

_TEXTS = ("image", "workdir", "name", "mounts", "env")
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
# srun's short options that take a value.
_SHORT = set("ABCDFGJLMNPRSTWcdeimnopqrtwx")

# What the options ask for; a switch that is not said is missing: enroot's own setting holds.
Container = dict[str, Any]


def main(argv: list[str]) -> NoReturn:
    # The interpreter may have set LC_CTYPE for itself; the job must not see that.
    environment = environment_of("self")
    path = Path(sys.argv[0]).resolve().parent
    folders = environment.get("PATH", os.defpath).split(":")
    text = ":".join(folder for folder in folders if Path(folder).resolve() != path)
    srun = shutil.which("srun", path=text)
    if srun is None:
        sys.exit("srun: error: pyxis: no srun to stand before")
    if "--help" in argv:
        subprocess.run([srun, *argv], check=False)
        names = (*(f"container-{name}=[pyxis]" for name in _TEXTS), *_SWITCHES)
        sys.stdout.write("".join(f"      --{name}  see pyxis' manual\n" for name in names))
        sys.exit(0)
    container, options, command = _split(argv)
    if "name" in container:
        options += [f"--task-epilog={path / 'task-exit'}", str(path / "task-init")]
        options.append(json.dumps(container))
    os.execve(srun, [srun, *options, *command], environment)


def _split(argv: list[str]) -> tuple[Container, list[str], list[str]]:
    """Take pyxis' options out of srun's; the command begins at the first word that is none."""
    container: Container = {"mounts": [], "env": [], "workdir": "", "image": ""}
    options: list[str] = []
    words = argv[::-1]
    while words and words[-1].startswith("-"):
        word = words.pop()
        if word == "--":
            break
        name, equals, value = word.removeprefix("--").partition("=")
        short = name.removeprefix("container-")
        if word.startswith("--") and name in _SWITCHES:
            field, on = _SWITCHES[name]
            container[field] = on
        elif word.startswith("--container-") and short in _TEXTS:
            container[short] = _read(short, value if equals else words.pop())
        else:
            options.append(word)
            if len(word) == 2 and word[1] in _SHORT and words:
                options.append(words.pop())
    return container, options, words[::-1]


def _read(option: str, value: str) -> Any:
    if option == "mounts":
        return [_mount(*word.split(":", 2)) for word in value.split(",")]
    return value.split(",") if option == "env" else value


def _mount(source: str, target: str = "", more: str = "") -> list[str]:
    flags = _DEFAULTS.get(source, "x-create=auto,rbind")
    return [source, target or source, f"{flags},{more.replace('+', ',')}".rstrip(",")]

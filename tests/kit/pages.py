"""Pages that write files and type commands, followed word by word."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from hpcbert.system.runner import run
from tests.kit.paths import REPOSITORY
from tests.kit.scripts import tool
from tests.kit.waiting import CEILING

_STEP = re.compile(r"(?:^<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# hpcbert on the path, as a person has it.
HPCBERT = {"hpcbert": f'#!/bin/bash\nexec {shlex.quote(sys.executable)} -m hpcbert "$@"\n'}


def read_steps(page: str, *, end: str = "\0") -> list[tuple[str, str, str]]:
    """Return the blocks of a page before a heading: a file's name or none, language, text."""
    text = (REPOSITORY / "docs/how-to" / page).read_text(encoding="utf-8")
    return _STEP.findall(text.partition(end)[0])


def write_files(steps: list[tuple[str, str, str]], place: Path) -> None:
    """Write the files of a page."""
    for name, _, block in steps:
        if name:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(block, encoding="utf-8")


def type_commands(
    words: str, place: Path, *, status: int = 0, tools: Mapping[str, str] = HPCBERT
) -> str:
    """Have bash do what a person typed, with some programs on the path, and return stdout."""
    for name, program in tools.items():
        tool(place / "bin", name, program)
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    strange = ("FORCE_COLOR", "HPCBERT_", "SLURM_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    env = {**inherited, "PATH": path, "XDG_STATE_HOME": str(place / "state")}
    outcome = run(["bash", "-e", "-c", words], cwd=place, env=env, timeout=CEILING)
    assert outcome.returncode == status, outcome.stdout + outcome.stderr
    return outcome.stdout


# --- The scheduler of "Add a scheduler", installed by pip into an environment of its own -----------

SPOOL_PAGE = "add-a-scheduler.md"


def make_environment(place: Path) -> dict[str, str]:
    """Make an environment that has all of this one; return its programs for the path.

    pip needs no network: what it builds with is here.
    """
    python = place / "environment" / "bin" / "python"
    make = [sys.executable, "-m", "venv", "--without-pip", str(place / "environment")]
    subprocess.run(make, check=True)
    here = sysconfig.get_path("purelib")
    packages = find_packages(place)
    (packages / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    own, outer = shlex.quote(str(python)), shlex.quote(sys.executable)
    offline = "--quiet --no-index --no-deps --no-build-isolation"
    return {
        "python": f'#!/bin/bash\nexec {own} "$@"\n',
        "hpcbert": f'#!/bin/bash\nexec {own} -m hpcbert "$@"\n',
        "pip": f'#!/bin/bash\nexec {outer} -m pip --python {own} "$@" {offline}\n',
    }


def find_packages(place: Path) -> Path:
    """Return where the environment has its packages."""
    (packages,) = (place / "environment" / "lib").glob("python*/site-packages")
    return packages


def install(place: Path) -> Path:
    """Write the package of the page and install it; return where its packages are."""
    write_files(read_steps(SPOOL_PAGE), place)
    type_commands("pip install ./spool", place, tools=make_environment(place))
    return find_packages(place)

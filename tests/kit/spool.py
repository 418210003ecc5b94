"""The scheduler of the page "Add a scheduler", installed by pip into an environment of its own."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.kit.pages import read_steps, type_commands, write_files

PAGE = "add-a-scheduler.md"


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
    write_files(read_steps(PAGE), place)
    type_commands("pip install ./spool", place, tools=make_environment(place))
    return find_packages(place)

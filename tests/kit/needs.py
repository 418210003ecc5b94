"""The needs of tests: whether they are met here, how to meet them, and what comes from elsewhere.

    @pytest.mark.needs("strace", "slurm")     # a test, or `pytestmark` of a module
    require("logs")                           # inside a fixture

A test whose need is not met is skipped before any of its fixtures runs. What a process may do is
asked of the kernel: root of a container may be unable to create namespaces.
"""

import csv
import itertools
import os
import re
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path, PosixPath
from typing import NamedTuple, NoReturn

import pytest

from hpcbert.errors import HpcbertError
from hpcbert.lab.lifecycle import check_abilities, check_packages, check_root
from hpcbert.lab.record import NODE_PRIVATE
from hpcbert.system.runner import run
from tests.kit.cases import read_constant
from tests.kit.paths import REPOSITORY

# A folder that somebody named, one beside the checkout, or what `make logs` has fetched.
SHARED = Path(
    os.environ.get("HPCBERT_SHARED")
    or next(filter(Path.is_dir, (REPOSITORY.parent / "shared", REPOSITORY / ".shared")), "shared")
)
# Groups of needs, as the summary shows them: title, and how to get all of the group.
GROUPS: dict[str, tuple[str, str]] = read_constant(__file__, "GROUPS")
# HPCBERT_REQUIRE_SLURM=1 says that these are met.
_PROMISED = {"slurm", "namespaces", "users", "squashfs"}
# squashfs-tools and setpriv may lie where an ordinary user doesn't look.
_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
# Below those that Linux gives to whoever connects (ip_local_port_range), and above those of the
# scripts' ranks and of labs: another program does not take one by chance between choice and use.
_PORTS = range(30000, 32768)
_tried = itertools.count(os.getpid())


def _lack_of_namespaces(*, packages: bool = False) -> str:
    try:
        check_root()
        if packages:
            check_packages(accounting=True)
        check_abilities(run)
    except HpcbertError as error:
        return f"{error} {error.hint}"
    return ""


def _lack_of_other_users() -> str:
    """Try to give a file away and to become somebody else."""
    become = "setpriv --reuid=65534 --regid=65534 --clear-groups true"
    script = f'file=$(mktemp) && chown 65534:65534 "$file" && {become}; rm "$file"'
    return run(["bash", "-c", script]).stderr.strip()


def _lack_of_permissions() -> str:
    with tempfile.TemporaryDirectory() as name:
        closed = Path(name, "closed")
        closed.mkdir(mode=0)
        return "this user may read everything" if os.access(closed, os.R_OK) else ""


def _lack_of_program(*names: str) -> str:
    missing = [name for name in names if shutil.which(name, path=_PATH) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def _lack_of_path_for_containers() -> str:
    """A container and a node of the lab have their own /tmp, which hides a checkout below it."""
    hiding = (path for path in NODE_PRIVATE if path.resolve() in REPOSITORY.parents)
    return "".join(f"the checkout is in {path}" for path in hiding)


def _lack_of_module(name: str) -> str:
    return "" if find_spec(name) else f"no module {name}"


def _lack_of_variable(name: str) -> str:
    return "" if os.environ.get(name) else f"{name} is not set"


def _lack_of_file(name: str) -> str:
    return "" if (SHARED / "logs" / name).is_file() else f"no {SHARED / 'logs' / name}"


# By name: a key of GROUPS, what it is, and what returns what is missing; empty if nothing is.
NEEDS: dict[str, tuple[str, str, Callable[[], str]]] = {
    "slurm": ("root", "a real Slurm", cache(partial(_lack_of_namespaces, packages=True))),
    "namespaces": ("root", "namespaces and mounts", cache(_lack_of_namespaces)),
    "users": ("root", "to act as two users", cache(_lack_of_other_users)),
    "open checkout": ("root", "a checkout outside of /tmp", cache(_lack_of_path_for_containers)),
    "logs": ("logs", "the public logs", partial(_lack_of_file, "INDEX.tsv")),
    "published": ("logs", "published tables", partial(_lack_of_file, "published.tsv")),
    "permissions": ("permissions", "a user whom permissions bind", cache(_lack_of_permissions)),
    "squashfs": ("programs", "squashfs", partial(_lack_of_program, "mksquashfs", "unsquashfs")),
    "cpus": ("programs", "two CPUs", lambda: "" if len(os.sched_getaffinity(0)) > 1 else "one CPU"),
    "torch": ("programs", "PyTorch", partial(_lack_of_module, "torch")),
    "transformers": ("extras", "transformers", partial(_lack_of_module, "transformers")),
    "accelerate": ("extras", "accelerate", partial(_lack_of_module, "accelerate")),
    "reframe": ("extras", "ReFrame", partial(_lack_of_variable, "HPCBERT_REFRAME")),
}
for _name in ("groff", "shellcheck", "strace", "tmux", "pdflatex", "pdftotext"):
    _group = "extras" if _name.startswith("pdf") else "programs"
    NEEDS[_name] = (_group, _name, partial(_lack_of_program, _name))


def require(name: str) -> None:
    """Skip the test if a need is not met; fail instead if it was promised."""
    group, title, find_lack = NEEDS[name]
    lack = find_lack()
    if lack and name in _PROMISED and os.environ.get("HPCBERT_REQUIRE_SLURM") == "1":
        pytest.fail(f"needs {title}: {lack}")
    if lack:
        lacks(group, title, lack)


def lacks(group: str, title: str, lack: str) -> NoReturn:
    """Skip a test for a need that only it has."""
    assert group in GROUPS
    pytest.skip(f"needs {group}: {title}: {lack}")


def not_applicable(reason: str) -> NoReturn:
    """Skip a test that makes no sense for the recipe that it tries."""
    pytest.skip(f"does not apply: {reason}")


def free_port() -> int:
    """Return a port of this machine, another one each time, that stays free until it is used."""
    for number in itertools.islice(_tried, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is free")


class Folder(PosixPath):
    """A folder of which some files may be missing: a test that wants one of those is skipped."""

    def __truediv__(self, name: str | os.PathLike[str]) -> "Folder":
        path = type(self)(super().__truediv__(name))
        if not path.exists():
            lacks("logs", "the public logs", f"no {path}")
        return path


class Log(NamedTuple):
    """A log of the index; a number is 0 if it is not stated."""

    path: Path
    name: str
    framework: str
    nodes: int
    gpus: int
    batch_size: int
    published: float
    note: str


def index(shared: Path) -> Iterator[Log]:
    """Yield the public logs that have been fetched."""
    with (shared / "logs" / "INDEX.tsv").open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            nodes, gpus, batch = (int(row[key] or 0) for key in ("nodes", "gpus", "batch_per_gpu"))
            published, name = float(row["published_value"] or 0), row["local_path"]
            path = shared / "logs" / name
            yield Log(path, name, row["framework"], nodes, gpus, batch, published, row["note"])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip before fixtures run: a test marked `slurm` or `torch` needs just that."""
    names = [name for name in ("slurm", "torch") if item.get_closest_marker(name)]
    for name in (*names, *(name for mark in item.iter_markers("needs") for name in mark.args)):
        require(name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write a line for each group of needs that tests were skipped for."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    pattern = re.compile(rf"(?:Skipped: )?needs ({'|'.join(GROUPS)}): ")
    counts = Counter(match[1] if (match := pattern.match(why)) else "" for why in reasons)
    for group, (title, remedy) in GROUPS.items():
        if counts[group]:
            terminalreporter.write_line(f"{counts[group]} skipped: need {title}. {remedy}")
    if counts[""]:
        text = f"{counts['']} skipped: do not apply to the recipe or system that they try"
        terminalreporter.write_line(text)

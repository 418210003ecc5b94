"""The needs of tests: whether they are met here, and how to meet them.

    @pytest.mark.needs("strace", "slurm")     # a test, or `pytestmark` of a module
    require("logs")                           # inside a fixture

A test whose need is not met is skipped before any of its fixtures runs. What a process may do is
asked of the kernel, not of its user id: root of a container may be unable to create namespaces, and
the files of a network file system may be closed to root. The summary of a run counts skipped tests by
group of needs, and says how to get them.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from hpcbert.errors import HpcbertError
from hpcbert.lab.lifecycle import check_abilities, check_packages, check_root
from hpcbert.lab.record import NODE_PRIVATE
from hpcbert.system.runner import run
from tests.kit.paths import REPOSITORY
from tests.kit.shared import SHARED

# Groups of needs, as the summary shows them: title, and how to get all of the group.
GROUPS = {
    "root": (
        "root who may create namespaces, and Slurm's packages",
        "make test as root on Debian, in a virtual machine or a privileged container",
    ),
    "logs": (
        "the public logs",
        'make logs; CONTRIBUTING.md, "Public logs"',
    ),
    "programs": (
        "small programs, a second CPU, or PyTorch",
        "apt-get install shellcheck strace tmux groff-base squashfs-tools; make TORCH=torch==2.13.0",
    ),
    "permissions": ("a user whom permissions bind", "make test as an ordinary user"),
    "extras": (
        "programs that no target installs for tests",
        "make browser; the variables HPCBERT_* in CONTRIBUTING.md",
    ),
}
# HPCBERT_REQUIRE_SLURM=1 says that these are met.
_PROMISED = {"slurm", "namespaces", "users", "squashfs"}
_SKIPPED = "needs "
_NOT_APPLICABLE = "does not apply: "


@dataclass(frozen=True)
class Need:
    """Something that tests need of the machine or of its user.

    Attributes:
        group: A key of GROUPS.
        title: What it is, after "needs".
        find_lack: Returns what is missing; empty if nothing is.
    """

    group: str
    title: str
    find_lack: Callable[[], str]


def _lack_of_namespaces() -> str:
    try:
        check_root()
        check_abilities(run)
    except HpcbertError as error:
        return str(error)
    return ""


def _lack_of_slurm() -> str:
    try:
        check_root()
        check_packages(accounting=True)
        check_abilities(run)
    except HpcbertError as error:
        return f"{error} {error.hint}"
    return ""


def _lack_of_other_users() -> str:
    """Try to give a file away and to become somebody else."""
    if os.geteuid() != 0:
        return "not root"
    with tempfile.NamedTemporaryFile() as file:
        try:
            os.chown(file.name, 65534, 65534)
        except OSError as error:
            return str(error)
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "true"]
    return run(words).stderr.strip()


def _lack_of_permissions() -> str:
    with tempfile.TemporaryDirectory() as name:
        closed = Path(name, "closed")
        closed.mkdir(mode=0)
        return "this user may read everything" if os.access(closed, os.R_OK) else ""


def _lack_of_program(*names: str) -> str:
    missing = [name for name in names if shutil.which(name, path=_path()) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def _path() -> str:
    # squashfs-tools and setpriv may lie where an ordinary user doesn't look.
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def _lack_of_module(name: str) -> str:
    return "" if find_spec(name) else f"no module {name}"


def _lack_of_file(path: Path) -> str:
    return "" if path.is_file() else f"no {path}"


def _lack_of_variable(name: str) -> str:
    return "" if os.environ.get(name) else f"{name} is not set"


def _lack_of_second_cpu() -> str:
    return "" if len(os.sched_getaffinity(0)) > 1 else "one CPU"


def _lack_of_path_for_containers() -> str:
    """A container and a node of the lab have their own /tmp, which hides a checkout below it."""
    hiding = (path for path in NODE_PRIVATE if path.resolve() in REPOSITORY.parents)
    return "".join(f"the checkout is in {path}" for path in hiding)


NEEDS = {
    "slurm": Need("root", "a real Slurm", cache(_lack_of_slurm)),
    "namespaces": Need("root", "namespaces and mounts", cache(_lack_of_namespaces)),
    "users": Need("root", "to act as two users", cache(_lack_of_other_users)),
    "open checkout": Need(
        "root", "a checkout outside of /tmp", cache(_lack_of_path_for_containers)
    ),
    "logs": Need("logs", "the public logs", partial(_lack_of_file, SHARED / "logs" / "INDEX.tsv")),
    "published": Need(
        "logs", "published tables", partial(_lack_of_file, SHARED / "logs" / "published.tsv")
    ),
    "permissions": Need("permissions", "a user whom permissions bind", cache(_lack_of_permissions)),
    "squashfs": Need("programs", "squashfs", partial(_lack_of_program, "mksquashfs", "unsquashfs")),
    "cpus": Need("programs", "two CPUs", _lack_of_second_cpu),
    "torch": Need("programs", "PyTorch", partial(_lack_of_module, "torch")),
    "transformers": Need("extras", "transformers", partial(_lack_of_module, "transformers")),
    "reframe": Need("extras", "ReFrame", partial(_lack_of_variable, "HPCBERT_REFRAME")),
    **{
        name: Need("programs", name, partial(_lack_of_program, name))
        for name in ("groff", "shellcheck", "strace", "tmux")
    },
    **{
        name: Need("extras", name, partial(_lack_of_program, name))
        for name in ("pdflatex", "pdftotext")
    },
}


def require(name: str) -> None:
    """Skip the test if a need is not met; fail instead if it was promised."""
    need = NEEDS[name]
    lack = need.find_lack()
    if lack and name in _PROMISED and os.environ.get("HPCBERT_REQUIRE_SLURM") == "1":
        pytest.fail(f"needs {need.title}: {lack}")
    if lack:
        lacks(need.group, need.title, lack)


def lacks(group: str, title: str, lack: str) -> NoReturn:
    """Skip a test for a need that only it has."""
    assert group in GROUPS
    pytest.skip(f"{_SKIPPED}{group}: {title}: {lack}")


def not_applicable(reason: str) -> NoReturn:
    """Skip a test that makes no sense for the recipe that it tries."""
    pytest.skip(_NOT_APPLICABLE + reason)


# --- The summary of a run -------------------------------------------------------------------------


def summarize(reasons: Iterable[str]) -> Iterator[str]:
    """Yield a line for each group of needs that tests were skipped for.

    Args:
        reasons: One for each skipped test, as pytest gives it.
    """
    counts = Counter(_group_of(reason) for reason in reasons)
    for group, (title, remedy) in GROUPS.items():
        if counts[group]:
            yield f"{counts[group]} skipped: need {title}. {remedy}"
    if counts[""]:
        yield f"{counts['']} skipped: do not apply to the recipe or system that they try"


def _group_of(reason: str) -> str:
    """Return the group that a reason begins with; empty if it names no need."""
    match = re.match(rf"(?:Skipped: )?{_SKIPPED}({'|'.join(GROUPS)}): ", reason)
    return match[1] if match else ""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*names): skipped unless tests/kit/needs.py finds them"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip before fixtures run: a test marked `slurm` or `torch` needs just that."""
    names = [name for name in ("slurm", "torch") if item.get_closest_marker(name)]
    for name in (*names, *(name for mark in item.iter_markers("needs") for name in mark.args)):
        require(name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    for line in summarize(report.longrepr[2] for report in reports):
        terminalreporter.write_line(line)

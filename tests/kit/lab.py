"""Fixtures for one lab that all tests of a run share.

This is a plugin rather than part of a conftest.py: fixtures of a conftest.py exist only below its
directory, and the same fixture in two of them would start two labs.
"""

import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from hpcbert.lab.files import has_pmix
from hpcbert.lab.lifecycle import down, up
from hpcbert.lab.record import Lab, LabPlan
from hpcbert.system.runner import Outcome, Runner, run
from tests.kit.needs import not_applicable, require
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING, until


@dataclass(frozen=True)
class User:
    """An ordinary account of this machine."""

    name: str
    uid: int
    gid: int
    home: Path


# Accepts every job, after the lines of `site_rule`.
JOB_SUBMIT = """\
function slurm_job_submit(job, partitions, uid)
  {rule}
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
"""

# Whether a user can read hpcbert and PyTorch. Importing PyTorch takes seconds.
REACH = """
import importlib.util, hpcbert
torch = importlib.util.find_spec("torch")
torch.loader.get_code("torch")
"""

# Runs a command as an ordinary user, with the lab's environment only.
AsUser = Runner


@pytest.fixture(scope="session")
def slurm_packages() -> None:
    """Skip if a lab can't be started here."""
    require("slurm")


@pytest.fixture(scope="session")
def pmix(slurm_packages: None) -> None:
    """Skip if the release's Slurm lacks the plugin for PMIx."""
    if not has_pmix():
        not_applicable("this release's Slurm has no mpi_pmix.so")


@pytest.fixture(scope="session")
def open_directory() -> Iterator[Path]:
    """A directory, unlike /tmp, that every user can enter and every node sees."""
    path = Path(tempfile.mkdtemp(prefix="hpcbert-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


class Checkout(NamedTuple):
    """hpcbert and its interpreter as an ordinary user and the nodes can read them."""

    path: Path
    python: str


@pytest.fixture(scope="session")
def checkout(slurm_packages: None, user: User) -> Iterator[Checkout]:
    """This checkout; if its path is closed to ordinary users, an open view of it.

    The view is a read-only bind mount: so nothing can be deleted through it. The nodes see it
    because it is made before them. In /tmp they would not: each node has its own.
    """
    require("open checkout")
    inside = Path(sys.executable).absolute()
    reach = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--"]
    if run([*reach, str(inside), "-c", REACH], cwd=Path("/")).ok:
        yield Checkout(REPOSITORY, str(inside))
        return
    view = Path(tempfile.mkdtemp(prefix="hpcbert-view-", dir="/var/tmp"))
    view.chmod(0o755)
    _must("mount", "--bind", str(REPOSITORY), str(view))
    try:
        _must("mount", "-o", "remount,bind,ro", str(view))
        python = view / inside.relative_to(REPOSITORY)
        yield Checkout(view, str(python))
    finally:
        _must("umount", "--lazy", str(view))
        view.rmdir()


@pytest.fixture(scope="session")
def narrow(slurm_packages: None, open_directory: Path) -> Iterator[Path]:
    """A file system of 2 MiB that every node sees, because it is made before them."""
    path = open_directory / "narrow"
    path.mkdir()
    _must("mount", "-t", "tmpfs", "-o", "size=2m,mode=1777", "narrow", str(path))
    try:
        yield path
    finally:
        _must("umount", "--lazy", str(path))


@pytest.fixture(scope="session")
def lab(
    slurm_packages: None, open_directory: Path, checkout: Checkout, narrow: Path
) -> Iterator[Lab]:
    """Four idle nodes with 8 fake GPUs each, with accounting."""
    directory = open_directory / "lab"
    plan = LabPlan(
        directory=directory, nodes=4, gpus_per_node=8, slurmd_timeout=10,
        job_submit=JOB_SUBMIT.format(rule=""), user=f"{account_stem(open_directory)}-c",
    )  # fmt: skip
    notes: list[str] = []
    try:
        yield up(plan, run=run, report=notes.append)
    finally:
        removal = down(directory, run=run, report=notes.append)
        assert not removal.remains, removal.remains


@pytest.fixture(scope="session")
def user(slurm_packages: None, open_directory: Path) -> Iterator[User]:
    """An ordinary account that lives as long as this run."""
    with _new_user(account_stem(open_directory), open_directory / "home") as new_user:
        yield new_user


@pytest.fixture(scope="session")
def other_user(slurm_packages: None, open_directory: Path) -> Iterator[User]:
    """A second account, without any relation to the first."""
    with _new_user(f"{account_stem(open_directory)}-b", open_directory / "other-home") as new_user:
        yield new_user


def account_stem(directory: Path) -> str:
    """Return the beginning of the names of a run's accounts, from its directory.

    A PID would be that of a killed run, which left its accounts.
    """
    return f"hpcbert-{directory.name.rpartition('-')[2]}"


@contextmanager
def _new_user(name: str, home: Path) -> Iterator[User]:
    words = ["--system", "--user-group", "--create-home", "--home-dir", str(home)]
    account("useradd", *words, "--shell", "/bin/bash", name)
    entry = pwd.getpwnam(name)
    try:
        yield User(name, entry.pw_uid, entry.pw_gid, home)
    finally:
        account("userdel", name)


@pytest.fixture(scope="session")
def as_user(user: User, lab: Lab) -> AsUser:
    return runner_of(user, lab)


@pytest.fixture(scope="session")
def as_other_user(other_user: User, lab: Lab) -> AsUser:
    return runner_of(other_user, lab)


def runner_of(user: User, lab: Lab) -> AsUser:
    """Return a function that runs commands as an ordinary user of a lab."""
    path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    names = {"USER": user.name, "LOGNAME": user.name, "HOME": str(user.home)}
    environment = {"PATH": path, **names, "LANG": "C.UTF-8", **lab.environment}
    become = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--init-groups"]

    def run_as_user(
        argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
        stdin: str = "", timeout: float = CEILING,
    ) -> Outcome:  # fmt: skip
        folder = cwd or lab.layout.runs
        env = {**environment, **(env or {})}
        return run([*become, *argv], env=env, cwd=folder, stdin=stdin, timeout=timeout)

    return run_as_user


@pytest.fixture
def site_rule(lab: Lab) -> Iterator[Callable[[str], None]]:
    """Gives the lab's job_submit.lua a line of Lua; `job` is the request."""
    path = lab.layout.job_submit
    plain = path.read_text()

    def change(rule: str) -> None:
        # slurmctld compares times in whole seconds.
        later = path.stat().st_mtime + 2
        path.write_text(JOB_SUBMIT.format(rule=rule))
        os.utime(path, (later, later))

    try:
        yield change
    finally:
        change("")
        assert path.read_text() == plain


@pytest.fixture
def work(lab: Lab, user: User) -> Iterator[Path]:
    """A directory of the test user's that all nodes share; empty for each test."""
    path = Path(tempfile.mkdtemp(prefix="work-", dir=lab.layout.runs))
    os.chown(path, user.uid, user.gid)
    yield path
    shutil.rmtree(path)


def _must(*argv: str) -> None:
    outcome = run(argv)
    if not outcome.ok:
        pytest.fail(f"{' '.join(argv)}: {outcome.stderr}")


def account(*argv: str) -> None:
    """Run useradd or userdel.

    Wait while another run has locked the files (exit status 1, 10), or the user's last process ends
    (8).
    """

    def settle() -> list[Outcome]:
        outcome = run(argv)
        return [] if outcome.returncode in {1, 8, 10} else [outcome]

    (outcome,) = until(settle, lambda: f"{argv[0]}: {run(argv).stderr}", pause=0.25)
    assert outcome.ok, outcome.stderr

"""Fixtures for one lab that all tests of a run share, and its faults.

This is a plugin rather than part of a conftest.py: fixtures of a conftest.py exist only below its
directory, and the same fixture in two of them would start two labs.
"""

import os
import pwd
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcbert.lab import daemons
from hpcbert.lab.files import has_pmix
from hpcbert.lab.lifecycle import down, up
from hpcbert.lab.record import Journal, Lab, LabPlan, load, lock_lab
from hpcbert.system.processes import Process, end_processes
from hpcbert.system.runner import Runner, run
from tests.kit.cases import read_constant
from tests.kit.cli import Cli
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


# Accepts every job, after a rule: lines of Lua, where `job` is the request.
JOB_SUBMIT: str = read_constant(__file__, "JOB_SUBMIT")
# Whether a user can read hpcbert and PyTorch. Importing PyTorch takes seconds.
REACH = """
import importlib.util, hpcbert
torch = importlib.util.find_spec("torch")
torch.loader.get_code("torch")
"""


@pytest.fixture(scope="session")
def slurm_packages():
    """Skip if a lab can't be started here."""
    require("slurm")


@pytest.fixture(scope="session")
def pmix(slurm_packages):
    """Skip if the release's Slurm lacks the plugin for PMIx."""
    if not has_pmix():
        not_applicable("this release's Slurm has no mpi_pmix.so")


@pytest.fixture(scope="session")
def open_directory():
    """A directory, unlike /tmp, that every user can enter and every node sees."""
    path = Path(tempfile.mkdtemp(prefix="hpcbert-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@dataclass(frozen=True)
class Checkout:
    """hpcbert and its interpreter as an ordinary user and the nodes can read them."""

    path: Path
    python: str

    def cli(self, folder: Path, user: Runner, **env: str) -> Cli:
        """Return hpcbert as a user of a lab starts it in a folder."""
        return Cli(folder, {"PYTHONPATH": str(self.path), **env}, user, self.python)


@pytest.fixture(scope="session")
def checkout(slurm_packages, user):
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
    with mounted(view, "--bind", str(REPOSITORY)):
        daemons.run_checked(run, ["mount", "-o", "remount,bind,ro", str(view)], env=os.environ)
        yield Checkout(view, str(view / inside.relative_to(REPOSITORY)))
    view.rmdir()


@contextmanager
def mounted(path: Path, *options: str) -> Iterator[None]:
    daemons.run_checked(run, ["mount", *options, str(path)], env=os.environ)
    try:
        yield
    finally:
        daemons.run_checked(run, ["umount", "--lazy", str(path)], env=os.environ)


@contextmanager
def started(plan: LabPlan) -> Iterator[Lab]:
    try:
        yield up(plan, run=run, report=lambda _: None)
    finally:
        removal = down(plan.directory, run=run, report=lambda _: None)
        assert not removal.remains, removal.remains


@pytest.fixture(scope="session")
def lab(slurm_packages, open_directory, checkout):
    """Four idle nodes with 8 fake GPUs each, with accounting.

    Next to it is a file system of 2 MiB, `narrow`, that every node sees: it is made before them.
    """
    plan = LabPlan(
        directory=open_directory / "lab", nodes=4, gpus_per_node=8, settings=("SlurmdTimeout=10",),
        job_submit=JOB_SUBMIT.format(rule=""), user=f"{account_stem(open_directory)}-c",
    )  # fmt: skip
    narrow = open_directory / "narrow"
    narrow.mkdir()
    with mounted(narrow, "-t", "tmpfs", "-o", "size=2m,mode=1777", "narrow"), started(plan) as lab:
        yield lab


@pytest.fixture(scope="session")
def user(slurm_packages, open_directory):
    """An ordinary account that lives as long as this run."""
    yield from _make_user(account_stem(open_directory), open_directory / "home")


@pytest.fixture(scope="session")
def other_user(slurm_packages, open_directory):
    """A second account, without any relation to the first."""
    yield from _make_user(f"{account_stem(open_directory)}-b", open_directory / "other-home")


def account_stem(directory: Path) -> str:
    """Return the beginning of the names of a run's accounts, from its directory.

    A PID would be that of a killed run, which left its accounts.
    """
    return f"hpcbert-{directory.name.rpartition('-')[2]}"


def _make_user(name: str, home: Path) -> Iterator[User]:
    words = ["--system", "--user-group", "--create-home", "--home-dir", str(home)]
    account("useradd", *words, "--shell", "/bin/bash", name)
    entry = pwd.getpwnam(name)
    yield User(name, entry.pw_uid, entry.pw_gid, home)
    account("userdel", name)


@pytest.fixture(scope="session")
def as_user(user, lab):
    return runner_of(user, lab)


def runner_of(user: User, lab: Lab) -> Runner:
    """Return a function that runs commands as an ordinary user, with a lab's environment only."""
    path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    names = {"USER": user.name, "LOGNAME": user.name, "HOME": str(user.home)}
    environment = {"PATH": path, **names, "LANG": "C.UTF-8", **lab.environment}
    become = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--init-groups"]

    def run_as_user(argv, *, env=None, cwd=None, timeout=CEILING, **options):
        env = {**environment, **(env or {})}
        cwd = cwd or lab.layout.runs
        return run([*become, *argv], env=env, cwd=cwd, timeout=timeout, **options)

    return run_as_user


@pytest.fixture
def work(lab, user):
    """A directory of the test user's that all nodes share; empty for each test."""
    path = Path(tempfile.mkdtemp(prefix="work-", dir=lab.layout.runs))
    os.chown(path, user.uid, user.gid)
    yield path
    shutil.rmtree(path)


def account(*argv: str) -> None:
    """Run useradd or userdel.

    Wait while another run has the files (exit status 1, 10), or the user's last process ends (8).
    """

    def settle():
        outcome = run(argv)
        return [] if outcome.returncode in {1, 8, 10} else [outcome]

    (outcome,) = until(settle, lambda: f"{argv[0]}: {run(argv).stderr}", pause=0.25)
    assert outcome.ok, outcome.stderr


def read_daemon(lab: Lab, name: str) -> Process:
    """Return a daemon that is on record now: one that has been restarted has another PID.

    It is `slurmctld`, `slurmdbd`, `mariadbd`, `munged`, or a node for its slurmd.
    """
    current = load(lab.directory)
    assert current
    assert current.mark == lab.mark
    process = current.daemons[name]
    assert process, name
    return process


def stop_daemon(lab: Lab, name: str, *, number: int = signal.SIGTERM) -> None:
    """Stop a daemon and wait until it has ended; do nothing if it has already ended.

    A node's jobs go on without its slurmd, as on a real node. The signal SIGKILL is a crash.
    """
    assert end_processes([read_daemon(lab, name)], signal_number=number, timeout=60.0), name


def start_daemon(lab: Lab, name: str) -> None:
    """Start a daemon that was stopped or has crashed, and wait until it answers."""
    with lock_lab(lab.directory):
        current = load(lab.directory)
        assert current
        journal = Journal(current)
        daemons.start_daemon(journal, name, run)
        daemons.wait_for_daemon(journal.lab, name, run)

"""Two users of one group work in one directory, as computing centres have them: umask 002, setgid."""

from __future__ import annotations

import grp
import os
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.scheduler.local import backend
from hpcbert.system.runner import Outcome, Runner, run
from tests.kit.cli import Cli, CliResult
from tests.kit.lab import User, account, runner_of
from tests.kit.logs import WORDS, stand_in
from tests.kit.needs import lacks, require
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING, unqueued, until

# Numbers without names, as in a container: alice and bob share a group, mallory is in none.
ALICE, BOB, MALLORY, GROUP = 61001, 61002, 61003, 61000


@dataclass(frozen=True)
class Project:
    """A group's directory, and its users.

    Attributes:
        over: Waits until a campaign is over.
    """

    folder: Path
    alice: Cli
    bob: Cli
    over: Callable[[Path], None]

    def submit(self, who: Cli, *words: str) -> Path:
        """Submit one repeat and wait for its end."""
        program = self.folder / "stand-in"
        result = who(*WORDS, "--python", program, "--repeats", 1, "--force", "--json", *words)
        assert result.ok, result
        directory = Path(result.data["directory"])
        self.over(directory)
        return directory


def masked(become: Runner, umask: str = "002") -> Runner:
    """Return a function that runs commands under a umask."""

    def run_masked(argv: Sequence[str], **options: Any) -> Outcome:
        return become(["bash", "-c", f'umask {umask} && exec "$@"', "bash", *argv], **options)

    return run_masked


def numbered(uid: int, gid: int) -> Runner:
    """Return a function that runs commands as a user without a name."""
    become = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]

    def run_as(argv: Sequence[str], **options: Any) -> Outcome:
        return run([*become, *argv], **options)

    return run_as


@pytest.fixture
def place(open_directory: Path) -> Iterator[Path]:
    """A directory that every user can enter."""
    path = Path(tempfile.mkdtemp(prefix="group-", dir=open_directory))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def local_user(folder: Path, uid: int, gid: int) -> Cli:
    """Return hpcbert as a user whose home nobody else can enter."""
    home = folder.parent / f"home-{uid}"
    home.mkdir(mode=0o700)
    os.chown(home, uid, uid)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "PYTHONPATH": str(REPOSITORY),
    }
    return Cli(folder, env, masked(numbered(uid, gid)))


def make_project(folder: Path, gid: int) -> None:
    folder.mkdir()
    stand_in(folder, "")
    os.chown(folder, 0, gid)
    folder.chmod(0o2775)


@pytest.fixture
def local(place: Path) -> Project:
    """The group's users on one machine without Slurm."""
    require("users")
    look = [sys.executable, "-c", "import hpcbert"]
    reach = numbered(ALICE, GROUP)(look, env={"PYTHONPATH": str(REPOSITORY)}, cwd=Path("/"))
    if not reach.ok:
        lacks("root", "a checkout that ordinary users can read", f"{REPOSITORY} is closed")
    folder = place / "project"
    make_project(folder, GROUP)
    alice, bob = (local_user(folder, uid, GROUP) for uid in (ALICE, BOB))

    def over(directory: Path) -> None:
        tracked = TrackedCampaign(directory, store.read_manifest(directory))

        def ended() -> bool:
            states = backend.read_states(tracked).values()
            return not backend.find_queue(directory) and all(state.kind.over for state in states)

        until(ended, "it is still running")

    assert alice("init", "--local").ok
    return Project(folder, alice, bob, over)


@pytest.fixture(scope="module")
def members(user: User, other_user: User) -> Iterator[tuple[User, ...]]:
    """The lab's two ordinary users, in one group."""
    name = f"hpcbert-{os.getpid()}-g"
    account("groupadd", "--system", name)
    try:
        for member in (user, other_user):
            account("usermod", "--append", "--groups", name, member.name)
        gid = grp.getgrnam(name).gr_gid
        yield tuple(replace(member, gid=gid) for member in (user, other_user))
    finally:
        account("groupdel", name)


@pytest.fixture
def on_slurm(members: tuple[User, ...], lab: Any, checkout: Any, work: Path) -> Project:
    """The group's users on a cluster."""
    work.chmod(0o755)
    folder = work / "project"
    make_project(folder, members[0].gid)
    env = {"PYTHONPATH": str(checkout.path), "HPCBERT_SITE": "", "HPCBERT_RUNS": ""}
    alice, bob = (
        Cli(folder, env, masked(runner_of(member, lab)), checkout.python) for member in members
    )

    def over(directory: Path) -> None:
        def is_over() -> bool:
            listed = run(["squeue", "--noheader", "--format=%j"], env=lab.daemon_environment)
            return unqueued(listed, directory.name)

        until(is_over, "jobs are still queued", pause=0.5)

    result = alice("init", "--slurm")
    assert result.ok, result
    return Project(folder, alice, bob, over)


def obey(who: Cli, result: CliResult) -> None:
    """Do what the hint of a refusal says."""
    assert result.returncode == 2, result
    words = shlex.split(result.error["hint"].rpartition("hpcbert trust ")[2])
    assert who("trust", *words).ok


def content(directory: Path) -> Mapping[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def work_together(project: Project) -> None:
    alice, bob = project.alice, project.bob
    first = project.submit(alice)
    # The site.toml is alice's: bob is asked once.
    words = [*WORDS, "--python", project.folder / "stand-in", "--repeats", 1, "--json"]
    refused = bob(*words)
    assert f"belongs to {store.find_foreign_owner(project.folder / 'site.toml')}" in refused.output
    obey(bob, refused)
    second = project.submit(bob)
    assert first.parent == second.parent == project.folder / "runs"
    for who, path, other in ((alice, first, second), (bob, second, first)):
        mine = who("collect", path, "--json").document
        before = content(other)
        assert [campaign["campaign"] for campaign in who("list", "--json").data["campaigns"]] == [
            path.name
        ]
        both = {
            campaign["campaign"]
            for campaign in who("list", "--everyone", "--json").data["campaigns"]
        }
        assert both == {first.name, second.name}
        for name in (other.name, f"{other}/", f"runs/{other.name}"):
            theirs = who("collect", name, "--json")
            assert theirs.ok, theirs
            (row,) = theirs.data["tables"][0]["rows"]
            (own_row,) = mine["data"]["tables"][0]["rows"]
            assert row["repeats"] == own_row["repeats"] == {"ok": 1, "asked": 1}
            assert row["median"]
            assert any("belongs to" in warning for warning in theirs.document["warnings"])
        for command in (("report", "--output", f"report-of-{other.name}"), ("show",), ("explain",)):
            result = who(*command, other.name)
            assert result.returncode in {0, 4}, result
        for reader in (("monitor", "--once"), ("logs",)):
            assert who(*reader, other.name).ok, reader
        assert who("audit", other.name).returncode in {0, 4}
        for runner in (("retry",), ("cancel", "--yes"), ("submit", "--resume")):
            result = who(*runner, other.name, "--json")
            assert result.returncode == 2, result
            assert "belongs to" in result.error["message"]
        assert content(other) == before
        assert (project.folder / f"report-of-{other.name}" / "index.html").exists()


def modes(directory: Path, gid: int) -> set[int]:
    """Return the permissions of all that a campaign has; all of it is the group's."""
    paths = [directory, *directory.rglob("*")]
    assert {path.stat().st_gid for path in paths} == {gid}
    return {stat.S_IMODE(path.stat().st_mode) for path in paths}


def test_two_users_of_a_group_submit_collect_and_report_locally(local: Project) -> None:
    work_together(local)
    for directory in store.find_all_campaigns(local.folder / "runs"):
        assert modes(directory, GROUP) == {0o2775, 0o664}


@pytest.mark.slurm
def test_two_users_of_a_group_submit_collect_and_report_on_slurm(
    on_slurm: Project, members: tuple[User, ...]
) -> None:
    gid = members[0].gid
    work_together(on_slurm)
    for directory in store.find_all_campaigns(on_slurm.folder / "runs"):
        # Slurm lets nobody but the owner write to the files that it makes.
        assert modes(directory, gid) == {0o2775, 0o664, 0o644}
    alice = on_slurm.alice
    private = Cli(alice.cwd, alice.env, masked(alice.run, "077"), alice.python)
    directory = on_slurm.submit(private)
    assert modes(directory, gid) == {0o2700, 0o600}
    assert list(directory.glob("slurm/*.out"))


@pytest.mark.parametrize(
    ("umask", "readers"), [("027", {"bob"}), ("077", set()), ("022", {"bob", "mallory"})]
)
def test_the_umask_of_the_submission_decides_who_reads(
    local: Project, umask: str, readers: set[str]
) -> None:
    alice = Cli(local.folder, local.alice.env, masked(numbered(ALICE, GROUP), umask))
    assert alice("init", "--local", "--force").ok
    directory = local.submit(alice)
    mallory = local_user(local.folder, MALLORY, MALLORY)
    clis = {"bob": local.bob, "mallory": mallory}
    runs = ("--site", REPOSITORY / "site.toml")
    read = {name for name, who in clis.items() if who("collect", directory, *runs).ok}
    assert read == readers
    assert alice("collect", directory).ok
    assert stat.S_IMODE(directory.stat().st_mode) == 0o2777 & ~int(umask, 8)


def test_a_directory_of_a_colleagues_campaigns_is_collected(local: Project) -> None:
    directory = local.submit(local.alice)
    result = local.bob("collect", "runs", "--json", timeout=CEILING)
    assert result.ok, result
    assert directory.name in result.stdout
    assert any("belongs to user" in warning for warning in result.document["warnings"])

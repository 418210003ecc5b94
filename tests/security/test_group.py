"""Two users of one group work in one directory, as computing centres have them: umask 002, setgid."""

import grp
import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.scheduler.local import backend
from hpcbert.system.runner import Runner, run
from tests.kit.cli import Cli
from tests.kit.lab import account, runner_of
from tests.kit.logs import WORDS, stand_in
from tests.kit.needs import lacks, require
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import unqueued, until

# Numbers without names, as in a container: alice and bob share a group, mallory is in none.
ALICE, BOB, MALLORY, GROUP = 61001, 61002, 61003, 61000


def masked(who: Cli, umask: str = "002") -> Cli:
    """Return hpcbert of somebody under a umask."""
    words = ["bash", "-c", f'umask {umask} && exec "$@"', "bash"]
    return replace(who, run=lambda argv, **options: who.run([*words, *argv], **options))


def numbered(uid: int, gid: int) -> Runner:
    """Return a function that runs commands as a user without a name."""
    become = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]
    return lambda argv, **options: run([*become, *argv], **options)


@dataclass(frozen=True)
class Project:
    """A group's directory, and its users.

    Attributes:
        is_over: Says whether a campaign is over.
    """

    folder: Path
    gid: int
    alice: Cli
    bob: Cli
    is_over: Callable[[Path], bool]

    def __post_init__(self) -> None:
        self.folder.mkdir()
        stand_in(self.folder, "")
        os.chown(self.folder, 0, self.gid)
        self.folder.chmod(0o2775)

    @property
    def words(self) -> list[object]:
        return [*WORDS, "--python", self.folder / "stand-in", "--repeats", 1, "--json"]

    def submit(self, who: Cli) -> Path:
        """Submit one repeat and wait for its end."""
        directory = Path(who(*self.words, "--force", status=0).data["directory"])
        until(partial(self.is_over, directory), "it is still running", pause=0.3)
        return directory

    def modes(self, directory: Path) -> set[int]:
        """Return the permissions of all that a campaign has; all of it is the group's."""
        paths = [directory, *directory.rglob("*")]
        assert {path.stat().st_gid for path in paths} == {self.gid}
        return {stat.S_IMODE(path.stat().st_mode) for path in paths}


def local_user(folder: Path, uid: int, gid: int) -> Cli:
    """Return hpcbert as a user whose home nobody else can enter."""
    home = folder.parent / f"home-{uid}"
    home.mkdir(mode=0o700)
    os.chown(home, uid, uid)
    env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    env |= {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}
    return Cli(folder, env, numbered(uid, gid))


def is_over_locally(directory: Path) -> bool:
    states = backend.read_states(TrackedCampaign(directory, store.read_manifest(directory)))
    return not backend.find_queue(directory) and all(state.kind.over for state in states.values())


@pytest.fixture
def local(open_directory):
    """The group's users on one machine without Slurm."""
    require("users")
    look = [sys.executable, "-c", "import hpcbert"]
    reach = numbered(ALICE, GROUP)(look, env={"PYTHONPATH": str(REPOSITORY)}, cwd=Path("/"))
    if not reach.ok:
        lacks("root", "a checkout that ordinary users can read", f"{REPOSITORY} is closed")
    place = Path(tempfile.mkdtemp(prefix="group-", dir=open_directory))
    place.chmod(0o755)
    folder = place / "project"
    alice, bob = (local_user(folder, uid, GROUP) for uid in (ALICE, BOB))
    project = Project(folder, GROUP, masked(alice), masked(bob), is_over_locally)
    project.alice("init", "--local", status=0)
    return project


@pytest.fixture
def on_slurm(user, other_user, lab, checkout, work):
    """The lab's two ordinary users, in one group, on a cluster."""
    name = f"hpcbert-{os.getpid()}-g"

    def is_over(directory: Path) -> bool:
        words = ["squeue", "--noheader", "--format=%j"]
        return unqueued(run(words, env=lab.daemon_environment), directory.name)

    account("groupadd", "--system", name)
    try:
        gid = grp.getgrnam(name).gr_gid
        env = {"PYTHONPATH": str(checkout.path), "HPCBERT_SITE": "", "HPCBERT_RUNS": ""}
        for member in (user, other_user):
            account("usermod", "--append", "--groups", name, member.name)
        alice, bob = (
            masked(
                Cli(work / "project", env, runner_of(replace(who, gid=gid), lab), checkout.python)
            )
            for who in (user, other_user)
        )
        work.chmod(0o755)
        project = Project(work / "project", gid, alice, bob, is_over)
        project.alice("init", "--slurm", status=0)
        yield project
    finally:
        account("groupdel", name)


def list_names(who: Cli, *words: str) -> set[str]:
    campaigns = who("list", *words, "--json", status=0).data["campaigns"]
    return {campaign["campaign"] for campaign in campaigns}


def read_all(directory: Path) -> Mapping[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def work_together(project: Project) -> tuple[Path, Path]:
    """Alice and bob submit a campaign each, and bob does with hers what he can."""
    alice, bob = project.alice, project.bob
    hers = project.submit(alice)
    # The site.toml is alice's: bob is asked once.
    refused = bob(*project.words, status=2)
    assert f"belongs to {store.find_foreign_owner(project.folder / 'site.toml')}" in refused.output
    bob("trust", *shlex.split(refused.error["hint"].rpartition("hpcbert trust ")[2]), status=0)
    # Without one of his own, a directory of campaigns means hers.
    result = bob("collect", "runs", "--json", status=0)
    assert hers.name in result.stdout
    assert any("belongs to" in warning for warning in result.document["warnings"])
    his = project.submit(bob)
    assert hers.parent == his.parent == project.folder / "runs"
    before = read_all(hers)
    for who, path in ((alice, hers), (bob, his)):
        assert list_names(who) == {path.name}
    assert list_names(bob, "--everyone") == {hers.name, his.name}
    for reader, name in ((bob, f"runs/{hers.name}"), (bob, f"{hers}/"), (alice, his.name)):
        theirs = reader("collect", name, "--json", status=0)
        (row,) = theirs.data["tables"][0]["rows"]
        assert row["repeats"] == {"ok": 1, "asked": 1}
        assert row["median"]
        assert any("belongs to" in warning for warning in theirs.document["warnings"])
    for words in ("report --output of-hers", "show", "explain", "monitor --once", "logs", "audit"):
        assert bob(*words.split(), hers.name).returncode in {0, 4}, words
    assert (project.folder / "of-hers" / "index.html").exists()
    for words in ("retry", "cancel --yes", "submit --resume"):
        result = bob(*words.split(), hers.name, "--json", status=2)
        assert "belongs to" in result.error["message"]
    assert read_all(hers) == before
    return hers, his


def test_two_users_of_a_group_submit_collect_and_report_locally(local):
    for directory in work_together(local):
        assert local.modes(directory) == {0o2775, 0o664}


@pytest.mark.slurm
def test_two_users_of_a_group_submit_collect_and_report_on_slurm(on_slurm):
    for directory in work_together(on_slurm):
        # Slurm lets nobody but the owner write to the files that it makes.
        assert on_slurm.modes(directory) == {0o2775, 0o664, 0o644}
    directory = on_slurm.submit(masked(on_slurm.alice, "077"))
    assert on_slurm.modes(directory) == {0o2700, 0o600}
    assert list(directory.glob("slurm/*.out"))


def test_the_umask_of_the_submission_decides_who_reads(local):
    mallory = local_user(local.folder, MALLORY, MALLORY)
    runs = ("--site", REPOSITORY / "site.toml")
    everybody = [local.bob, mallory]
    # Whatever the umask is, nothing is left that everybody can write to.
    for umask, bits, readers in (
        ("000", 0o002, everybody),
        ("022", 0o022, everybody),
        ("027", 0o027, [local.bob]),
        ("077", 0o077, []),
    ):
        alice = masked(local.alice, umask)
        alice("init", "--local", "--force", status=0)
        directory = local.submit(alice)
        for who in everybody:
            assert who("collect", directory, *runs).ok == (who in readers)
        alice("collect", directory, status=0)
        assert local.modes(directory) == {0o2777 & ~bits, 0o666 & ~bits}
        names = {path.name for path in directory.rglob("*")}
        assert {"local.json", "local.out", "table.json", "measurements.json"} <= names

"""Two users of one group work in one directory, as computing centres have them: umask 002, setgid."""

import grp
import os
import shlex
import stat
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcbert.campaign import store
from hpcbert.scheduler.local import backend
from hpcbert.system.runner import run
from tests.kit import lab as labs
from tests.kit.cli import Cli
from tests.kit.logs import WORDS, stand_in
from tests.kit.needs import lacks
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import unqueued, until

# Numbers without names, as in a container: alice and bob share a group, mallory is in none.
ALICE, BOB, MALLORY, GROUP = 61001, 61002, 61003, 61000


def masked(who, umask="002"):
    """Return hpcbert of somebody under a umask."""
    words = ["bash", "-c", f'umask {umask} && exec "$@"', "bash"]
    return replace(who, run=lambda argv, **options: who.run([*words, *argv], **options))


def local_user(folder, uid, gid):
    """Return hpcbert as a user without a name whose home nobody else can enter."""
    home = folder.parent / f"home-{uid}"
    home.mkdir(mode=0o700)
    os.chown(home, uid, uid)
    env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    env |= {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}
    become = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]
    return Cli(folder, env, lambda argv, **options: run([*become, *argv], **options))


def make_project(folder, gid, is_over, alice, bob):
    """Return a group's directory and users; `is_over` says whether a campaign is over."""
    folder.mkdir()
    stand_in(folder, "")
    os.chown(folder, 0, gid)
    folder.chmod(0o2775)
    words = [*WORDS, "--python", folder / "stand-in", "--repeats", 1, "--json"]
    users = {"alice": masked(alice), "bob": masked(bob)}
    return SimpleNamespace(folder=folder, gid=gid, words=words, is_over=is_over, **users)


def submit(project, who):
    directory = Path(who(*project.words, "--force", status=0).data["directory"])
    until(partial(project.is_over, directory), "it is still running", pause=0.3)
    return directory


def list_modes(project, directory):
    """Return the permissions of all that a campaign has; all of it is the group's."""
    stats = [path.stat() for path in (directory, *directory.rglob("*"))]
    assert {file.st_gid for file in stats} == {project.gid}
    return {stat.S_IMODE(file.st_mode) for file in stats}


@pytest.fixture
def local(open_directory):
    """A group on one machine without Slurm."""

    def is_over(directory):
        return not backend.find_queue(directory)

    place = Path(tempfile.mkdtemp(prefix="group-", dir=open_directory))
    place.chmod(0o755)
    users = (local_user(place / "project", uid, GROUP) for uid in (ALICE, BOB))
    project = make_project(place / "project", GROUP, is_over, *users)
    if not project.alice("--version").ok:
        lacks("root", "a checkout that ordinary users can read", f"{REPOSITORY} is closed")
    project.alice("init", "--local", status=0)
    return project


@pytest.mark.needs("users")
def test_two_users_of_a_group_submit_collect_and_report(local):
    """Alice and bob submit a campaign each, and bob does with hers what he can."""

    def list_names(who, *words):
        campaigns = who("list", *words, "--json", status=0).data["campaigns"]
        return {campaign["campaign"] for campaign in campaigns}

    def read_all(directory):
        return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    alice, bob = local.alice, local.bob
    hers = submit(local, alice)
    # The site.toml is alice's: bob is asked once.
    refused = bob(*local.words, status=2)
    assert f"belongs to {store.find_foreign_owner(local.folder / 'site.toml')}" in refused.output
    bob("trust", *shlex.split(refused.error["hint"].rpartition("hpcbert trust ")[2]), status=0)
    # Without one of his own, a directory of campaigns means hers.
    result = bob("collect", "runs", "--json", status=0)
    assert hers.name in result.stdout
    assert any("belongs to" in warning for warning in result.document["warnings"])
    his = submit(local, bob)
    assert hers.parent == his.parent == local.folder / "runs"
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
    assert (local.folder / "of-hers" / "index.html").exists()
    for words in ("retry", "cancel --yes", "submit --resume"):
        error = bob(*words.split(), hers.name, "--json", status=2).error
        assert "belongs to" in error["message"]
    assert read_all(hers) == before
    for directory in (hers, his):
        assert list_modes(local, directory) == {0o2775, 0o664}


@pytest.mark.needs("users")
def test_the_umask_of_a_submission_decides_who_reads_it(local):
    mallory = local_user(local.folder, MALLORY, MALLORY)
    everybody, runs = [local.bob, mallory], ("--site", REPOSITORY / "site.toml")
    # Whatever the umask is, nothing remains that everybody can write to.
    masked(local.alice, "000")("init", "--local", "--force", status=0)
    for umask, bits, readers in (
        ("000", 0o002, everybody),
        ("027", 0o027, [local.bob]),
        ("077", 0o077, []),
    ):
        alice = masked(local.alice, umask)
        directory = submit(local, alice)
        for who in everybody:
            assert who("collect", directory, *runs).ok == (who in readers)
        alice("collect", directory, status=0)
        assert list_modes(local, directory) == {0o2777 & ~bits, 0o666 & ~bits}
        names = {path.name for path in directory.rglob("*")}
        assert {"local.json", "local.out", "table.json", "measurements.json"} <= names


def test_a_group_reads_a_campaign_on_slurm_unless_it_is_closed(
    user, other_user, lab, checkout, work
):
    """The lab's two ordinary users: Slurm lets nobody else write to the files that it makes."""
    name = f"hpcbert-{os.getpid()}-g"

    def is_over(directory):
        return unqueued(partial(run, env=lab.daemon_environment), directory.name)

    labs.account("groupadd", "--system", name)
    try:
        gid = grp.getgrnam(name).gr_gid
        env = {"PYTHONPATH": str(checkout.path), "HPCBERT_SITE": "", "HPCBERT_RUNS": ""}
        members = []
        for member in (user, other_user):
            labs.account("usermod", "--append", "--groups", name, member.name)
            runner = labs.runner_of(replace(member, gid=gid), lab)
            members.append(Cli(work / "project", env, runner, checkout.python))
        work.chmod(0o755)
        project = make_project(work / "project", gid, is_over, *members)
        project.alice("init", "--slurm", status=0)
        directory = submit(project, project.alice)
        document = project.bob("collect", directory.name, "--json", status=0).document
        assert document["data"]["tables"][0]["rows"][0]["repeats"] == {"ok": 1, "asked": 1}
        assert list_modes(project, directory) == {0o2775, 0o664, 0o644}
        directory = submit(project, masked(project.alice, "077"))
        assert list_modes(project, directory) == {0o2700, 0o600}
        assert list(directory.glob("slurm/*.out"))
    finally:
        labs.account("groupdel", name)

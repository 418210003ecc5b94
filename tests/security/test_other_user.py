"""Another user of the cluster writes into the same `runs`: what they write is read, never run.

Root plays the victim, for only root can make files that belong to somebody else.
"""

import json
import os
import shlex
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcbert.campaign import store
from hpcbert.config import trust
from hpcbert.errors import UsageError
from hpcbert.script.render import _make_environment
from tests.kit import cli
from tests.kit.campaigns import Built
from tests.kit.cases import cases
from tests.kit.needs import lacks
from tests.kit.paths import REPOSITORY, TEMPLATES

MALLORY = 54321
OWN, THEIRS = "20261121T100000Z-pytorch-aaaaaa", "20991231T235959Z-pytorch-bbbbbb"
TO_RUN = ("retry", "retry --dry-run", "submit --resume", "cancel --yes")
TO_READ = ("monitor --once", "logs", "collect", "audit")

pytestmark = pytest.mark.needs("users")


def plant(path, user=MALLORY):
    os.chown(path, user, user, follow_symlinks=False)


def give_away(path):
    for entry in (path, *path.rglob("*")):
        plant(entry)


def open_up(path):
    path.chmod(path.stat().st_mode | 0o002)


def refuse(words, *places):
    result = cli.run(*words.split(), *places, status=2)
    return result.stderr


def obey(text):
    """Run the command that a hint ends with, twice; return the first path that is trusted now."""
    words = shlex.split(text.rpartition("hpcbert trust ")[2])
    for _ in range(2):
        assert cli.run("trust", *words).ok
    return words[0]


@pytest.fixture
def shared(hpcbert, slurm, watched, monkeypatch):
    """A directory that everybody can write to, with a campaign of the victim's and a later one."""
    monkeypatch.chdir(hpcbert.cwd)
    for name, value in hpcbert.env.items():
        monkeypatch.setenv(name, value)
    mine, theirs = watched(OWN), watched(THEIRS, job_id="77")
    for built in (mine, theirs):
        trap = f"#!/bin/sh\n: > {built.directory}/sprung\n"
        store.write_text(built.directory / built.campaign.arrays[0].script, trap)
        built.log("1n1g", 1, f"{built.campaign.id}\n")
    runs = mine.directory.parent
    give_away(theirs.directory)
    runs.chmod(0o1777)
    yield SimpleNamespace(slurm=slurm, mine=mine, theirs=theirs, runs=runs)
    assert not list(runs.glob("*/sprung"))
    assert slurm.calls("sbatch") == slurm.calls("scancel") == []


def test_the_newest_campaign_is_the_callers_own(shared):
    ended = "".join(shared.mine.sacct(number, "FAILED") for number in (1, 2))
    shared.slurm.answers(sacct=[ended])
    assert store.find_newest(shared.runs) == shared.mine.directory
    assert cli.run("logs").stdout == f"{OWN}\n"
    for words in (*TO_READ, "retry --dry-run"):
        assert "bbbbbb" not in cli.run(*words.split(), "--json").output, words
    assert store.resolve_submission("pytorch", shared.runs) == (shared.mine.directory,)
    # A part of an id never means somebody else's; nor does a directory of that very name.
    assert "There is no campaign 'bbbbbb'" in refuse("logs bbbbbb")
    give_away(Path(shutil.copytree(shared.theirs.directory, "aaaaaa")))
    for words in ("logs aaaaaa", "collect aaaaaa", "monitor aaaaaa --once"):
        assert THEIRS not in cli.run(*words.split()).stdout
    names = [f"2026112{day}T100000Z-oneflow-e{day}{day}" for day in range(2, 7)]
    for name in names:
        shutil.copytree(shared.mine.directory, shared.runs / name)
    assert all(name in refuse("logs oneflow") for name in names)
    unknown = refuse("logs paddle")
    assert all(name in unknown for name in (*names, OWN))
    assert THEIRS not in unknown


def test_campaigns_of_others_and_refused_submissions_are_left_out(shared):
    document = cli.run("collect", shared.runs, "--json").document
    assert THEIRS not in json.dumps(document["data"])
    assert any(f"{THEIRS} is left out" in warning for warning in document["warnings"])
    # A refused submission is not the newest.
    later = shutil.copytree(shared.mine.directory, shared.runs / "20261122T100000Z-pytorch-dddddd")
    built = Built(later, replace(shared.mine.campaign, id=later.name))
    (array,) = built.campaign.arrays
    refused = replace(array, state="refused", called="x", job_id="", error="bad account")
    built.change(arrays=(refused,))
    assert store.find_newest(shared.runs) == shared.mine.directory
    # Whether Slurm took one whose answer was never heard is not known: that one is.
    built.change(arrays=(replace(refused, state="intended"),))
    assert store.find_newest(shared.runs) == later
    built.change(arrays=(refused,))
    shutil.rmtree(shared.mine.directory)
    assert f"hpcbert submit --resume {later}" in refuse("collect")
    # Without one of the caller's own, nothing is in doubt.
    shutil.rmtree(later)
    document = cli.run("collect", shared.runs, "--json").document
    assert THEIRS in json.dumps(document["data"])
    assert any(f"belongs to user {MALLORY}" in warning for warning in document["warnings"])
    for word in ("retry", "collect", "monitor", "logs", "audit"):
        text = refuse(word)
        assert "You have no campaign yet; 1 belong to others." in text
        assert THEIRS in text


def test_nothing_runs_or_is_written_of_a_campaign_of_others_that_is_not_trusted(shared):
    theirs, before = shared.theirs.directory, sorted(shared.theirs.directory.iterdir())
    for words in (*TO_RUN, "monitor --max-retries 1"):
        for name in (theirs, THEIRS):
            text = refuse(words, name)
            assert f"belongs to user {MALLORY}" in text
            assert "hint:" in text
    for words in (f"note {theirs} x", f"audit {theirs} --accept x", f"rm --yes {THEIRS}"):
        assert f"belongs to user {MALLORY}" in refuse(words.replace(str(theirs), THEIRS))
    assert not shared.slurm.calls("squeue")
    for words in TO_READ:
        result = cli.run(*words.split(), theirs, "--json")
        if words != "audit":  # It was never collected: there is no evidence yet.
            assert f"belongs to user {MALLORY}" in " ".join(result.document["warnings"])
    assert sorted(theirs.iterdir()) == before
    # One that is trusted is somebody else's no more.
    text = refuse("retry --dry-run", theirs)
    assert f"hpcbert submit --like {shlex.quote(str(theirs))}" in text
    assert obey(text) == str(theirs)
    ended = "".join(shared.theirs.sacct(number, "FAILED") for number in (1, 2))
    shared.slurm.answers(sacct=[ended])
    assert "belongs to" not in cli.run("retry", "--dry-run", theirs).stderr
    # It is not the caller's: a new owner is another matter.
    plant(theirs / "manifest.json", MALLORY + 1)
    assert f"belongs to user {MALLORY + 1}" in refuse("retry --dry-run", theirs)


def test_nothing_runs_that_others_can_change(shared):
    script = shared.mine.campaign.arrays[0].script
    for number, spoil in enumerate((
        plant, open_up, lambda path: path.symlink_to(path.rename(path.with_name("kept"))),
    )):  # fmt: skip
        for name in (script, "scripts", "manifest.json", "recipe.toml"):
            directory = shared.runs / f"{number}-{name.replace('/', '-')}"
            shutil.copytree(shared.mine.directory, directory)
            store.refuse_foreign(directory)
            spoil(directory / name)
            with pytest.raises(UsageError, match=r"belongs to|changed by|is a link") as caught:
                store.refuse_foreign(directory)
            assert caught.value.where == str(directory / name)
            assert caught.value.hint


def test_links_and_open_directories_are_their_owners_to_close_or_trusted_once(shared):
    mine, runs = shared.mine.directory, shared.runs
    link = runs / "20991231T235959Z-pytorch-cccccc"
    link.symlink_to(mine)
    plant(link)
    assert store.find_campaigns(runs) == (mine,)
    assert "belongs to user" in refuse("retry", link)
    plant(link, 0)
    assert store.find_campaigns(runs) == (mine, link)
    link.unlink()
    assert not store.warn_about_writers(mine)
    runs.chmod(0o777)
    assert "chmod +t" in cli.run("logs").stderr
    mine.chmod(0o777)
    for words in TO_RUN:
        assert f"chmod o-w {shlex.quote(str(mine))}" in refuse(words, OWN)
    # A group is trusted not to take each other's away.
    for path in (runs, mine, *mine.rglob("*")):
        path.chmod(0o2775 if path.is_dir() else 0o664)
    store.refuse_foreign(mine)
    assert not store.warn_about_writers(mine)
    # A file system that is open to everybody is trusted once.
    later = shutil.copytree(shared.mine.directory, shared.runs / "20261122T100000Z-pytorch-dddddd")
    for path in (shared.runs, *shared.runs.rglob("*")):
        path.chmod(0o777)
    text = refuse("cancel --yes", OWN)
    assert "It can be changed by everybody" in text
    assert obey(text) == str(shared.runs)
    for name in (OWN, later.name):
        assert "changed by everybody: " not in cli.run("cancel", "--yes", name).stderr
    assert "belongs to" in cli.run("cancel", "--yes", THEIRS).stderr


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory that everybody can write to, with a site and a recipe; the victim works below."""
    place = tmp_path / "shared"
    (place / "work").mkdir(parents=True)
    place.chmod(0o1777)
    (place / "site.toml").write_text('schema = 1\nname = "theirs"\nscheduler = "local"\n')
    shutil.copytree(TEMPLATES / "pytorch", place / "templates/pytorch")
    monkeypatch.chdir(place / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    return place


def refusal(*words):
    """Return why render refuses what is in and above the working directory; empty if it does not."""
    _make_environment.cache_clear()  # A template that was loaded stays in the process.
    result = cli.run("render", "--fw", "pytorch", "--nodes", "1", *words)
    assert result.returncode in {0, 2}, result
    return "" if result.ok else result.stderr


@cases
@pytest.mark.parametrize("spoil", [plant, open_up])
def test_what_others_can_change_runs_only_if_it_is_named_or_trusted(
    place, spoil, monkeypatch, name
):
    path, templates = place / name, place / "templates"
    if not path.exists() and path.name == "base.sbatch.j2":
        shutil.copy(TEMPLATES / path.name, path)
    elif not path.exists():  # Another recipe's, which this one includes.
        path.parent.mkdir()
        path.write_text("")
        with (templates / "pytorch/run.sh.j2").open("a") as file:
            file.write('{% include "x/y.j2" %}')
    assert not refusal()
    spoil(path)
    text = refusal()
    assert f"error: {path}: It " in text
    assert f"user {MALLORY}" in text or f"chmod o-w {path}" in text
    if name == "site.toml":
        assert not refusal("--site", path)
        assert not refusal("--site", place)
        with monkeypatch.context() as patch:
            patch.setenv("HPCBERT_SITE", str(path))
            assert not refusal()
    else:
        assert not refusal("--templates", templates)
    obey(text)
    assert not refusal()


def test_a_site_and_its_recipes_are_refused_once(place):
    give_away(place)
    text = refusal()
    assert f"hpcbert trust {place}\n" in text
    # A named site vouches for its owner's recipes.
    assert not refusal("--site", place)
    obey(text)
    assert not refusal()
    # A colleague's recipe that is not used is nobody's business.
    shutil.copytree(place / "templates/pytorch", place / "templates/other")
    plant(place / "templates/other/recipe.toml", MALLORY + 1)
    assert not refusal()
    # That owner's files in there were not meant.
    plant(place / "templates/pytorch/run.sh.j2", MALLORY + 1)
    assert f"belongs to user {MALLORY + 1}" in refusal()


def test_what_a_group_may_write_to_runs_in_whatever_directory(place):
    folders = (place, place / "templates", place / "templates/pytorch")
    for gid, bits in ((0, 0o020), (MALLORY, 0)):
        for path in (place / "site.toml", *place.glob("templates/**/*")):
            os.chown(path, 0, gid)
            path.chmod(path.stat().st_mode & ~0o020 | bits)
        for mode in (0o2775, 0o777, 0o1777):
            for path in folders:
                path.chmod(mode)
            plant(place)
            assert not refusal(), (gid, oct(mode))


def test_a_user_whom_an_acl_names_is_trusted_as_a_group_is(place):
    # acl(5): owner, the user, group, mask, other.
    entries = ((1, 6, -1), (2, 6, MALLORY), (4, 4, -1), (16, 6, -1), (32, 4, -1))
    packed = b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(place / "site.toml", "system.posix_acl_access", struct.pack("<I", 2) + packed)
    except OSError as error:
        lacks("root", "ACLs", str(error))
    assert not refusal()


def test_a_link_belongs_to_its_maker_and_to_the_targets_owner(place):
    link, folder = place / "site.toml", place / "templates/pytorch"
    for path in (link, folder):
        path.symlink_to(path.rename(place / "work" / f"my-{path.name}"))
    assert not refusal()
    for spoilt in (link, link.resolve()):
        plant(spoilt)
        text = refusal()
        assert f"error: {spoilt}: It belongs to" in text
        obey(text)
        assert not refusal()
        plant(spoilt, 0)
    plant(folder)
    assert f"{folder}: It belongs to" in refusal()


def test_hpcberts_own_files_need_no_trust(tmp_path):
    """Root runs a user's checkout, or it is on a file system where everybody can write."""
    for name in ("hpcbert", "templates"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=ignore)
    shutil.copy(REPOSITORY / "site.toml", tmp_path)
    give_away(tmp_path)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o777)
    hpcbert = cli.Cli(tmp_path, {"HOME": "/nowhere", "PYTHONPATH": str(tmp_path)})
    hpcbert("render", "--fw", "pytorch", "--nodes", "1", status=0)


def test_readers_read_whatever_others_wrote_and_runners_refuse(place):
    give_away(place / "templates")
    point = "--fw pytorch --nodes 1"
    runners = [f"submit --dry-run {point}", f"render {point}", f"plan {point}"]
    runners += ["prepare --fw pytorch --dry-run"]
    for more in ([], ["doctor", "images remove x"]):
        for words in runners + more:
            assert "It belongs to" in refuse(words), words
        give_away(place)
        place.chmod(0o777)
    for words in ("frameworks", "frameworks show pytorch", "config", "list"):
        assert cli.run(*words.split()).ok, words
    sample = f"collect {place}/templates/pytorch/sample.log"
    for words in (sample, "monitor", "logs", "audit", "show", "report"):
        assert "hpcbert trust" not in cli.run(*words.split()).output, words


def test_trust_is_remembered_by_path_and_owner(place):
    def trusted(*words):
        return cli.run("trust", *words, "--json").data["trusted"]

    site = place / "site.toml"
    plant(site)
    assert trusted() == []
    for _ in range(2):
        entry = {"path": str(site), "owner": f"user {MALLORY}", "uid": MALLORY}
        assert trusted("../site.toml") == [entry]
    plant(site, MALLORY + 1)
    assert f"belongs to user {MALLORY + 1}" in refusal()
    assert trusted("--remove", str(site)) == []
    assert "do not trust" in refuse("trust --remove", site)
    assert "needs a path" in refuse("trust --remove")
    assert "No such file" in refuse("trust nowhere")
    # It is not inherited with somebody's home, as with sudo, where it keeps HOME.
    obey(refusal())
    file = trust.trust_file(os.environ)
    plant(file)
    assert f"{file}: It belongs to user {MALLORY}, not to you." in refusal()
    refuse("trust", site)
    assert file.stat().st_uid == MALLORY
    # A damaged memory of trust is named.
    plant(file, 0)
    for content in ("[", "{}x", '{"/a": "b"}', "[1]", "3"):
        file.write_text(content)
        assert f"{file}: Can't read it" in refusal(), content

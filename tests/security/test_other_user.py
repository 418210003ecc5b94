"""Another user of the cluster writes into the same `runs`: what they write is read, never run.

Root plays the victim, for only root can make files that belong to somebody else.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.config import trust
from hpcbert.errors import UsageError
from hpcbert.script.render import _make_environment
from tests.kit import cli
from tests.kit.campaigns import Built
from tests.kit.cli import Cli
from tests.kit.needs import lacks
from tests.kit.waiting import CEILING

MALLORY = 54321
OWN, THEIRS = "20261121T100000Z-pytorch-aaaaaa", "20991231T235959Z-pytorch-bbbbbb"
TO_RUN = (["retry"], ["retry", "--dry-run"], ["submit", "--resume"], ["cancel", "--yes"])
TO_READ = (["monitor", "--once"], ["logs"], ["collect"], ["audit"])

pytestmark = pytest.mark.needs("users")


def give_away(path: Path) -> None:
    for entry in (path, *path.rglob("*")):
        os.chown(entry, MALLORY, MALLORY, follow_symlinks=False)


@dataclass
class Shared:
    """A directory that everybody can write to, with a campaign of the victim's and a later one."""

    slurm: Any
    own: Built
    theirs: Built

    @property
    def runs(self) -> Path:
        return self.own.directory.parent

    def started(self) -> list[list[str]]:
        return [*self.slurm.calls("sbatch"), *self.slurm.calls("scancel")]


@pytest.fixture
def shared(
    hpcbert: Cli, slurm: Any, watched: Callable[..., Built], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shared]:
    monkeypatch.chdir(hpcbert.cwd)
    for name, value in hpcbert.env.items():
        monkeypatch.setenv(name, value)
    built, theirs = watched(OWN), watched(THEIRS, job_id="77")
    for tracked in (built, theirs):
        array = tracked.campaign.arrays[0]
        store.write_text(
            tracked.directory / array.script, f"#!/bin/sh\n: > {tracked.directory}/sprung\n"
        )
        tracked.log("1n1g", 1, f"{tracked.campaign.id}\n")
    give_away(theirs.directory)
    built.directory.parent.chmod(0o1777)
    workspace = Shared(slurm, built, theirs)
    yield workspace
    assert not list(workspace.runs.glob("*/sprung"))


def test_the_newest_campaign_is_the_callers_own(shared: Shared) -> None:
    ended = "".join(shared.own.sacct(number, "FAILED") for number in (1, 2))
    shared.slurm.answers(sacct=[ended])
    assert store.find_newest(shared.runs) == shared.own.directory
    assert cli.run("logs").stdout == f"{OWN}\n"
    for words in (*TO_READ, ["retry", "--dry-run"]):
        result = cli.run(*words, "--json")
        assert THEIRS not in result.stdout, words
        assert "bbbbbb" not in result.stderr
    assert not shared.started()


@pytest.mark.parametrize("words", [*TO_RUN, ["monitor", "--max-retries", "1"]], ids=" ".join)
def test_nothing_runs_of_a_campaign_that_is_somebody_elses(
    shared: Shared, words: list[str]
) -> None:
    for name in (str(shared.theirs.directory), THEIRS):
        result = cli.run(*words, name)
        assert result.returncode == 2
        assert f"belongs to user {MALLORY}" in result.stderr
        assert "hint:" in result.stderr
    assert not shared.started()
    assert not shared.slurm.calls("squeue")
    assert not (shared.theirs.directory / "lock").exists()


@pytest.mark.parametrize("words", TO_READ, ids=" ".join)
def test_reading_one_that_is_named_says_whose_it_is(shared: Shared, words: list[str]) -> None:
    before = sorted(path.name for path in shared.theirs.directory.iterdir())
    result = cli.run(*words, str(shared.theirs.directory), "--json")
    if words != ["audit"]:  # It was never collected: there is no evidence yet.
        assert f"belongs to user {MALLORY}" in " ".join(result.document["warnings"])
    assert sorted(path.name for path in shared.theirs.directory.iterdir()) == before


def test_a_part_of_an_id_never_means_somebody_elses(shared: Shared) -> None:
    assert store.resolve("pytorch", shared.runs) == shared.own.directory
    result = cli.run("logs", "bbbbbb")
    assert result.returncode == 2
    assert "There is no campaign 'bbbbbb'" in result.stderr
    # A directory of that very name, in the directory where the victim works.
    shutil.copytree(shared.theirs.directory, Path.cwd() / "aaaaaa")
    give_away(Path.cwd() / "aaaaaa")
    for word in ("logs", "collect", "monitor"):
        assert THEIRS not in cli.run(word, "aaaaaa", *(["--once"] * (word == "monitor"))).stdout


def test_a_directory_of_campaigns_is_collected_without_other_peoples(shared: Shared) -> None:
    document = cli.run("collect", shared.runs, "--json").document
    assert THEIRS not in json.dumps(document["data"])
    assert any(f"{THEIRS} is left out" in warning for warning in document["warnings"])
    shutil.rmtree(shared.own.directory)
    # Without one of the caller's own, nothing is in doubt.
    document = cli.run("collect", shared.runs, "--json").document
    assert THEIRS in json.dumps(document["data"])
    assert any(f"belongs to user {MALLORY}" in warning for warning in document["warnings"])


def test_a_link_to_the_callers_own_campaign_is_its_makers(shared: Shared) -> None:
    link = shared.runs / "20991231T235959Z-pytorch-cccccc"
    link.symlink_to(shared.own.directory)
    os.chown(link, MALLORY, MALLORY, follow_symlinks=False)
    assert store.find_campaigns(shared.runs) == (shared.own.directory,)
    result = cli.run("retry", str(link))
    assert result.returncode == 2
    assert "belongs to user" in result.stderr
    os.chown(link, 0, 0, follow_symlinks=False)
    assert store.find_campaigns(shared.runs) == (shared.own.directory, link)


def test_without_a_campaign_of_ones_own_others_are_named(shared: Shared) -> None:
    shutil.rmtree(shared.own.directory)
    for word in ("retry", "collect", "monitor", "logs", "audit"):
        result = cli.run(word)
        assert result.returncode == 2, word
        assert "You have no campaign yet; 1 belong to others." in result.stderr
        assert THEIRS in result.stderr


def plant(path: Path) -> None:
    os.chown(path, MALLORY, MALLORY)


def open_up(path: Path, bits: int = 0o002) -> None:
    path.chmod(path.stat().st_mode | bits)


def link_to(path: Path) -> None:
    original = path.with_name(f"{path.name}.kept")
    path.rename(original)
    path.symlink_to(original)


@pytest.mark.parametrize("spoil", [plant, open_up, link_to])
@pytest.mark.parametrize(
    "name", ["scripts/bert-tiny_1n1g_fp32_b4.sbatch", "scripts", "manifest.json", "recipe.toml"]
)
def test_nothing_runs_that_others_can_change(
    shared: Shared, spoil: Callable[[Path], None], name: str
) -> None:
    spoil(shared.own.directory / name)
    with pytest.raises(UsageError, match=r"belongs to|changed by|is a link") as caught:
        store.refuse_foreign(shared.own.directory)
    assert caught.value.where == str(shared.own.directory / name)
    assert caught.value.hint


def test_a_campaign_in_a_groups_hands_runs(shared: Shared) -> None:
    for path in (shared.runs, shared.own.directory, *shared.own.directory.rglob("*")):
        path.chmod(0o2775 if path.is_dir() else 0o664)
    store.refuse_foreign(shared.own.directory)
    assert not store.warn_about_writers(shared.own.directory)


def test_a_campaign_that_is_trusted_is_somebody_elses_no_more(shared: Shared) -> None:
    theirs = shared.theirs.directory
    result = cli.run("retry", "--dry-run", theirs)
    assert result.returncode == 2
    assert f"hpcbert submit --like {shlex.quote(str(theirs))}" in result.stderr
    assert f"hpcbert trust {shlex.quote(str(theirs))}\n" in result.stderr
    assert cli.run("trust", theirs).ok
    ended = "".join(shared.theirs.sacct(number, "FAILED") for number in (1, 2))
    shared.slurm.answers(sacct=[ended])
    assert "belongs to" not in cli.run("retry", "--dry-run", theirs).stderr
    # It is not the caller's: a new owner is another matter.
    os.chown(theirs / "manifest.json", MALLORY + 1, -1)
    assert f"belongs to user {MALLORY + 1}" in cli.run("retry", "--dry-run", theirs).stderr


def test_a_file_system_that_is_open_to_everybody_is_trusted_once(shared: Shared) -> None:
    later = shared.runs / "20261122T100000Z-pytorch-dddddd"
    shutil.copytree(shared.own.directory, later)
    for path in (shared.runs, *shared.runs.rglob("*")):
        path.chmod(0o777)
    result = cli.run("cancel", "--yes", OWN)
    assert "It can be changed by everybody" in result.stderr
    words = shlex.split(result.stderr.rpartition("hpcbert trust ")[2])
    assert words == [str(shared.runs)]
    assert cli.run("trust", *words).ok
    for name in (OWN, later.name):
        assert "changed by everybody: " not in cli.run("cancel", "--yes", name).stderr
    assert "belongs to" in cli.run("cancel", "--yes", THEIRS).stderr


@pytest.mark.parametrize("words", [("note", "x"), ("audit", "--accept", "x"), ("rm", "--yes")])
def test_nothing_is_written_into_a_colleagues_campaign(
    shared: Shared, words: tuple[str, ...]
) -> None:
    name, *more = words
    places = (str(shared.theirs.directory), *more) if name != "rm" else (*more, THEIRS)
    result = cli.run(name, *places)
    assert result.returncode == 2
    assert f"belongs to user {MALLORY}" in result.stderr


@pytest.mark.parametrize("words", TO_RUN, ids=" ".join)
def test_who_opened_a_campaign_to_others_has_to_close_it_first(
    shared: Shared, words: list[str]
) -> None:
    shared.own.directory.chmod(0o777)
    result = cli.run(*words, OWN)
    assert result.returncode == 2
    assert f"chmod o-w {shlex.quote(str(shared.own.directory))}" in result.stderr
    assert not shared.started()


def test_runs_without_the_sticky_bit_get_a_warning(shared: Shared) -> None:
    assert not store.warn_about_writers(shared.own.directory)
    shared.runs.chmod(0o777)
    assert "chmod +t" in cli.run("logs").stderr
    # Those of a group: it is trusted not to take each other's away.
    shared.runs.chmod(0o2775)
    assert not store.warn_about_writers(shared.own.directory)


SITE = 'schema = 1\nname = "theirs"\nscheduler = "local"\n'


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that everybody can write to, below which the victim works."""
    place = tmp_path / "shared"
    (place / "work").mkdir(parents=True)
    place.chmod(0o1777)
    (place / "site.toml").write_text(SITE)
    monkeypatch.chdir(place / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    return place


def refusal(*words: str) -> str:
    """Return why render refuses what is in and above the working directory; empty if it does not."""
    _make_environment.cache_clear()  # A template that was loaded stays in the process.
    result = cli.run("render", "--fw", "pytorch", "--nodes", "1", *words)
    assert result.returncode in {0, 2}, result
    return "" if result.ok else result.stderr


def copy_recipe(place: Path) -> Path:
    """Copy a recipe next to a site.toml; return the folder of recipes."""
    templates = place / "templates"
    shutil.copytree(Path(__file__).parents[2] / "templates/pytorch", templates / "pytorch")
    return templates


@pytest.mark.parametrize("spoil", [plant, open_up])
def test_a_site_of_others_is_run_only_if_it_is_named_or_trusted(
    elsewhere: Path, spoil: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = elsewhere / "site.toml"
    assert not refusal()
    spoil(site)
    text = refusal()
    assert f"error: {site}: It " in text
    assert f"user {MALLORY}" in text or f"chmod o-w {site}" in text
    assert not refusal("--site", str(site))
    assert not refusal("--site", str(elsewhere))
    with monkeypatch.context() as patch:
        patch.setenv("HPCBERT_SITE", str(site))
        assert not refusal()
    obey(text)
    assert not refusal()


def obey(text: str) -> None:
    """Run the command that a hint ends with, twice."""
    words = shlex.split(text.rpartition("hpcbert trust ")[2])
    assert words
    for _ in range(2):
        assert cli.run("trust", *words).ok


@pytest.mark.parametrize("folder", [0o2775, 0o777, 0o1777], ids=oct)
@pytest.mark.parametrize(
    "spoil",
    [partial(open_up, bits=0o020), partial(os.chown, uid=0, gid=MALLORY)],
    ids=["open", "given"],
)
def test_what_a_group_may_write_to_runs_in_whatever_directory(
    elsewhere: Path, spoil: Callable[[Path], None], folder: int
) -> None:
    templates = copy_recipe(elsewhere)
    for path in (elsewhere / "site.toml", *templates.rglob("*")):
        spoil(path)
    for path in (elsewhere, templates, templates / "pytorch"):
        path.chmod(folder)
    os.chown(elsewhere, MALLORY, MALLORY)
    assert not refusal()


def test_a_user_whom_an_acl_names_is_trusted_as_a_group_is(elsewhere: Path) -> None:
    # acl(5): owner, the user, group, mask, other.
    entries = ((1, 6, -1), (2, 6, MALLORY), (4, 4, -1), (16, 6, -1), (32, 4, -1))
    packed = b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(
            elsewhere / "site.toml", "system.posix_acl_access", struct.pack("<I", 2) + packed
        )
    except OSError as error:
        lacks("root", "ACLs", str(error))
    assert not refusal()


@pytest.mark.parametrize("target", ["mine", "theirs"])
def test_a_link_belongs_to_its_maker_and_to_the_targets_owner(elsewhere: Path, target: str) -> None:
    link, file = elsewhere / "site.toml", elsewhere / "work" / "mine.toml"
    link.rename(file)
    link.symlink_to(file)
    folder = copy_recipe(elsewhere) / "pytorch"
    folder.symlink_to(folder.rename(elsewhere / "work" / "recipe"))
    assert not refusal()
    spoilt = link if target == "mine" else file
    os.chown(spoilt, MALLORY, MALLORY, follow_symlinks=False)
    text = refusal()
    assert f"error: {spoilt}: It belongs to" in text
    obey(text)
    assert not refusal()
    os.chown(folder, MALLORY, MALLORY, follow_symlinks=False)
    assert f"{folder}: It belongs to" in refusal()


@pytest.mark.parametrize("spoil", [plant, open_up])
@pytest.mark.parametrize("name", ["recipe.toml", "run.sh.j2", "../base.sbatch.j2", "../x/y.j2"])
def test_recipes_of_others_run_only_if_they_are_named_or_trusted(
    elsewhere: Path, spoil: Callable[[Path], None], name: str
) -> None:
    templates = copy_recipe(elsewhere)
    path = templates / "pytorch" / name
    if name.endswith("y.j2"):  # Another recipe's, which this one includes.
        path.parent.resolve().mkdir()
        path.write_text("")
        with (templates / "pytorch/run.sh.j2").open("a") as file:
            file.write('{% include "x/y.j2" %}')
    elif not path.exists():
        shutil.copy(Path(__file__).parents[2] / "templates" / path.name, path)
    assert not refusal()
    spoil(path)
    text = refusal()
    assert re.search("belongs to|changed by everybody", text)
    assert not refusal("--templates", str(templates))
    obey(text)
    assert not refusal()


def test_a_site_and_its_recipes_are_refused_once(elsewhere: Path) -> None:
    give_away(elsewhere)
    copy_recipe(elsewhere)
    give_away(elsewhere)
    text = refusal()
    assert f"hpcbert trust {elsewhere}\n" in text
    obey(text)
    assert not refusal()
    # A colleague's recipe that is not used is nobody's business.
    shutil.copytree(elsewhere / "templates/pytorch", elsewhere / "templates/other")
    os.chown(elsewhere / "templates/other/recipe.toml", MALLORY + 1, -1)
    assert not refusal()
    # That owner's files in there were not meant.
    os.chown(elsewhere / "templates/pytorch/run.sh.j2", MALLORY + 1, -1)
    assert f"belongs to user {MALLORY + 1}" in refusal()


def test_a_named_site_vouches_for_its_owners_recipes(elsewhere: Path) -> None:
    copy_recipe(elsewhere)
    give_away(elsewhere)
    assert not refusal("--site", str(elsewhere))


def test_hpcberts_own_files_need_no_trust(tmp_path: Path, repository: Path) -> None:
    """Root runs a user's checkout, or it is on a file system where everybody can write."""
    for name in ("hpcbert", "templates"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / name, tmp_path / name, ignore=ignore)
    shutil.copy(repository / "site.toml", tmp_path)
    give_away(tmp_path)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o777)
    words = ["render", "--fw", "pytorch", "--nodes", "1"]
    env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-m", "hpcbert", *words],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=CEILING,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


def test_readers_read_whatever_others_wrote_and_runners_refuse(elsewhere: Path) -> None:
    give_away(copy_recipe(elsewhere))
    point = ["--fw", "pytorch", "--nodes", "1"]
    runners = [["submit", "--dry-run", *point], ["render", *point], ["plan", *point]]
    runners += [["prepare", "--fw", "pytorch", "--dry-run"]]
    for more in ([], [["doctor"], ["images", "remove", "x"]]):
        for words in runners + more:
            result = cli.run(*words)
            assert result.returncode == 2, words
            assert "It belongs to" in result.stderr, words
        give_away(elsewhere)
        elsewhere.chmod(0o777)
    sample = str(elsewhere / "templates/pytorch/sample.log")
    for words in (["frameworks"], ["frameworks", "show", "pytorch"], ["config"], ["list"]):
        assert cli.run(*words).ok, words
    for words in (["collect", sample], ["monitor"], ["logs"], ["audit"], ["show"], ["report"]):
        assert "hpcbert trust" not in cli.run(*words).output, words


def test_trust_is_remembered_by_path_and_owner(elsewhere: Path) -> None:
    def trust(*words: str) -> Any:
        return cli.run("trust", *words, "--json").document

    site = elsewhere / "site.toml"
    plant(site)
    assert trust()["data"]["trusted"] == []
    for _ in range(2):
        entry = {"path": str(site), "owner": f"user {MALLORY}", "uid": MALLORY}
        assert trust("../site.toml")["data"]["trusted"] == [entry]
    os.chown(site, MALLORY + 1, MALLORY)
    assert f"belongs to user {MALLORY + 1}" in refusal()
    assert trust("--remove", str(site))["data"]["trusted"] == []
    for words, text in (
        (("--remove", str(site)), "do not trust"),
        (("--remove",), "needs a path"),
        (("nowhere",), "No such file"),
    ):
        document = trust(*words)
        assert document["exit_code"] == 2
        assert text in document["errors"][0]["message"]


@pytest.mark.parametrize("content", ["[", "{}x", '{"/a": "b"}', "[1]", "3"])
def test_a_damaged_memory_of_trust_is_named(elsewhere: Path, content: str) -> None:
    plant(elsewhere / "site.toml")
    file = trust.trust_file(os.environ)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert f"{file}: Can't read it" in refusal()


def test_trust_is_not_inherited_with_somebodys_home(elsewhere: Path) -> None:
    """As with sudo, where it keeps HOME."""
    site = elsewhere / "site.toml"
    plant(site)
    obey(refusal())
    file = trust.trust_file(os.environ)
    os.chown(file, MALLORY, MALLORY)
    assert f"{file}: It belongs to user {MALLORY}, not to you." in refusal()
    assert cli.run("trust", site).returncode == 2
    assert file.stat().st_uid == MALLORY


def test_a_refused_submission_is_not_the_newest(shared: Shared) -> None:
    later = shared.runs / "20261122T100000Z-pytorch-dddddd"
    shutil.copytree(shared.own.directory, later)
    array = replace(
        shared.own.campaign.arrays[0], state="refused", called="x", job_id="", error="bad account"
    )
    store.write_manifest(later, replace(shared.own.campaign, id=later.name, arrays=(array,)))
    assert store.find_newest(shared.runs) == shared.own.directory
    # Whether Slurm took one whose answer was never heard is not known: that one is.
    in_doubt = replace(array, state="intended")
    store.write_manifest(later, replace(shared.own.campaign, id=later.name, arrays=(in_doubt,)))
    assert store.find_newest(shared.runs) == later
    store.write_manifest(later, replace(shared.own.campaign, id=later.name, arrays=(array,)))
    shutil.rmtree(shared.own.directory)
    result = cli.run("collect")
    assert result.returncode == 2
    assert f"hpcbert submit --resume {later}" in result.stderr


def test_an_ambiguous_name_lists_all_and_an_unknown_one_what_there_is(shared: Shared) -> None:
    names = [f"2026112{day}T100000Z-oneflow-e{day}{day}" for day in range(2, 7)]
    for name in names:
        shutil.copytree(shared.own.directory, shared.runs / name)
    result = cli.run("logs", "oneflow")
    assert result.returncode == 2
    assert all(name in result.stderr for name in names)
    result = cli.run("logs", "paddle")
    assert all(name in result.stderr for name in (*names, OWN))
    assert THEIRS not in result.stderr

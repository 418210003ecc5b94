"""Another user of the cluster writes into the same `runs`: nothing of theirs is run or counted.

Root plays the victim, for only root can make files that belong to somebody else.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hpcbert.campaign import store
from hpcbert.cli.main import root
from hpcbert.config import places
from hpcbert.errors import ConfigError, UsageError
from hpcbert.system import ownership
from tests.kit.campaigns import Built

MALLORY = 54321
OWN, THEIRS = "20261121T100000Z-pytorch-aaaaaa", "20991231T235959Z-pytorch-bbbbbb"
TO_RUN = (["retry"], ["retry", "--dry-run"], ["submit", "--resume"], ["cancel", "--yes"])
TO_READ = (["monitor", "--once"], ["logs"], ["collect"], ["audit"])

pytestmark = pytest.mark.needs("users")


def give_away(path: Path) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, MALLORY, MALLORY, follow_symlinks=False)


@dataclass
class Shared:
    """A directory that everybody can write to, with a campaign of the victim's and a later one."""

    hpcbert: Any
    slurm: Any
    own: Built
    theirs: Built

    @property
    def runs(self) -> Path:
        return self.own.directory.parent

    def __call__(self, *words: str) -> Any:
        return self.hpcbert(*words)

    def started(self) -> list[list[str]]:
        return [call for name in ("sbatch", "scancel") for call in self.slurm.calls(name)]


@pytest.fixture
def shared(hpcbert: Any, slurm: Any, watched: Callable[..., Built]) -> Iterator[Shared]:
    own, theirs = watched(OWN), watched(THEIRS, job_id="77")
    for one in (own, theirs):
        array = one.campaign.arrays[0]
        store.write_text(one.directory / array.script, f"#!/bin/sh\n: > {one.directory}/sprung\n")
        one.log("1n1g", 1, f"{one.campaign.id}\n")
    give_away(theirs.directory)
    own.directory.parent.chmod(0o1777)
    made = Shared(hpcbert, slurm, own, theirs)
    yield made
    assert not list(made.runs.glob("*/sprung"))


def test_the_newest_campaign_is_the_callers_own(shared: Shared) -> None:
    ended = "".join(shared.own.sacct(number, "FAILED") for number in (1, 2))
    shared.slurm.answers(sacct=[ended])
    assert store.newest(shared.runs) == shared.own.directory
    assert shared("logs").stdout == f"{OWN}\n"
    for words in (*TO_READ, ["retry", "--dry-run"]):
        done = shared(*words, "--json")
        assert THEIRS not in done.stdout, words
        assert "bbbbbb" not in done.stderr
    assert not shared.started()


@pytest.mark.parametrize("words", TO_RUN, ids=" ".join)
@pytest.mark.parametrize("how", ["path", "id"])
def test_nothing_runs_of_a_campaign_that_is_somebody_elses(
    shared: Shared, words: list[str], how: str
) -> None:
    named = str(shared.theirs.directory) if how == "path" else THEIRS
    done = shared(*words, named)
    assert done.returncode == 2
    assert f"belongs to user {MALLORY}" in done.stderr
    assert "hint:" in done.stderr
    assert not shared.started()
    assert not (shared.theirs.directory / "lock").exists()


def test_healing_is_refused_before_anything_is_watched(shared: Shared) -> None:
    done = shared("monitor", str(shared.theirs.directory), "--max-retries", "1")
    assert done.returncode == 2
    assert f"belongs to user {MALLORY}" in done.stderr
    assert not shared.slurm.calls("squeue")


@pytest.mark.parametrize("words", TO_READ, ids=" ".join)
def test_reading_one_that_is_named_says_whose_it_is(shared: Shared, words: list[str]) -> None:
    before = sorted(path.name for path in shared.theirs.directory.iterdir())
    done = shared(*words, str(shared.theirs.directory), "--json")
    document = json.loads(done.stdout.splitlines()[-1])
    if words != ["audit"]:  # It was never collected: there is no evidence yet.
        assert any(f"belongs to user {MALLORY}" in one for one in document["warnings"]), document
    assert sorted(path.name for path in shared.theirs.directory.iterdir()) == before


def test_a_part_of_an_id_never_means_somebody_elses(shared: Shared) -> None:
    assert store.resolve("pytorch", shared.runs) == shared.own.directory
    done = shared("logs", "bbbbbb")
    assert done.returncode == 2
    assert "There is no campaign 'bbbbbb'" in done.stderr
    # A directory of that very name, in the directory where the victim works.
    shutil.copytree(shared.theirs.directory, shared.hpcbert.cwd / "aaaaaa")
    give_away(shared.hpcbert.cwd / "aaaaaa")
    for word in ("logs", "collect", "monitor"):
        assert THEIRS not in shared(word, "aaaaaa", *(["--once"] * (word == "monitor"))).stdout


def test_a_directory_of_campaigns_is_collected_without_other_peoples(shared: Shared) -> None:
    document = json.loads(shared("collect", str(shared.runs), "--json").stdout)
    assert THEIRS not in json.dumps(document["data"])
    assert any(f"{THEIRS} is left out" in one for one in document["warnings"])
    shutil.rmtree(shared.own.directory)
    done = shared("collect", str(shared.runs))
    assert done.returncode == 2
    assert "is left out" in done.stderr


def test_a_link_to_the_callers_own_campaign_is_its_makers(shared: Shared) -> None:
    link = shared.runs / "20991231T235959Z-pytorch-cccccc"
    link.symlink_to(shared.own.directory)
    os.chown(link, MALLORY, MALLORY, follow_symlinks=False)
    assert store.find_campaigns(shared.runs) == (shared.own.directory,)
    done = shared("retry", str(link))
    assert done.returncode == 2
    assert "belongs to user" in done.stderr
    os.chown(link, 0, 0, follow_symlinks=False)
    assert store.find_campaigns(shared.runs) == (shared.own.directory, link)


def test_without_a_campaign_of_ones_own_others_are_named(shared: Shared) -> None:
    shutil.rmtree(shared.own.directory)
    for word in ("retry", "collect", "monitor", "logs", "audit"):
        done = shared(word)
        assert done.returncode == 2, word
        assert "You have no campaign yet; 1 belong to others." in done.stderr
        assert THEIRS in done.stderr


def plant(path: Path) -> None:
    os.chown(path, MALLORY, MALLORY)


def open_up(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def open_to_group(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def link_to(path: Path) -> None:
    kept = path.with_name(f"{path.name}.kept")
    path.rename(kept)
    path.symlink_to(kept)


@pytest.mark.parametrize("spoil", [plant, open_up, open_to_group, link_to])
@pytest.mark.parametrize(
    "name", ["scripts/bert-tiny_1n1g_fp32_b4.sbatch", "scripts", "manifest.json", "recipe.toml"]
)
def test_nothing_runs_that_others_can_change(
    shared: Shared, spoil: Callable[[Path], None], name: str
) -> None:
    spoil(shared.own.directory / name)
    with pytest.raises(UsageError, match=r"belongs to|changed by|is a link") as caught:
        store.claim(shared.own.directory)
    assert caught.value.where == str(shared.own.directory / name)
    assert caught.value.hint


@pytest.mark.parametrize("words", TO_RUN, ids=" ".join)
def test_who_opened_a_campaign_to_others_has_to_close_it_first(
    shared: Shared, words: list[str]
) -> None:
    shared.own.directory.chmod(0o777)
    done = shared(*words, OWN)
    assert done.returncode == 2
    assert f"chmod go-w {shared.own.directory}" in done.stderr
    assert not shared.started()


def test_a_script_is_checked_as_it_is_read(shared: Shared) -> None:
    array = shared.own.campaign.arrays[0]
    path = shared.own.directory / array.script
    assert ownership.read_own(path).startswith(b"#!/bin/sh")
    for spoil in (open_up, link_to):
        spoil(path)
        with pytest.raises((OSError, UsageError)):
            ownership.read_own(path)


def test_runs_without_the_sticky_bit_get_a_warning(shared: Shared) -> None:
    assert not store.caution(shared.own.directory)
    shared.runs.chmod(0o777)
    assert "chmod +t" in shared("logs").stderr
    # Those of a group: it is trusted not to take each other's away.
    shared.runs.chmod(0o2775)
    assert not store.caution(shared.own.directory)


def test_a_private_group_is_its_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.touch()
    path.chmod(0o664)
    assert ownership.writers(path.stat(), private=True) == "the group root"
    person = replace_entry(pwd.getpwuid(0), pw_name="me", pw_gid=7)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: person)
    group = grp.getgrgid(0)
    for members, name, private in (([], "me", True), (["you"], "me", False), ([], "all", False)):
        entry = replace_entry(group, gr_name=name, gr_gid=7, gr_mem=members)
        monkeypatch.setattr(grp, "getgrgid", lambda _, entry=entry: entry)
        status = os.stat_result((0o100664, 0, 0, 1, 1000, 7, 0, 0, 0, 0))
        assert (ownership.writers(status, private=True) == "") == private
        assert ownership.writers(status)


def replace_entry(entry: Any, **changes: Any) -> Any:
    fields = [name for name in dir(entry) if name.startswith(("pw_", "gr_"))]
    return type("Entry", (), {name: getattr(entry, name) for name in fields} | changes)()


SITE = 'schema = 1\nname = "theirs"\nscheduler = "local"\n'


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that everybody can write to, below which the victim works."""
    place = tmp_path / "shared"
    (place / "work").mkdir(parents=True)
    place.chmod(0o1777)
    (place / "site.toml").write_text(SITE)
    monkeypatch.chdir(place / "work")
    return place


def found(place: Path) -> Path:
    return places.find_site("", env={"HOME": "/nowhere"}, cwd=place / "work")[0]


@pytest.mark.parametrize("spoil", [plant, open_up, open_to_group])
def test_a_site_that_was_found_is_the_callers_or_roots(
    elsewhere: Path, spoil: Callable[[Path], None]
) -> None:
    site = elsewhere / "site.toml"
    assert found(elsewhere) == site
    spoil(site)
    with pytest.raises(ConfigError, match=r"belongs to|changed by") as caught:
        found(elsewhere)
    assert caught.value.where == str(site)
    assert f"--site {site}" in caught.value.hint
    # Who names it trusts it.
    for flag, variable in ((str(site), ""), ("", str(site))):
        env = {"HPCBERT_SITE": variable}
        assert places.find_site(flag, env=env, cwd=Path("/"))[0] == site


def test_a_site_that_can_be_replaced_is_refused(elsewhere: Path) -> None:
    elsewhere.chmod(0o777)
    with pytest.raises(ConfigError, match="can be changed by everybody"):
        found(elsewhere)


def test_a_site_by_somebodys_link_is_refused(elsewhere: Path) -> None:
    (elsewhere / "site.toml").rename(elsewhere / "work" / "mine.toml")
    (elsewhere / "site.toml").symlink_to(elsewhere / "work" / "mine.toml")
    assert found(elsewhere)
    os.chown(elsewhere / "site.toml", MALLORY, MALLORY, follow_symlinks=False)
    with pytest.raises(ConfigError, match="belongs to"):
        found(elsewhere)


@pytest.mark.parametrize("spoil", [plant, open_up, open_to_group])
@pytest.mark.parametrize("name", ["", "pytorch", "pytorch/recipe.toml", "pytorch/run.sh.j2"])
def test_recipes_beside_the_site_are_in_the_same_hands(
    elsewhere: Path, spoil: Callable[[Path], None], name: str
) -> None:
    templates = elsewhere / "templates"
    shutil.copytree(Path(__file__).parents[2] / "templates/pytorch", templates / "pytorch")
    site = elsewhere / "site.toml"
    assert places.recipe_folders(site)[0] == templates
    spoil(templates / name)
    with pytest.raises(ConfigError, match=r"belongs to|changed by") as caught:
        places.recipe_folders(site)
    assert f"--templates {templates}" in caught.value.hint
    assert places.recipe_folders(site, (str(templates),))[0] == templates


def test_every_command_refuses_a_planted_site_and_planted_recipes(elsewhere: Path) -> None:
    templates = elsewhere / "templates"
    shutil.copytree(Path(__file__).parents[2] / "templates/pytorch", templates / "pytorch")
    give_away(templates)
    commands = (["submit", "--dry-run"], ["render"], ["frameworks"], ["collect", "x.log"])
    for words in commands:
        done = CliRunner().invoke(root, words)
        assert done.exit_code == 2, words
        assert "templates: It belongs to" in done.stderr
    os.chown(elsewhere / "site.toml", MALLORY, MALLORY)
    for words in (*commands, ["retry"], ["monitor"], ["doctor"], ["config"], ["logs"], ["audit"]):
        done = CliRunner().invoke(root, words)
        assert done.exit_code == 2, words
        assert "site.toml: It belongs to" in done.stderr


def test_a_refused_submission_is_not_the_newest(shared: Shared) -> None:
    later = shared.runs / "20261122T100000Z-pytorch-dddddd"
    shutil.copytree(shared.own.directory, later)
    array = replace(
        shared.own.campaign.arrays[0], state="refused", called="x", job_id="", error="bad account"
    )
    store.write_manifest(later, replace(shared.own.campaign, id=later.name, arrays=(array,)))
    assert store.newest(shared.runs) == shared.own.directory
    # Whether Slurm took one whose answer was never heard is not known: that one is.
    in_doubt = replace(array, state="intended")
    store.write_manifest(later, replace(shared.own.campaign, id=later.name, arrays=(in_doubt,)))
    assert store.newest(shared.runs) == later
    store.write_manifest(later, replace(shared.own.campaign, id=later.name, arrays=(array,)))
    shutil.rmtree(shared.own.directory)
    done = shared("collect")
    assert done.returncode == 2
    assert f"hpcbert submit --resume {later}" in done.stderr


def test_an_ambiguous_name_lists_all_and_an_unknown_one_what_there_is(shared: Shared) -> None:
    names = [f"2026112{day}T100000Z-oneflow-e{day}{day}" for day in range(2, 7)]
    for name in names:
        shutil.copytree(shared.own.directory, shared.runs / name)
    done = shared("logs", "oneflow")
    assert done.returncode == 2
    assert all(name in done.stderr for name in names)
    done = shared("logs", "paddle")
    assert all(name in done.stderr for name in (*names, OWN))
    assert THEIRS not in done.stderr

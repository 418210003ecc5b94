"""Listing and removing campaigns."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.overview import STATES
from hpcbert.cli.list import Filter, list_overviews
from hpcbert.commands.submit import remove
from hpcbert.errors import HpcbertError, SchedulerError, UsageError
from hpcbert.model import parse_utc
from hpcbert.system import files
from hpcbert.system.runner import Runner
from tests.kit.campaigns import Build, Built, collect_campaigns, report_states
from tests.kit.cases import read_constant
from tests.kit.slurm import AWAY, Slurm, failed

NOW = parse_utc("2026-11-21T12:00:00Z") or 0.0
DAY = 86400.0


@pytest.fixture
def four(build: Build) -> Path:
    """Campaigns of one, two, three and four days ago."""
    for day in (1, 2, 3, 4):
        framework = "oneflow" if day % 2 else "pytorch"
        name = f"2026112{5 - day}T000000Z-{framework}-{day}"
        text = f"2026-11-{21 - day}T12:00:00Z"
        built = build("1n1g", name=name, created=text, framework=framework)
        if day == 3:
            built.finish()
            store.write_note(built.directory, "After the Update")
    return built.directory.parent


@pytest.mark.parametrize(
    ("selection", "days"),
    [
        (Filter(), "1234"),
        (Filter(limit=3), "123"),
        (Filter(frameworks=["oneflow"]), "13"),
        (Filter(frameworks=["oneflow", "pytorch"], limit=1), "1"),
        (Filter(states=["ended"]), "3"),
        (Filter(states=STATES), "1234"),
        (Filter(name="PYTORCH-2"), "2"),
        (Filter(name="update"), "3"),
        (Filter(newer=2.5 * DAY), "12"),
        (Filter(older=2.5 * DAY), "34"),
        (Filter(newer=3.5 * DAY, older=1.5 * DAY), "23"),
        (Filter(frameworks=["mxnet"]), ""),
    ],
    ids=str,
)
def test_of_campaigns_the_newest_first_a_filter_leaves_some_out(
    four: Path, selection: Filter, days: str
) -> None:
    overviews = list_overviews(four, selection, now=NOW)
    assert "".join(overview.campaign[-1] for overview in overviews) == days
    assert list_overviews(four / "absent", selection, now=NOW) == ()


def yes() -> bool:
    return True


def quiet() -> Runner:
    return Slurm(squeue=[""])


@pytest.fixture
def built(build: Build) -> Built:
    return build("1n1g", "1n4g")


def test_what_has_ended_is_removed_and_nothing_beside_it(built: Built, build: Build) -> None:
    other = build("1n1g", name="20261121-pytorch-def")
    built.finish()
    assert remove([built.directory], confirm=yes, run=quiet())
    assert list(other.directory.parent.iterdir()) == [other.directory]


def test_nothing_is_removed_without_agreement(built: Built) -> None:
    built.finish()
    assert not remove([built.directory], confirm=lambda: False, run=quiet())
    assert store.find_campaigns(built.directory.parent) == (built.directory,)
    assert not (built.directory / store.LOCK).exists()


def test_while_one_runs_none_is_removed(built: Built, build: Build) -> None:
    other = build("1n1g", name="20261121-pytorch-def", jobs=("90",))
    other.finish()
    slurm = Slurm(squeue=[built.squeue(2, "RUNNING")])
    for force in (False, True):
        with pytest.raises(UsageError, match="1 of its repeats"):
            remove([other.directory, built.directory], confirm=yes, run=slurm, force=force)
    assert len(store.find_campaigns(built.directory.parent)) == 2


def test_what_was_never_submitted_is_removed_and_nobody_asked(build: Build) -> None:
    built = build("1n1g", jobs=("",))
    slurm = Slurm()
    assert remove([built.directory], confirm=yes, run=slurm)
    assert not slurm.calls


@pytest.mark.parametrize("damage", ["no answer", "no answer, not ended", "no manifest"])
def test_what_nobody_can_say_has_ended_is_removed_by_force(built: Built, damage: str) -> None:
    run = Slurm(squeue=[failed(AWAY)])
    if damage == "no manifest":
        (built.directory / "manifest.json").write_text("{")
    elif damage == "no answer":
        built.finish()
    with pytest.raises((SchedulerError, UsageError)) as refused:
        remove([built.directory], confirm=yes, run=run)
    assert "--force" in str(getattr(refused.value, "hint", ""))
    assert remove([built.directory], confirm=yes, run=run, force=True)
    assert not built.directory.exists()


def test_without_an_answer_only_what_was_collected_at_its_end_is_removed(built: Built) -> None:
    built.finish()
    collect_campaigns(built.directory, states=report_states())
    assert remove([built.directory], confirm=yes, run=Slurm(squeue=[failed(AWAY)]))


def test_a_local_campaign_without_a_queue_is_removed(build: Build) -> None:
    built = build("1n1g", scheduler="local", jobs=("local-1-1",))
    built.finish()
    assert remove([built.directory], confirm=yes, run=quiet(), force=True)


def test_a_link_and_what_somebody_works_on_and_no_campaign_is_refused(built: Built) -> None:
    link, extension = built.directory.with_name("link"), built.directory.with_name("extension")
    link.symlink_to(built.directory)
    with pytest.raises(UsageError, match="link"):
        remove([link], confirm=yes, run=quiet())
    with store.locked(built.directory), pytest.raises(UsageError, match="working on"):
        remove([built.directory], confirm=yes, run=quiet())
    extension.mkdir()
    (extension / "manifest.json").write_text('{"manifest_version": 3}')
    with pytest.raises(UsageError, match="did not make this directory"):
        remove([extension], confirm=yes, run=quiet(), force=True)
    assert extension.exists()


@pytest.mark.parametrize("keeps", [False, True], ids=["campaign alone", "photos beside it"])
def test_who_is_killed_halfway_leaves_what_the_next_removal_takes(
    built: Built, build: Build, monkeypatch: pytest.MonkeyPatch, *, keeps: bool
) -> None:
    def killed(path: Path) -> None:
        (path / "manifest.json").unlink()
        raise KeyboardInterrupt

    runs = built.directory.parent
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove([built.directory], confirm=yes, run=quiet())
    assert store.find_all_campaigns(runs) == ()
    (hidden,) = runs.iterdir()
    if keeps:
        (hidden / "photos").mkdir()
    other = build("1n1g", name="20261121-pytorch-def", jobs=("90",))
    assert remove([other.directory], confirm=yes, run=quiet())
    left_paths = [str(path.relative_to(runs)) for path in runs.rglob("*")]
    assert left_paths == ([hidden.name, f"{hidden.name}/photos"] if keeps else [])


# Beside a campaign: folders that hpcbert did not make, whatever their names look like.
FOREIGN = read_constant(__file__, "FOREIGN")


@pytest.mark.parametrize(("name", "contents"), FOREIGN.values(), ids=FOREIGN)
def test_only_what_a_removal_made_is_removed(
    built: Built, name: str, contents: dict[str, str]
) -> None:
    runs = built.directory.parent
    for folder in (runs / name, runs / "photos"):
        (folder / "photos").mkdir(parents=True)
        (folder / "photos" / "1.jpg").touch()
    for file, text in contents.items():
        (runs / name / file).write_text(text)
    before = sorted(runs.rglob("*"))
    assert remove([built.directory], confirm=yes, run=quiet())
    after = [path for path in before if not path.is_relative_to(built.directory)]
    assert sorted(runs.rglob("*")) == after


def test_a_link_in_place_of_the_hidden_campaign_is_not_followed(
    built: Built, build: Build, tmp_path: Path
) -> None:
    hidden, photos = built.directory.parent / ".hpcbert-removed-0123456789ab", tmp_path / "photos"
    for folder in (hidden, photos):
        folder.mkdir()
    (photos / "1.jpg").touch()
    (hidden / "campaign").write_text(f"{hidden.name}\nphotos\n")
    (hidden / "photos").symlink_to(photos)
    with pytest.raises(HpcbertError, match="Can't remove all of it"):
        remove([built.directory], confirm=yes, run=quiet())
    assert (photos / "1.jpg").exists()


@pytest.mark.parametrize("place", ["", "logs"])
def test_a_mounted_file_system_is_not_emptied(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    mounts = tmp_path / "mountinfo"
    where = str(built.directory / place).replace(" ", "\\040")
    mounts.write_text(f"36 35 98:0 / {where} rw,noatime - ext3 /dev/root rw\n")
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    with pytest.raises(UsageError, match="Another file system is mounted here"):
        remove([built.directory], confirm=yes, run=quiet())
    assert built.directory.exists()


@pytest.mark.needs("permissions")
def test_where_nothing_may_be_removed_that_is_said(built: Built) -> None:
    runs = built.directory.parent
    runs.chmod(0o500)
    try:
        with pytest.raises(HpcbertError, match="Permission denied"):
            remove([built.directory], confirm=yes, run=quiet())
    finally:
        runs.chmod(0o700)
    assert store.find_campaigns(runs) == (built.directory,)

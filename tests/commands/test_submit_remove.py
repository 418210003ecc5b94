import shutil
from functools import partial

import pytest

from hpcbert.campaign import store
from hpcbert.cli.list import Filter, list_overviews
from hpcbert.commands import submit
from hpcbert.errors import HpcbertError, SchedulerError, UsageError
from hpcbert.logs.layout import discover
from hpcbert.system import files
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import read_constant
from tests.kit.slurm import AWAY, Slurm, failed

SILENT = Slurm(squeue=[failed(AWAY)])
remove = partial(submit.remove, confirm=lambda: True, run=Slurm(squeue=[""]))


def test_the_newest_campaign_is_first_and_a_filter_leaves_some_out(build, tmp_path):
    now = 1795262400.0  # 2026-11-21T12:00:00Z
    for day in (1, 2, 3, 4):
        framework = "oneflow" if day % 2 else "pytorch"
        name = f"2026112{5 - day}T000000Z-{framework}-{day}"
        text = f"2026-11-{21 - day}T12:00:00Z"
        built = build("1n1g", name=name, created=text, framework=framework)
        if day == 3:
            built.finish()
            store.write_note(built.directory, "After the Update")
    for days, selection in read_constant(__file__, "FILTERS"):
        overviews = list_overviews(tmp_path / "runs", Filter(**selection), now=now)
        assert "".join(overview.campaign[-1] for overview in overviews) == days, selection
        assert list_overviews(tmp_path / "absent", Filter(**selection), now=now) == ()


def test_what_has_ended_is_removed_with_agreement_and_nothing_next_to_it(build):
    built = build("1n1g", "1n4g").finish()
    other = build("1n1g", name="20261121-pytorch-def", jobs=("90",))
    assert not remove([built.directory], confirm=lambda: False)
    assert not (built.directory / store.LOCK).exists()
    # While one runs, none is removed.
    running = Slurm(squeue=[other.squeue(2, "RUNNING")])
    for force in (False, True):
        with pytest.raises(UsageError, match="1 of its repeats"):
            remove([built.directory, other.directory], run=running, force=force)
    assert len(store.find_campaigns(built.directory.parent)) == 2
    assert remove([built.directory])
    assert list(other.directory.parent.iterdir()) == [other.directory]


def test_what_was_never_submitted_or_was_collected_at_its_end_needs_no_answer(build):
    slurm = Slurm()
    assert remove([build("1n1g", jobs=("",)).directory], run=slurm)
    assert not slurm.calls
    built = build("1n1g").finish()
    collect_campaigns(built.directory, states=report_states())
    assert remove([built.directory], run=SILENT)
    local = build("1n1g", scheduler="local", jobs=("local-1-1",)).finish()
    assert remove([local.directory], force=True)


def test_what_nobody_can_say_has_ended_is_removed_by_force(build):
    for damage in ("no answer", "no answer, not ended", "no manifest"):
        built = build("1n1g", "1n4g")
        if damage == "no manifest":
            (built.directory / "manifest.json").write_text("{")
        elif damage == "no answer":
            built.finish()
        with pytest.raises((SchedulerError, UsageError)) as refused:
            remove([built.directory], run=SILENT)
        assert "--force" in refused.value.hint, damage
        assert remove([built.directory], run=SILENT, force=True)
        assert not built.directory.exists()


def test_a_link_and_what_somebody_works_on_and_what_is_not_a_campaign_is_refused(
    build, tmp_path, monkeypatch
):
    built = build("1n1g")
    link, extension = built.directory.with_name("link"), built.directory.with_name("extension")
    link.symlink_to(built.directory)
    with pytest.raises(UsageError, match="link"):
        remove([link])
    with store.locked(built.directory), pytest.raises(UsageError, match="working on"):
        remove([built.directory])
    extension.mkdir()
    (extension / "manifest.json").write_text('{"manifest_version": 3}')
    with pytest.raises(UsageError, match="did not make this directory"):
        remove([extension], force=True)
    assert extension.exists()
    # A mounted file system is not emptied.
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    for place in (built.directory, built.directory / "logs"):
        where = str(place).replace(" ", "\\040")
        mounts.write_text(f"36 35 98:0 / {where} rw,noatime - ext3 /dev/root rw\n")
        with pytest.raises(UsageError, match="Another file system is mounted here"):
            remove([built.directory])
    assert built.directory.exists()


def test_who_is_killed_halfway_leaves_no_campaign(build, monkeypatch):
    def kill(path):
        (path / "manifest.json").unlink()
        (path / "bert_b32_fp32_1.log").touch()
        raise KeyboardInterrupt

    built = build("1n1g")
    monkeypatch.setattr(shutil, "rmtree", kill)
    with pytest.raises(KeyboardInterrupt):
        remove([built.directory])
    runs = built.directory.parent
    assert store.find_all_campaigns(runs) == ()
    with pytest.raises(UsageError, match="No log"):
        discover([runs])
    assert [path.name.partition("removed")[0] for path in runs.iterdir()] == [".hpcbert-"]


@pytest.mark.needs("permissions")
def test_where_nothing_may_be_removed_that_is_said(build):
    built = build("1n1g")
    runs = built.directory.parent
    runs.chmod(0o500)
    try:
        with pytest.raises(HpcbertError, match="Permission denied"):
            remove([built.directory])
    finally:
        runs.chmod(0o700)
    assert store.find_campaigns(runs) == (built.directory,)

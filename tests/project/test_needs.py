"""Needs of tests: asked of the kernel, and counted by group in the summary of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import needs
from tests.kit.needs import GROUPS, NEEDS, Need, lacks, not_applicable, require, summarize
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING

# What Docker takes from root, by which namespaces and mounts are made.
WITHOUT = "setpriv --bounding-set=-sys_admin,-net_admin --"


def read_reason(name: str, monkeypatch: pytest.MonkeyPatch, lack: str) -> str:
    """Return the reason for which a test with a need is skipped."""
    monkeypatch.setitem(NEEDS, name, Need(NEEDS[name].group, NEEDS[name].title, lambda: lack))
    with pytest.raises(pytest.skip.Exception) as caught:
        require(name)
    return str(caught.value)


def test_a_met_need_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, "tmux", Need("programs", "tmux", lambda: ""))
    require("tmux")


def test_a_summary_has_a_line_for_each_group_with_its_count_and_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HPCBERT_REQUIRE_SLURM", raising=False)
    reasons = [
        read_reason("slurm", monkeypatch, "not root"),
        read_reason("users", monkeypatch, "not root"),
        read_reason("logs", monkeypatch, "no folder"),
    ]
    with pytest.raises(pytest.skip.Exception) as caught:
        not_applicable("it prints no loss")
    assert list(summarize([*reasons, str(caught.value)])) == [
        f"2 skipped: need {GROUPS['root'][0]}. {GROUPS['root'][1]}",
        f"1 skipped: need {GROUPS['logs'][0]}. {GROUPS['logs'][1]}",
        "1 skipped: do not apply to the recipe or system that they try",
    ]


def test_at_most_five_lines_for_an_ordinary_user() -> None:
    """Root lacks only a user whom permissions bind, and nobody lacks both."""
    assert len(GROUPS.keys() - {"permissions"}) + 1 <= 5


@pytest.mark.parametrize("group", GROUPS)
def test_a_need_of_one_test_is_counted_in_its_group(group: str) -> None:
    with pytest.raises(pytest.skip.Exception) as caught:
        lacks(group, "a thing (of some kind)", "it is (programs): not here")
    (line,) = summarize([f"Skipped: {caught.value}"])
    assert line.startswith(f"1 skipped: need {GROUPS[group][0]}")


def test_a_promised_need_that_is_not_met_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCBERT_REQUIRE_SLURM", "1")
    monkeypatch.setitem(NEEDS, "slurm", Need("root", "a real Slurm", lambda: "no slurmctld"))
    with pytest.raises(pytest.fail.Exception, match="no slurmctld"):
        require("slurm")


@pytest.mark.needs("namespaces")
def test_root_of_a_container_lacks_namespaces_and_can_act_as_others() -> None:
    program = (
        "from tests.kit.needs import NEEDS\n"
        "print(*(bool(NEEDS[name].find_lack()) for name in ('namespaces', 'slurm', 'users')))"
    )
    result = subprocess.run(
        [*WITHOUT.split(), sys.executable, "-c", program],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=CEILING, check=False,
    )  # fmt: skip
    assert result.stdout.split() == ["True", "True", "False"], result.stderr


def test_permissions_are_those_of_this_process(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    assert bool(NEEDS["permissions"].find_lack()) == os.access(closed, os.R_OK)


@pytest.mark.parametrize(
    ("path", "lack"),
    [
        ("/tmp/unpacked/hpcbert", "the checkout is in /tmp"),
        ("/dev/shm/hpcbert", "the checkout is in /dev/shm"),
        ("/var/tmp/hpcbert", ""),
        ("/tmpx/hpcbert", ""),
    ],
)
def test_a_checkout_that_nodes_can_not_see_is_refused(
    path: str, lack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "REPOSITORY", Path(path))
    assert needs._lack_of_path_for_containers() == lack

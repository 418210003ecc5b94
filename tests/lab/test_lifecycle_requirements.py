from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbert.errors import CheckError, UsageError
from hpcbert.lab import files, lifecycle
from hpcbert.lab.files import has_pmix
from hpcbert.lab.lifecycle import (
    check_abilities,
    check_packages,
    check_root,
    down,
    find_missing,
    up,
)
from hpcbert.lab.record import LabPlan
from hpcbert.system.runner import Outcome, run


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "SEARCH_PATH", str(tmp_path))
    monkeypatch.setattr(pwd, "getpwall", list)
    monkeypatch.setattr(files, "PLUGINS", f"{tmp_path.relative_to('/')}/*.so")
    for name in ("_FILES", "_PMIX_FILES", "_ACCOUNTING_FILES"):
        elsewhere = {
            f"{tmp_path}{key}": package for key, package in getattr(lifecycle, name).items()
        }
        monkeypatch.setattr(lifecycle, name, elsewhere)


@pytest.mark.usefixtures("bare_machine")
def test_what_is_missing_comes_with_the_command_that_installs_it():
    with pytest.raises(CheckError) as caught:
        check_packages(accounting=True)
    assert "slurmctld" in caught.value.message
    command, *packages = caught.value.hint.split(" --no-install-recommends ")
    assert command == "apt-get install"
    assert packages[0].split() == [
        "hostname", "iproute2", "libpmix-dev", "mariadb-server", "mount", "munge", "slurm-client",
        "slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin", "slurmctld", "slurmd", "slurmdbd",
        "util-linux",
    ]  # fmt: skip


@pytest.mark.usefixtures("bare_machine")
def test_without_accounting_no_database_is_needed():
    packages = set(find_missing(accounting=False).values())
    assert not packages & {"mariadb-server", "slurmdbd", "slurm-wlm-mysql-plugin"}


@pytest.mark.usefixtures("bare_machine")
def test_a_slurm_without_pmix_needs_no_library_of_it(tmp_path: Path):
    (tmp_path / "mpi_pmi2.so").touch()
    assert not has_pmix()
    assert "libpmix.so" not in find_missing(accounting=True)
    (tmp_path / "mpi_pmix.so").touch()
    assert has_pmix()
    assert "libpmix.so" in find_missing(accounting=True)


@pytest.mark.parametrize(
    "action",
    [
        lambda directory: check_root(),
        lambda directory: up(LabPlan(directory=directory), run=run, report=print),
        lambda directory: down(directory, run=run, report=print),
    ],
    ids=["check", "up", "down"],
)
def test_only_root_may(
    action: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="Only root") as caught:
        action(tmp_path / "lab")
    assert "sudo" in caught.value.hint
    assert not (tmp_path / "lab").exists()


def test_a_kernel_that_refuses_is_named_with_its_words():
    def refuse(argv: object, **_: object) -> Outcome:
        return Outcome((), 1, stderr="unshare failed: Operation not permitted")

    with pytest.raises(CheckError, match="Operation not permitted") as caught:
        check_abilities(refuse)
    assert "container" in caught.value.hint

"""An ordinary user of a lab, for whom hpcbert lies in a directory that is closed to others."""

from __future__ import annotations

import pwd
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from hpcbert.errors import UsageError
from hpcbert.lab.lifecycle import add_user, remove_user
from hpcbert.lab.record import Journal, Lab, LabPlan
from hpcbert.system.processes import boot_id
from hpcbert.system.runner import Outcome, run
from tests.kit.lab import account_stem


@pytest.mark.parametrize("name", ["root", "Alice", "a b", "-x", "x" * 40])
def test_who_is_no_ordinary_user_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="ordinary user"):
        LabPlan(user=name)


@pytest.mark.slurm
def test_hpcbert_is_seen_by_a_user_who_can_not_read_where_it_lies(
    slurm_packages: None, open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, root = open_directory / "closed", open_directory / "people"
    root.mkdir()
    closed.mkdir(mode=0o700)
    outcome = run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(closed / "venv")])
    assert outcome.ok, outcome.stderr
    (packages,) = (closed / "venv").glob("lib/python*/site-packages")
    shutil.copytree(Path(click.__file__).parent, packages / "click")
    monkeypatch.setattr(sys, "prefix", str(closed / "venv"))
    plan = LabPlan(directory=root, user=f"{account_stem(open_directory)}-d")
    journal = Journal(Lab(plan=plan, mark="people", boot=boot_id(), root=root))
    busy = {"useradd", "userdel"}

    def run_with_others(argv: Sequence[str], **options: Any) -> Outcome:
        """Find the accounts' files locked at first, as while another lab starts or ends."""
        if argv[0] in busy:
            busy.remove(argv[0])
            locked = f"{argv[0]}: cannot lock /etc/passwd; try again later.\n"
            return Outcome(tuple(argv), 1, "", locked)
        return run(argv, **options)

    try:
        add_user(journal, run_with_others)
        entry, programs = pwd.getpwnam(plan.user), journal.lab.programs
        become = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
        result = run([*become, f"{programs}/hpcbert", "--version"], cwd=Path(entry.pw_dir))
        assert result.stdout.startswith("hpcbert "), result.stderr
        assert env_line(entry.pw_dir, journal.lab)
    finally:
        remains = remove_user(journal.lab, run_with_others)
    assert (remains, busy) == ((), set())
    assert str(root) not in Path("/proc/self/mountinfo").read_text()
    with pytest.raises(KeyError):
        pwd.getpwnam(plan.user)
    shutil.rmtree(root)


def env_line(home: str, lab: Lab) -> bool:
    return f". {lab.layout.env_sh}" in Path(home, ".profile").read_text()

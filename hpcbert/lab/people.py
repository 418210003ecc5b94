"""An ordinary user of a lab, with hpcbert where that user and the nodes can run it.

A virtual environment in root's home is closed to everybody else. Read-only bind mounts below the
lab's root, made before the nodes, give access to it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hpcbert
from hpcbert.errors import CheckError
from hpcbert.lab.processes import run_checked
from hpcbert.lab.record import Journal, Lab
from hpcbert.system.runner import Outcome, Runner

# Seconds to wait for a program that has the accounts' files locked, and between two tries.
_ACCOUNT_PATIENCE = 60.0
_ACCOUNT_PAUSE = 0.25
_LOCKED_MESSAGE = "try again later"


def add_user(journal: Journal, run: Runner) -> None:
    """Make the user that a plan names, if missing, and give them access to hpcbert.

    Raises:
        CheckError: The account can't be made, or can't run hpcbert.
    """
    lab, name = journal.lab, journal.lab.plan.user
    if not name:
        return
    if not _has_account(name):
        lab = journal.note(account=True)
        home = lab.layout.home
        home.mkdir()
        home.chmod(0o755)
        options = ["--user-group", "--create-home", "--home-dir", str(home / name)]
        argv = ["useradd", *options, "--shell", "/bin/bash", name]
        result = _change_account(lab, run, argv)
        if not result.ok:
            raise CheckError(
                result.stderr.strip() or f"exit status {result.returncode}", where=" ".join(argv)
            )
        _load_lab_at_login(lab, name)
    python = Path(sys.prefix, "bin", "python3")
    if not _can_run_hpcbert(lab, run, [str(python)]):
        python = _mount_hpcbert(journal, run)
        if not _can_run_hpcbert(lab, run, [str(python)]):
            raise CheckError(
                f"{name} can't run {sys.executable}, which starts this lab.",
                where="--user",
                hint="Install hpcbert with an interpreter that everybody can read, "
                "such as /usr/bin/python3, and start the lab with that.",
            )
    journal.note(programs=python.parent)


def remove_user(lab: Lab, run: Runner) -> tuple[str, ...]:
    """Undo `add_user` except files; return descriptions of what is left."""
    for view in lab.views:
        # umount refuses paths that are not mounted; remaining mounts are found before files are
        # removed.
        run(["umount", str(view)], env=lab.daemon_environment)
    if lab.account and _has_account(lab.plan.user):
        result = _change_account(lab, run, ["userdel", lab.plan.user])
        if _has_account(lab.plan.user):
            return (f"user {lab.plan.user}: {result.stderr.strip()}",)
    return ()


def _change_account(lab: Lab, run: Runner, argv: list[str]) -> Outcome:
    """Change an account, and try again while another program has the accounts' files locked.

    The daemons' environment has no language, so the message is in English (shadow-maint/shadow,
    src/useradd.c: "cannot lock %s; try again later").
    """
    deadline = time.monotonic() + _ACCOUNT_PATIENCE
    while True:
        result = run(argv, env=lab.daemon_environment, timeout=_ACCOUNT_PATIENCE)
        if result.ok or _LOCKED_MESSAGE not in result.stderr or time.monotonic() > deadline:
            return result
        time.sleep(_ACCOUNT_PAUSE)


def _has_account(name: str) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


def _load_lab_at_login(lab: Lab, name: str) -> None:
    """Make the user's login shells use the lab."""
    entry = pwd.getpwnam(name)
    profile = Path(entry.pw_dir, ".profile")
    with profile.open("a", encoding="utf-8") as file:
        file.write(f"\n. {lab.layout.env_sh}\n")
    os.chown(profile, entry.pw_uid, entry.pw_gid)


def _can_run_hpcbert(lab: Lab, run: Runner, python: list[str]) -> bool:
    entry = pwd.getpwnam(lab.plan.user)
    reach = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
    argv = [*reach, *python, "-c", "import hpcbert"]
    return run(argv, env={"PATH": lab.daemon_environment["PATH"]}, cwd=Path("/")).ok


def _mount_hpcbert(journal: Journal, run: Runner) -> Path:
    """Mount environment and checkout below the lab's root; return the interpreter to use there."""
    lab = journal.lab
    views = {Path(sys.prefix): lab.layout.view / "venv"}
    source = Path(hpcbert.__file__).resolve().parents[1]
    if not source.is_relative_to(sys.prefix):
        views[source] = lab.layout.view / "source"
    lab = journal.note(views=tuple(views.values()))
    lab.layout.view.mkdir()
    for path, view in views.items():
        view.mkdir()
        run_checked(run, ["mount", "--bind", str(path), str(view)], env=lab.daemon_environment)
        argv = ["mount", "-o", "remount,bind,ro", str(view)]
        run_checked(run, argv, env=lab.daemon_environment)
    programs = lab.layout.view / "bin"
    programs.mkdir()
    for name, text in _make_wrappers(views, source):
        program = programs / name
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    return programs / "python3"


def _make_wrappers(views: dict[Path, Path], source: Path) -> Iterator[tuple[str, str]]:
    """Yield programs by name: an interpreter finds its environment by its path."""
    python = shlex.quote(str(views[Path(sys.prefix)] / "bin" / "python3"))
    where = f"PYTHONPATH={shlex.quote(str(views[source]))} " if source in views else ""
    head = "#!/bin/sh\n"
    yield "python3", f'{head}{where}exec {python} "$@"\n'
    yield "hpcbert", f'{head}{where}exec {python} -m hpcbert "$@"\n'

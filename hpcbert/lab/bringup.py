"""Bring a lab up."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING

from hpcbert.errors import HpcbertError, UsageError
from hpcbert.lab import daemons, network, people
from hpcbert.lab.furnish import make_directories, make_gpus, write_files
from hpcbert.lab.plan import command, root_of
from hpcbert.lab.record import UNFINISHED, Journal, Lab, load, locked
from hpcbert.lab.requirements import check_abilities, check_packages, check_root
from hpcbert.lab.shell import must
from hpcbert.system.processes import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcbert.lab.plan import LabPlan
    from hpcbert.system.runner import Runner


def up(plan: LabPlan, *, run: Runner, report: Callable[[str], None]) -> Lab:
    """Start a real Slurm cluster of `plan.nodes` nodes on this machine.

    `lab.json` records each step in advance, so that `down` can undo an `up` that failed or was
    killed at any point.

    Args:
        plan: The cluster.
        run: Starts processes.
        report: Receives a few words about the progress.

    Returns:
        The lab, with all nodes idle and, if there is accounting, sacct answering.

    Raises:
        UsageError: This process is not root, or the directory is in use.
        CheckError: Packages or abilities of the kernel are missing.
        SchedulerError: A daemon did not come up; the message ends with its log's last lines.
    """
    check_root()
    check_packages(accounting=plan.accounting)
    check_abilities(run)
    plan = dataclasses.replace(plan, directory=plan.directory.resolve())
    made = _make_directory(plan.directory)
    with locked(plan.directory):
        journal = _open(plan, made)
        report(f"files in {journal.lab.root}")
        try:
            _build(journal, run, report)
        except HpcbertError as error:
            raise error.advising(error.hint or _removal(plan.directory)) from error
        report("the lab is up")
        return journal.lab


def _build(journal: Journal, run: Runner, report: Callable[[str], None]) -> None:
    make_directories(journal.lab)
    people.admit(journal, run)
    daemons.start_switch(journal, run)
    lab = network.reserve(journal, run)
    write_files(lab)
    make_gpus(lab)
    if lab.plan.accounting:
        report("starting MariaDB")
        _start_database(journal, run)
    report(f"making {lab.plan.nodes} nodes")
    for node in lab.plan.node_names:
        daemons.start_node(journal, node, run)
    network.plug(journal.lab, run)
    report("starting munge and Slurm")
    _start_slurm(journal, run)


def _removal(directory: Path) -> str:
    return f"`{command('down', directory)}` removes the rest."


def _make_directory(directory: Path) -> tuple[Path, ...]:
    """Make the directory; return the directories that did not exist before, outermost first."""
    absent = [each for each in (directory, *directory.parents) if not each.exists()]
    absent.reverse()
    for each in absent:
        each.mkdir()
        # Independent of the umask: job users must be able to walk through.
        each.chmod(0o755)
    return tuple(absent)


def _open(plan: LabPlan, made: tuple[Path, ...]) -> Journal:
    directory = plan.directory
    if load(directory) is not None:
        raise UsageError(
            "The directory already has a lab, or the remains of one.",
            where=str(directory),
            hint=_removal(directory),
        )
    if any(not each.match(UNFINISHED) for each in directory.iterdir()):
        raise UsageError(
            "The directory is not empty.",
            where=str(directory),
            hint="Name one that is empty or does not exist: `lab down` removes everything in it.",
        )
    mark = secrets.token_hex(5)
    root = root_of(directory, mark)
    made = made if root == directory else (*made, root)
    return Journal(Lab(plan=plan, mark=mark, boot=boot_id(), root=root, made=made))


def _start_database(journal: Journal, run: Runner) -> None:
    lab = journal.lab
    # Run as that user: with --user it would change owners below the host's plugin directory.
    install = [*daemons.become(daemons.DATABASE_USER), "mariadb-install-db"]
    tables = ["--skip-test-db", "--skip-name-resolve", "--auth-root-authentication-method=socket"]
    words = [*install, *daemons.database_options(lab), *tables]
    must(run, words, env=lab.daemon_environment, timeout=120)
    daemons.start(journal, "mariadbd", run)


def _start_slurm(journal: Journal, run: Runner) -> None:
    plan = journal.lab.plan
    for name in journal.lab.controller_daemons:
        # MariaDB has been starting since before the nodes were made.
        if name not in journal.lab.daemons:
            daemons.start(journal, name, run)
        daemons.wait(journal.lab, name, run)
    for node in plan.node_names:
        daemons.start(journal, node, run)
    for node in plan.node_names:
        daemons.wait(journal.lab, node, run)
    if plan.accounting:
        daemons.wait_for_accounting(journal.lab, run)

"""Bring a lab up, report its state, and take it down, even if only parts of it are left.

First come the requirements: root, packages, and abilities of the kernel. The lab's ordinary user
needs access to hpcbert: a virtual environment in root's home is closed to everybody else. Read-only
bind mounts below the lab's root, made before the nodes, give it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tomli

import hpcbert
from hpcbert.errors import CheckError, HpcbertError, UsageError, format_count
from hpcbert.lab import daemons, files, record
from hpcbert.lab.daemons import find_marked, is_daemon, run_checked
from hpcbert.system.files import find_mounts_below
from hpcbert.system.processes import Process, boot_id, end_processes
from hpcbert.system.runner import Runner

# --- An ordinary user of the lab ------------------------------------------------------------------


def add_user(journal: record.Journal, run: Runner) -> None:
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
        run_checked(run, argv, env=lab.daemon_environment)
        # The user's login shells use the lab.
        profile = home / name / ".profile"
        with profile.open("a", encoding="utf-8") as file:
            file.write(f"\n. {lab.layout.env_sh}\n")
        shutil.chown(profile, name, name)
    python = Path(sys.prefix, "bin", "python3")
    if not _can_run_hpcbert(lab, run, python):
        python = _mount_hpcbert(journal, run)
        if not _can_run_hpcbert(lab, run, python):
            raise CheckError(
                f"{name} can't run {sys.executable}, which starts this lab.",
                where="--user",
                hint="Install hpcbert with an interpreter that everybody can read, "
                "such as /usr/bin/python3, and start the lab with that.",
            )
    journal.note(programs=python.parent)


def remove_user(lab: record.Lab, run: Runner) -> tuple[str, ...]:
    """Undo `add_user` except files; return descriptions of what is left."""
    for view in lab.views:
        # umount refuses paths that are not mounted; remaining mounts are found before files are
        # removed.
        run(["umount", str(view)], env=lab.daemon_environment)
    if lab.account and _has_account(lab.plan.user):
        # Like useradd, it waits 15 seconds for a program that has the accounts' files locked.
        result = run(["userdel", lab.plan.user], env=lab.daemon_environment)
        if _has_account(lab.plan.user):
            return (f"user {lab.plan.user}: {result.stderr.strip()}",)
    return ()


def _has_account(name: str) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


def _can_run_hpcbert(lab: record.Lab, run: Runner, python: Path) -> bool:
    entry = pwd.getpwnam(lab.plan.user)
    reach = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
    argv = [*reach, str(python), "-c", "import hpcbert"]
    return run(argv, env={"PATH": lab.daemon_environment["PATH"]}, cwd=Path("/")).ok


def _mount_hpcbert(journal: record.Journal, run: Runner) -> Path:
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
    # An interpreter finds its environment by its path.
    command_line = f"exec {shlex.quote(str(views[Path(sys.prefix)] / 'bin' / 'python3'))}"
    if source in views:
        command_line = f"PYTHONPATH={shlex.quote(str(views[source]))} {command_line}"
    for name, words in (("python3", ""), ("hpcbert", " -m hpcbert")):
        program = programs / name
        program.write_text(f'#!/bin/sh\n{command_line}{words} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    return programs / "python3"


# --- What a lab requires of this machine ----------------------------------------------------------

_PACKAGES = tomli.loads(Path(__file__).with_name("packages.toml").read_text(encoding="utf-8"))
# In the trial's own namespaces.
_TRIAL = """mount -t tmpfs tmpfs /tmp
mknod /tmp/device c 1 3
ip link add type bridge
ip link add type veth"""


def check_root() -> None:
    """Check that this process is root."""
    if os.geteuid() != 0:
        message = "Only root can make namespaces, bridges and devices."
        hint = "Run it with sudo. Jobs run as whoever submits them, without root."
        raise UsageError(message, where="hpcbert lab", hint=hint)


def check_packages(*, accounting: bool) -> None:
    """Check that all packages are installed.

    Raises:
        CheckError: Some are missing; the hint is the command that installs them.
    """
    lacking = find_missing(accounting=accounting)
    if lacking:
        packages = " ".join(sorted(set(lacking.values())))
        hint = f"apt-get install --no-install-recommends {packages}"
        raise CheckError(f"Missing: {', '.join(sorted(lacking))}.", where="hpcbert lab", hint=hint)


def find_missing(*, accounting: bool) -> dict[str, str]:
    """Return the missing files, each with its Debian package."""
    patterns = _PACKAGES["always"] | (_PACKAGES["accounting"] if accounting else {})
    # If no plugins are installed yet, Slurm's packages bring them, PMIx included.
    plugins = files.find_plugins()
    patterns |= _PACKAGES["pmix"] if not plugins or files.PMIX in plugins else {}
    return {
        Path(pattern).name: package
        for pattern, package in patterns.items()
        if not any(Path("/").glob(pattern[1:]))
    }


def check_abilities(run: Runner) -> None:
    """Check that the kernel lets this process make namespaces, mounts and links.

    Raises:
        CheckError: It does not, as in a container without privileges.
    """
    spaces = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
    argv = ["unshare", *spaces, "sh", "-e", "-c", _TRIAL]
    result = run(argv, env={"PATH": record.SEARCH_PATH}, timeout=20)
    if not result.ok:
        raise CheckError(
            "This machine does not let root make namespaces, mounts, links and devices: "
            f"{result.stderr.strip()}",
            where="hpcbert lab",
            hint="In a container, give it all privileges, or use a virtual machine.",
        )


# --- Up, status, down -----------------------------------------------------------------------------

# `down` looks for processes again until it finds none, at most so often.
_ROUNDS = 5
_END_TIMEOUT = 60.0


def up(plan: record.LabPlan, *, run: Runner, report: Callable[[str], None]) -> record.Lab:
    """Start a real Slurm cluster of `plan.nodes` nodes on this machine.

    `lab.json` records each step in advance, so that `down` can undo an `up` that failed or was
    killed at any point.

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
    directories = _make_directory(plan.directory)
    with record.lock_lab(plan.directory):
        journal = _open_journal(plan, directories)
        report(f"files in {journal.lab.root}")
        try:
            _build(journal, run, report)
        except HpcbertError as error:
            raise error.with_hint(error.hint or _removal_hint(plan.directory)) from error
        report("the lab is up")
        return journal.lab


def _build(journal: record.Journal, run: Runner, report: Callable[[str], None]) -> None:
    files.make_directories(journal.lab)
    add_user(journal, run)
    daemons.start_switch(journal, run)
    lab = daemons.reserve_slot(journal, run)
    plan, env = lab.plan, lab.daemon_environment
    version = run(["slurmctld", "-V"], env={"PATH": record.SEARCH_PATH})
    files.write_files(lab, files.read_release(version.stdout))
    files.make_gpus(lab)
    if plan.accounting:
        report("starting MariaDB")
        argv = daemons.program_argv(lab, "mariadb-install-db")
        run_checked(run, argv, env=env, timeout=120)
        daemons.start_daemon(journal, "mariadbd", run)
    report(f"making {format_count(plan.nodes, 'node')}")
    for node in plan.node_names:
        daemons.start_node(journal, node, run)
    daemons.plug_nodes(journal.lab, run)
    report("starting munge and Slurm")
    for name in lab.controller_daemons:
        # MariaDB has been starting since before the nodes were made.
        if name not in journal.lab.daemons:
            daemons.start_daemon(journal, name, run)
        daemons.wait_for_daemon(journal.lab, name, run)
    for node in plan.node_names:
        daemons.start_daemon(journal, node, run)
    for node in plan.node_names:
        daemons.wait_for_daemon(journal.lab, node, run)
    if plan.accounting:
        daemons.wait_for_accounting(journal.lab, run)


def _removal_hint(directory: Path) -> str:
    return f"`{record.command('down', directory)}` removes the rest."


def _make_directory(directory: Path) -> tuple[Path, ...]:
    """Make the directory; return the directories that did not exist before, outermost first."""
    absent = [path for path in (directory, *directory.parents) if not path.exists()]
    absent.reverse()
    for path in absent:
        path.mkdir()
        # Independent of the umask: job users must be able to walk through.
        path.chmod(0o755)
    return tuple(absent)


def _open_journal(plan: record.LabPlan, directories: tuple[Path, ...]) -> record.Journal:
    directory = plan.directory
    if record.load(directory) is not None:
        message = "The directory already has a lab, or the remains of one."
        hint = _removal_hint(directory)
        raise UsageError(message, where=str(directory), hint=hint)
    if any(not path.match(record.UNFINISHED) for path in directory.iterdir()):
        hint = "Name one that is empty or does not exist: `lab down` removes everything in it."
        raise UsageError("The directory is not empty.", where=str(directory), hint=hint)
    mark = secrets.token_hex(5)
    root = record.root_of(directory, mark)
    paths = directories if root == directory else (*directories, root)
    lab = record.Lab(plan=plan, mark=mark, boot=boot_id(), root=root, created=paths)
    return record.Journal(lab)


@dataclass(frozen=True)
class DaemonStatus:
    """One daemon; a node's slurmd has the node's name."""

    name: str
    pid: int | None  # None if it never ran
    alive: bool


@dataclass(frozen=True)
class NodeStatus:
    """One node, in Slurm's word for its state; `unknown` if slurmctld does not run."""

    name: str
    address: str
    state: str


@dataclass(frozen=True)
class LabStatus:
    """A lab as it is now, with all daemons and nodes that it should have."""

    lab: record.Lab
    daemons: tuple[DaemonStatus, ...]
    nodes: tuple[NodeStatus, ...]

    @property
    def healthy(self) -> bool:
        """Whether every daemon runs and no node is down."""
        failed_states = ("", "unknown", "down", "error")
        is_serving = all(
            node.state not in failed_states and not node.state.endswith("*") for node in self.nodes
        )
        return is_serving and all(daemon.alive for daemon in self.daemons)

    @property
    def usage(self) -> str:
        """The shell line that lets an ordinary user use it."""
        user, source = self.lab.plan.user, f". {self.lab.layout.env_sh}"
        # Login shells of the lab's own account read it.
        if user:
            return f"su - {user}" if self.lab.account else f"su - {user}, then {source}"
        return source


def status(directory: Path, *, run: Runner) -> LabStatus:
    """Return the state of the lab in a directory.

    Raises:
        UsageError: The directory has no lab.
    """
    lab = record.load(directory)
    if lab is None:
        hint = f"`{record.command('up', directory)}` starts one."
        raise UsageError("There is no lab here.", where=str(directory), hint=hint)
    same_boot, daemon_states = lab.boot == boot_id(), []
    for name in lab.expected_daemons:
        process = lab.daemons.get(name)
        is_alive = bool(same_boot and process and process.alive)
        daemon_states.append(DaemonStatus(name, process.pid if process else None, is_alive))
    # Without these two daemons, sinfo waits a long time for an answer.
    needed = [daemon for daemon in daemon_states if daemon.name in ("munged", "slurmctld")]
    is_answering = all(daemon.alive for daemon in needed)
    states = daemons.read_node_states(lab, run) if is_answering else {}
    nodes = []
    for name in lab.plan.node_names:
        address = "" if lab.slot is None else lab.network.address(name)
        nodes.append(NodeStatus(name, address, states.get(name, "unknown")))
    return LabStatus(lab, tuple(daemon_states), tuple(nodes))


@dataclass(frozen=True)
class Removal:
    """The number of processes that `down` ended, and descriptions of what is left."""

    ended: int = 0
    remains: tuple[str, ...] = ()


def down(directory: Path, *, run: Runner, report: Callable[[str], None]) -> Removal:
    """End every process of a lab and remove all that it made, campaigns in its `runs` included.

    Works on a whole lab, on one that only partly came up, and on the remains after a reboot;
    without a lab, it does nothing.

    Raises:
        UsageError: This process is not root.
        CheckError: Another process is starting or ending this lab.
    """
    check_root()
    directory = directory.resolve()
    if not directory.is_dir():
        return Removal()
    with record.lock_lab(directory):
        lab = record.load(directory)
        if lab is None:
            # An `up` may have been killed while it wrote its first record.
            if _remove_unfinished(directory):
                _remove_if_empty(directory)
            return Removal()
        ended, remainder = _end_all(lab, report)
        remainder += daemons.remove_uplink(lab, run) + remove_user(lab, run)
        # While something is left, the record stays, so that another `down` can continue.
        return Removal(ended, remainder or _remove_files(lab, report))


def _end_all(lab: record.Lab, report: Callable[[str], None]) -> tuple[int, tuple[str, ...]]:
    """End all processes; return their number, and descriptions of those that are left."""
    if lab.boot != boot_id():
        return 0, ()
    ended: set[Process] = set()
    for _ in range(_ROUNDS):
        processes = _find_processes(lab)
        if not processes:
            return len(ended), ()
        report(f"ending {len(processes)} processes")
        ended |= processes
        end_processes(processes, timeout=_END_TIMEOUT)
    return len(ended), tuple(f"process {member.pid}" for member in _find_processes(lab))


def _find_processes(lab: record.Lab) -> set[Process]:
    # A daemon may write its title over its environment; hosts keep theirs.
    recorded = {process for process in lab.daemons.values() if process and process.alive}
    marked = set(find_marked(f"{record.MARK}={lab.mark}"))
    return marked | {process for process in recorded if is_daemon(process)}


def _remove_files(lab: record.Lab, report: Callable[[str], None]) -> tuple[str, ...]:
    """Remove the files, the record last; return what is left."""
    mounts = tuple(f"mount {mount}" for mount in find_mounts_below(lab.root))
    if mounts:
        return mounts
    report(f"removing {lab.root}")
    record_path = lab.directory / record.RECORD
    entries = [lab.root]
    if lab.root == lab.directory:
        entries = [child for child in lab.directory.iterdir() if child != record_path]
    complaints = []
    for path in entries:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:  # noqa: PERF203 - each may have one
            complaints.append(f"{path}: {error.strerror}")
    if complaints:
        return tuple(complaints)
    record_path.unlink(missing_ok=True)
    _remove_unfinished(lab.directory)
    for directory in reversed(lab.created):
        _remove_if_empty(directory)
    if lab.directory in lab.created and lab.directory.exists():
        return (f"{lab.directory}: it holds files of others",)
    return ()


def _remove_unfinished(directory: Path) -> bool:
    """Remove what killed processes left of records, and return whether there was anything."""
    unfinished = tuple(directory.glob(record.UNFINISHED))
    for path in unfinished:
        path.unlink(missing_ok=True)
    return bool(unfinished)


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()

"""`lab.json`: the parts of a lab, recorded before they are made, so that `down` finds all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import (
    Iterator,
    Mapping,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcbert.errors import CheckError, ConfigError, SchedulerError, UsageError
from hpcbert.lab.plan import LabPlan, Layout, Network
from hpcbert.system import files, lock, ownership
from hpcbert.system.decode import decode
from hpcbert.system.processes import Process

RECORD = "lab.json"
UNFINISHED = f".{RECORD}.*"
MARK = "HPCBERT_LAB_ID"
SWITCH = "switch"
LOCK_PATIENCE = 5.0
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Lab:
    """A lab as recorded: `status` checks whether all of it exists and is alive.

    Attributes:
        plan: The requested cluster.
        mark: A random name that is in the environment of every process started for this lab, in
            its link's hardware address and in the fallback directory's name.
        boot: Its boot.
        root: The directory of all files except `lab.json`.
        created: Directories that did not exist before, outermost first.
        slot: The slot that was reserved, or was about to be; None before that.
        hosts: Node name, or `switch`, to the process that holds its namespaces; None if that was
            about to start.
        daemons: Daemon name to its process, as above. A node's slurmd has the node's name.
        account: Whether the plan's user was made for it.
        views: Bind mounts through which that user sees hpcbert.
        programs: The directory where that user finds hpcbert; None without a user.
        schema: Of the record.
    """

    plan: LabPlan
    mark: str
    boot: str
    root: Path
    created: tuple[Path, ...] = ()
    slot: int | None = None
    hosts: Mapping[str, Process | None] = field(default_factory=dict)
    daemons: Mapping[str, Process | None] = field(default_factory=dict)
    account: bool = False
    views: tuple[Path, ...] = ()
    programs: Path | None = None
    schema: Literal[1] = 1

    @property
    def directory(self) -> Path:
        """Where `lab.json` is."""
        return self.plan.directory

    @property
    def layout(self) -> Layout:
        """The paths of everything else."""
        return Layout(self.root)

    @property
    def network(self) -> Network:
        """The addresses and ports.

        Raises:
            CheckError: The lab did not get as far as having them.
        """
        if self.slot is None:
            raise CheckError("The lab has no network yet.", where=str(self.directory))
        return Network(self.slot)

    @property
    def node_hosts(self) -> dict[str, Process]:
        """The living nodes, each with the process that holds its namespaces."""
        hosts = ((node, self.hosts.get(node)) for node in self.plan.node_names)
        return {node: host for node, host in hosts if host is not None and host.alive}

    def host(self, name: str) -> Process:
        """Return the process that holds the namespaces of a node, or of the switch."""
        host = self.hosts.get(name)
        if host is None or not host.alive:
            raise SchedulerError("Its namespaces are gone.", where=name)
        return host

    @property
    def controller_daemons(self) -> tuple[str, ...]:
        """The daemons of a whole lab except those of nodes, in the order in which they start."""
        accounting = ("mariadbd", "slurmdbd") if self.plan.accounting else ()
        return ("munged", *accounting, "slurmctld")

    @property
    def expected_daemons(self) -> tuple[str, ...]:
        """All daemons of a whole lab, in the order in which they start."""
        return (*self.controller_daemons, *self.plan.node_names)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a user's process needs to use the lab."""
        return {
            "SLURM_CONF": str(self.layout.slurm_conf),
            "HPCBERT_SITE": str(self.layout.site),
        }

    @property
    def daemon_environment(self) -> dict[str, str]:
        """The whole environment of every process that runs for the lab."""
        return {
            "PATH": SEARCH_PATH,
            "LC_ALL": "C.UTF-8",
            MARK: self.mark,
            "SLURM_CONF": str(self.layout.slurm_conf),
            # The only way to give slurmdbd the socket: slurmdbd.conf has no key for it.
            "MYSQL_UNIX_PORT": str(self.layout.database_socket),
        }


class Journal:
    """A lab's record while it changes: each change is on disk before `note` returns."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._write()

    def note(self, **changes: Any) -> Lab:
        """Change fields of the lab and write it."""
        self.lab = dataclasses.replace(self.lab, **changes)
        self._write()
        return self.lab

    def note_host(self, node: str, process: Process | None) -> Lab:
        """Record that a node's host is about to start (None), or the host."""
        return self.note(hosts={**self.lab.hosts, node: process})

    def note_daemon(self, name: str, process: Process | None) -> Lab:
        """Record that a daemon is about to start (None), or the daemon."""
        return self.note(daemons={**self.lab.daemons, name: process})

    def _write(self) -> None:
        document = dataclasses.asdict(self.lab)
        path = self.lab.directory / RECORD
        files.write_text(path, json.dumps(document, indent=2, default=str))
        # Independent of the umask: everybody may use `status`.
        path.chmod(0o644)


def load(directory: Path) -> Lab | None:
    """Read the record of the lab in a directory; None if there is none.

    It decides which processes `down` ends as root, and which configuration `status` uses.

    Raises:
        UsageError: The record was not written by this version of hpcbert, or somebody else can
            change it.
    """
    path = directory.resolve() / RECORD
    try:
        _refuse_foreign(path.parent.stat(), path.parent)
        _refuse_foreign(path.lstat(), path)
        document = json.loads(files.read(path))
        lab = decode(Lab, document, file=str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(error.strerror or "It cannot be read.", where=str(path)) from error
    except (ValueError, ConfigError) as error:
        raise UsageError(
            f"The file is not the record of a lab: {error}", where=str(path)
        ) from error
    if lab.directory != path.parent:
        raise UsageError(
            f"The record belongs to the lab in {lab.directory}.",
            where=str(path),
            hint="Name that directory; hpcbert did not put the record here.",
        )
    return lab


def _refuse_foreign(status: os.stat_result, path: Path) -> None:
    """Refuse a directory or a record that somebody besides root and the user can change."""
    if reason := ownership.explain_distrust(status):
        raise UsageError(
            f"{reason}: hpcbert uses and ends only labs that root or you started.",
            where=str(path),
            hint="Check what is in it. Name a directory of your own for a new lab.",
        )


@contextlib.contextmanager
def lock_lab(directory: Path) -> Iterator[None]:
    """Keep a second `up` or `down` out of a directory; the lock ends with the process.

    Raises:
        CheckError: Another process is at work there.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    # A command that an `up` was just starting when it was killed has the lock until it is exec'd.
    deadline = time.monotonic() + LOCK_PATIENCE
    try:
        if not lock.lock_descriptor(handle, may_wait=lambda: time.monotonic() < deadline):
            message = "Another process is starting or ending this lab."
            raise CheckError(message, where=str(directory))
        yield
    finally:
        os.close(handle)

"""The plan of a lab, its paths and addresses, and `lab.json`, the record of its parts.

A part is recorded before it is made, so that `down` finds all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import shlex
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcbert.errors import CheckError, ConfigError, SchedulerError, UsageError
from hpcbert.system import files, lock
from hpcbert.system.decode import IgnoreUnknown, decode
from hpcbert.system.processes import Process

# Not /run: there a tmpfs is usually mounted nodev and noexec, so that neither the fake GPUs nor
# a user's scripts would work, and campaigns would fill memory. Not /tmp: each node has its own.
DEFAULT_DIRECTORY = Path("/var/lib/hpcbert-lab")
FALLBACK_PARENT = Path("/var/tmp")  # noqa: S108  root makes a directory with a name of its own there
NODE_PRIVATE = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108  what every node mounts again

SLOTS = 200
_FIRST_PORT = 21000
_PORTS_PER_SLOT = 10
_MOST_NODES = 250
_MOST_GPUS = 128
# The longest socket made below it is spool/nNNN/nNNN_JOBID.STEP; a socket's path ends at 107 bytes.
_LONGEST_ROOT = 60
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./-]+")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}")
# Instead of a type: a node without GPUs.
WITHOUT = "none"


@dataclass(frozen=True)
class LabPlan(IgnoreUnknown):
    """A planned cluster: its nodes, their equipment, and their place.

    Attributes:
        directory: The directory of `lab.json`, and of everything else if Slurm can use it (see
            `root_of`).
        gpu_types: Type of the GPUs of n1, n2 and so on, in turn; `none` for a node without GPUs.
            None named: GPUs have no type.
        accounting: Whether slurmdbd and its database are started. Without them there is no sacct.
        job_submit: Text of a job_submit.lua that slurmctld calls for every job; empty: no such
            plugin. While the lab runs, slurmctld reads the file again when it changes.
        settings: Further lines of slurm.conf; they override keys that the lab sets too.
        lacks: Slurm's plugins that it lacks, such as `mpi_pmix`.
        user: An ordinary user of the lab, made if missing; empty: none.

    Raises:
        UsageError: A number or the name is out of bounds.
    """

    directory: Path = DEFAULT_DIRECTORY
    nodes: int = 4
    gpus_per_node: int = 8
    gpu_types: tuple[str, ...] = ()
    name: str = "lab"
    accounting: bool = True
    job_submit: str = ""
    settings: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    user: str = ""

    def __post_init__(self) -> None:
        for quantity, value, least, most in (
            ("nodes", self.nodes, 1, _MOST_NODES),
            ("gpus per node", self.gpus_per_node, 0, _MOST_GPUS),
        ):
            if not least <= value <= most:
                raise UsageError(f"{value} is out of bounds: {least} to {most}.", where=quantity)
        for kind in self.gpu_types:
            if not _TYPE.fullmatch(kind):
                raise UsageError(f"{kind!r} cannot be a type of GPU.", where="GPU type")
        hint = "Use lower-case letters, digits, - and _, 31 at most, a letter first."
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"{self.name!r} cannot name a cluster.", where="lab name", hint=hint)
        if self.user and (self.user == "root" or not _USER.fullmatch(self.user)):
            problem = f"{self.user!r} is not a valid name for an ordinary user."
            raise UsageError(problem, where="--user", hint=hint)

    @property
    def cpus(self) -> int:
        """CPUs that each node claims."""
        return 4 * max(1, self.gpus_per_node)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes' names, n1 first."""
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    @property
    def node_gres(self) -> dict[str, str]:
        """The GPUs of each node as slurm.conf names them; empty if it has none."""
        kinds = itertools.cycle(self.gpu_types or ("",))
        gres = {}
        for name, kind in zip(self.node_names, kinds):  # noqa: B905  - one of them has no end
            has_gpus = self.gpus_per_node and kind != WITHOUT
            words = filter(None, ("gpu", kind, str(self.gpus_per_node)))
            gres[name] = ":".join(words) if has_gpus else ""
        return gres

    def slots(self) -> Iterator[int]:
        """Yield the slots to try; the directory decides which comes first."""
        start = zlib.crc32(f"{self.name}:{self.directory}".encode()) % SLOTS
        yield from ((start + step) % SLOTS for step in range(SLOTS))


class Network:
    """The addresses, link names and ports that belong to one slot.

    198.18.0.0/15 is reserved for benchmarks of isolated networks (RFC 2544), so it hides no real
    address. The ports are below Linux's ephemeral range.
    """

    def __init__(self, slot: int) -> None:
        # The host's end of its cable. Only one lab can have this name: that reserves a slot.
        self.uplink = f"hpcbert{slot}"
        self.prefix = f"198.19.{slot}.0/24"
        # Where slurmctld and slurmdbd are, on the host; each slurmd is on its node's own address.
        self.controller = f"198.19.{slot}.254"
        self.controller_port = _FIRST_PORT + _PORTS_PER_SLOT * slot
        self.node_port = self.controller_port + 1
        self.accounting_port = self.controller_port + 2

    def address(self, node: str) -> str:
        """Return the address of a node."""
        return self.prefix.replace("0/24", node[1:])


class Layout:
    """The paths below a lab's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.etc = root / "etc"
        self.logs = root / "log"
        self.run = root / "run"
        # The files next to slurm.conf belong to it.
        self.slurm_conf = self.etc / "slurm.conf"
        # This is /etc/hosts on every node.
        self.hosts = self.etc / "hosts"
        # Links to all of Slurm's plugins except those that the lab lacks.
        self.plugins = root / "plugins"
        self.job_submit = self.etc / "job_submit.lua"
        self.state = root / "state"
        self.spool = root / "spool"
        self.devices = root / "dev"
        self.munge_key = root / "munge" / "munge.key"
        self.munge_socket = root / "munge" / "munge.socket"
        self.database = root / "db"
        # The only way into MariaDB: its directory is closed to ordinary users.
        self.database_socket = root / "db-socket" / "mariadb.socket"
        # SQL that MariaDB runs each time it starts.
        self.database_init = root / "db-socket" / "init.sql"
        # The files for users: the site, the file for shells to source, and the directories of
        # campaigns, programs and images. These three have the same path on all nodes, and everybody
        # can write to them.
        self.site = root / "site.toml"
        self.env_sh = root / "env.sh"
        self.home = root / "home"
        self.view = root / "view"
        self.runs = root / "runs"
        self.sources = root / "sources"
        self.images = root / "images"

    def log(self, daemon: str) -> Path:
        """Return the path of a daemon's output."""
        return self.logs / f"{daemon}.log"


def root_of(directory: Path, mark: str) -> Path:
    """Return the place of the files that Slurm uses: the directory itself, if it can hold them.

    Slurm's configuration does not take spaces in paths reliably, a socket's path is short, job
    users must be able to walk there, and the nodes see a /tmp and a /dev/shm of their own. If a
    directory fails in one of these, it holds only `lab.json`, and the rest goes to a directory
    under /var/tmp named after `mark`.
    """
    path = directory.resolve()
    is_plain = _PLAIN_PATH.fullmatch(str(path)) and len(str(path)) <= _LONGEST_ROOT
    is_private = any(path.is_relative_to(mount) for mount in NODE_PRIVATE)
    modes = [parent.stat().st_mode for parent in path.parents if parent.exists()]
    if is_plain and not is_private and all(mode & stat.S_IXOTH for mode in modes):
        return path
    return FALLBACK_PARENT / f"hpcbert-lab-{mark}"


def is_lab(environ: Mapping[str, str]) -> bool:
    """Return whether the environment of a shell names the Slurm of a lab on this machine."""
    conf = Path(environ.get("SLURM_CONF", ""))
    layout = Layout(conf.parent.parent)
    return layout.slurm_conf == conf and layout.env_sh.is_file() and layout.site.is_file()


def command(word: str, directory: Path) -> str:
    """Return the command line of an action on the lab in a directory."""
    where = f" --directory {shlex.quote(str(directory))}" if directory != DEFAULT_DIRECTORY else ""
    return f"hpcbert lab {word}{where}"


# --- The record ----------------------------------------------------------------------------------

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
        mark: A random name that is in the environment of every process started for this lab, in
            its link's hardware address and in the fallback directory's name.
        root: The directory of all files except `lab.json`.
        created: Directories that did not exist before, outermost first.
        slot: The slot that was reserved, or was about to be; None before that.
        hosts: Node name, or `switch`, to the process that holds its namespaces; None if that was
            about to start.
        daemons: Daemon name to its process, as above. A node's slurmd has the node's name.
        account: Whether the plan's user was made for it.
        views: Bind mounts through which that user sees hpcbert.
        programs: The directory where that user finds hpcbert; None without a user.
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
        return {"SLURM_CONF": str(self.layout.slurm_conf), "HPCBERT_SITE": str(self.layout.site)}

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

    def note_process(
        self, kind: Literal["hosts", "daemons"], name: str, process: Process | None
    ) -> Lab:
        """Record that a host or daemon is about to start (None), or its process."""
        return self.note(**{kind: {**getattr(self.lab, kind), name: process}})

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
        for place in (path.parent, path):
            if reason := files.explain_distrust(place.lstat()):
                message = f"{reason}: hpcbert uses and ends only labs that root or you started."
                hint = "Check what is in it. Name a directory of your own for a new lab."
                raise UsageError(message, where=str(place), hint=hint)
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
        message = f"The record belongs to the lab in {lab.directory}."
        hint = "Name that directory; hpcbert did not put the record here."
        raise UsageError(message, where=str(path), hint=hint)
    return lab


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

"""The plan of a lab, its paths, and its addresses. No I/O except reading directories."""

from __future__ import annotations

import re
import shlex
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcbert.errors import UsageError

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
class LabPlan:
    """A planned cluster: its nodes, their equipment, and their place.

    Attributes:
        directory: The directory of `lab.json`, and of everything else if Slurm can use it (see
            `root_of`).
        nodes: Number of nodes, n1 to nN.
        gpus_per_node: Fake GPUs in each node.
        gpu_types: Type of the GPUs of n1, n2 and so on, in turn; `none` for a node without GPUs.
            None named: GPUs have no type.
        name: The cluster's name.
        accounting: Whether slurmdbd and its database are started. Without them there is no sacct.
        job_submit: Text of a job_submit.lua that slurmctld calls for every job; empty: no such
            plugin. While the lab runs, slurmctld reads the file again when it changes.
        settings: Further lines of slurm.conf; they override keys that the lab sets too.
        lacks: Slurm's plugins that it lacks, such as `mpi_pmix`.
        user: An ordinary user of the lab, made if missing; empty: none.
        slurmd_timeout: Seconds without an answer after which slurmctld marks a node as down.

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
    slurmd_timeout: int = 30

    def __post_init__(self) -> None:
        _check_range("nodes", self.nodes, 1, _MOST_NODES)
        _check_range("gpus per node", self.gpus_per_node, 0, _MOST_GPUS)
        _check_range("slurmd timeout", self.slurmd_timeout, 5, 65533)
        for kind in self.gpu_types:
            if not _TYPE.fullmatch(kind):
                raise UsageError(f"{kind!r} cannot be a type of GPU.", where="GPU type")
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} cannot name a cluster.",
                where="lab name",
                hint="Use lower-case letters, digits, - and _, 31 at most, a letter first.",
            )
        if self.user and (self.user == "root" or not _USER.fullmatch(self.user)):
            raise UsageError(
                f"{self.user!r} is not a valid name for an ordinary user.",
                where="--user",
                hint="Use lower-case letters, digits, - and _, 31 at most, a letter first.",
            )

    @property
    def cpus(self) -> int:
        """CPUs that each node claims."""
        return 4 * max(1, self.gpus_per_node)

    def gres(self, number: int) -> str:
        """Return the GPUs of a node as slurm.conf names them; empty if it has none.

        Args:
            number: Of the node, from 1.
        """
        kind = self.gpu_types[(number - 1) % len(self.gpu_types)] if self.gpu_types else ""
        if kind == WITHOUT or not self.gpus_per_node:
            return ""
        return ":".join(filter(None, ("gpu", kind, str(self.gpus_per_node))))

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes' names, n1 first."""
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

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
    if (
        is_plain
        and not is_private
        and all(
            not parent.exists() or parent.stat().st_mode & stat.S_IXOTH for parent in path.parents
        )
    ):
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


def _check_range(quantity: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{value} is out of bounds: {least} to {most}.", where=quantity)

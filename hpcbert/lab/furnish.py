"""Make the directories, files and devices of a lab."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.errors import CheckError
from hpcbert.lab import files
from hpcbert.lab.daemons import DATABASE_USER, MUNGE_USER
from hpcbert.lab.requirements import PLUGINS, PMIX, has_pmix

if TYPE_CHECKING:
    from collections.abc import Collection

    from hpcbert.lab.record import Lab


def make_directories(lab: Lab) -> None:
    """Make the directories of a lab, with the owners that its daemons require."""
    layout = lab.layout
    for directory in (layout.root, layout.etc, layout.logs, layout.devices, layout.spool):
        _directory(directory)
    for node in lab.plan.node_names:
        _directory(layout.spool / node)
    _directory(layout.run, owner=files.SLURM_USER)
    _directory(layout.state, owner=files.SLURM_USER, mode=0o700)
    _directory(layout.munge_key.parent, owner=MUNGE_USER)
    for directory in (layout.runs, layout.sources, layout.images):
        _directory(directory, mode=0o1777)
    if lab.plan.accounting:
        _directory(layout.database, owner=DATABASE_USER, mode=0o700)
        # slurmdbd must be able to reach the socket, and ordinary users must not.
        entrance = layout.database_socket.parent
        _directory(entrance, owner=DATABASE_USER, group=files.SLURM_USER, mode=0o750)


def write_files(lab: Lab) -> None:
    """Write all files that the daemons and users of a lab read."""
    layout, plan, network = lab.layout, lab.plan, lab.network
    host = socket.gethostname().partition(".")[0]
    _file(layout.munge_key, secrets.token_hex(64), owner=MUNGE_USER, mode=0o400)
    _file(layout.slurm_conf, files.slurm_conf(plan, network, layout, host=host))
    _file(layout.etc / "gres.conf", files.gres_conf(plan, layout))
    _file(layout.etc / "cgroup.conf", files.cgroup_conf())
    _file(layout.hosts, files.hosts_file(plan, network, host=host))
    mpi = "pmix" if has_pmix() and PMIX not in plan.lacks else ""
    _file(layout.site, files.site_toml(plan, layout, mpi=mpi))
    _file(layout.env_sh, files.env_sh(layout, lab.programs))
    if plan.lacks:
        _link_plugins(layout.plugins, plan.lacks)
    if plan.job_submit:
        _file(layout.job_submit, plan.job_submit)
    if plan.accounting:
        conf = files.slurmdbd_conf(network, layout, host=host)
        _file(layout.etc / "slurmdbd.conf", conf, owner=files.SLURM_USER, mode=0o600)
        _file(layout.database_init, files.database_init())


def _link_plugins(folder: Path, lacks: Collection[str]) -> None:
    """Make a directory of Slurm's plugins without some."""
    _directory(folder)
    for path in Path("/").glob(PLUGINS):
        if path.stem not in lacks and not path.stem.startswith(tuple(f"{one}_v" for one in lacks)):
            (folder / path.name).symlink_to(path)


def make_gpus(lab: Lab) -> None:
    """Make one device file per GPU: the null device under another name.

    Raises:
        CheckError: Device files can't be made here.
    """
    for number in range(lab.plan.gpus_per_node):
        path = lab.layout.devices / f"nvidia{number}"
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError as error:
            raise CheckError(
                "This machine does not let root make devices.",
                where=str(path),
                hint="In a container, allow mknod, or use a virtual machine.",
            ) from error
        path.chmod(0o666)


def _directory(path: Path, *, owner: str = "root", group: str = "", mode: int = 0o755) -> None:
    path.mkdir(exist_ok=True)
    _own(path, owner, group)
    path.chmod(mode)


def _file(path: Path, text: str, *, owner: str = "root", mode: int = 0o644) -> None:
    # Closed until its owner and mode are right: two of these files are secrets.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    _own(path, owner, "")
    path.chmod(mode)


def _own(path: Path, owner: str, group: str) -> None:
    entry = pwd.getpwnam(owner)
    os.chown(path, entry.pw_uid, pwd.getpwnam(group).pw_gid if group else entry.pw_gid)

"""The files of a lab: their contents, and making them with their owners."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import socket
import stat
from collections.abc import Collection
from pathlib import Path

from hpcbert.lab.record import Lab

SLURM_USER = "slurm"
MUNGE_USER = "munge"
DATABASE_USER = "mysql"
# Slurm's plugins, below the root.
PLUGINS = "usr/lib/*/slurm-wlm/*.so"
# A release of Slurm: year and month. The files are for 22.05 and later. Older releases lack the key
# of cgroup.conf, and before 21.08 AccountingStoreFlags has another name (slurm.conf(5)).
Release = tuple[int, int]
_RELEASE: Release = (22, 5)
# Claimed, not real: config_overrides makes slurmd accept it, so that --mem works as on a site.
_MEMORY_MB = 256000
_VERSION = re.compile(r"^slurm\S* (\d+)\.(\d+)", re.MULTILINE)
# The plugin for PMIx; Debian unstable's Slurm 26.05 lacks it.
PMIX = "mpi_pmix"


def read_release(text: str) -> Release:
    """Read the output of `slurmctld -V`; without a version, it is the one of the files."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2])) if match else _RELEASE


def render_file(name: str, **values: object) -> str:
    """Return the text of one of a lab's files, from its template in this folder."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - no HTML
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{name}.j2").render(values)


def file_values(lab: Lab, *, host: str, release: Release = _RELEASE) -> dict[str, object]:
    """Return the values in the templates of a lab's files.

    Args:
        host: This machine's short name.
    """
    programs = shlex.quote(str(lab.programs)) if lab.programs else ""
    return {
        "plan": lab.plan,
        "layout": lab.layout,
        "network": lab.network,
        "host": host,
        "user": SLURM_USER,
        "release": release,
        "memory_mb": _MEMORY_MB,
        # How srun starts ranks; empty: as each program needs it.
        "mpi": "pmix" if has_pmix() and PMIX not in lab.plan.lacks else "",
        # The directory of hpcbert for the lab's user; empty: found on PATH.
        "programs": programs,
    }


def find_plugins() -> set[str]:
    """Return the names of Slurm's plugins on this machine."""
    return {path.stem for path in Path("/").glob(PLUGINS)}


def has_pmix() -> bool:
    """Return whether this machine's Slurm, not the lab's, has the PMIx plugin."""
    return PMIX in find_plugins()


def make_directories(lab: Lab) -> None:
    """Make the directories of a lab, with the owners that its daemons require."""
    layout = lab.layout
    for directory in (layout.root, layout.etc, layout.logs, layout.devices, layout.spool):
        _make_directory(directory)
    for node in lab.plan.node_names:
        _make_directory(layout.spool / node)
    _make_directory(layout.run, owner=SLURM_USER)
    _make_directory(layout.state, owner=SLURM_USER, mode=0o700)
    _make_directory(layout.munge_key.parent, owner=MUNGE_USER)
    for directory in (layout.runs, layout.sources, layout.images):
        _make_directory(directory, mode=0o1777)
    if lab.plan.accounting:
        _make_directory(layout.database, owner=DATABASE_USER, mode=0o700)
        # slurmdbd must be able to reach the socket, and ordinary users must not.
        entrance = layout.database_socket.parent
        _make_directory(entrance, owner=DATABASE_USER, group=SLURM_USER, mode=0o750)


def write_files(lab: Lab, release: Release = _RELEASE) -> None:
    """Write all files that the daemons and users of a lab read, for a release of Slurm."""
    layout, plan = lab.layout, lab.plan
    values = file_values(lab, host=socket.gethostname().partition(".")[0], release=release)
    paths = [layout.slurm_conf, layout.etc / "gres.conf", layout.etc / "cgroup.conf"]
    paths += [layout.hosts, layout.site, layout.env_sh]
    if plan.accounting:
        # What gives slurmdbd its database and its access.
        paths.append(layout.database_init)
        path = layout.etc / "slurmdbd.conf"
        _write_file(path, render_file(path.name, **values), owner=SLURM_USER, mode=0o600)
    for path in paths:
        _write_file(path, render_file(path.name, **values))
    _write_file(layout.munge_key, secrets.token_hex(64), owner=MUNGE_USER, mode=0o400)
    if plan.lacks:
        _link_plugins(layout.plugins, plan.lacks)
    if plan.job_submit:
        _write_file(layout.job_submit, plan.job_submit)


def _link_plugins(folder: Path, lacks: Collection[str]) -> None:
    _make_directory(folder)
    versions = tuple(f"{plugin}_v" for plugin in lacks)
    for path in Path("/").glob(PLUGINS):
        if path.stem not in lacks and not path.stem.startswith(versions):
            (folder / path.name).symlink_to(path)


def make_gpus(lab: Lab) -> None:
    """Make one device file per GPU: the null device under another name."""
    for number in range(lab.plan.gpus_per_node):
        path = lab.layout.devices / f"nvidia{number}"
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.chmod(0o666)


def _make_directory(path: Path, *, owner: str = "root", group: str = "", mode: int = 0o755) -> None:
    path.mkdir(exist_ok=True)
    shutil.chown(path, owner, group or owner)
    path.chmod(mode)


def _write_file(path: Path, text: str, *, owner: str = "root", mode: int = 0o644) -> None:
    # Closed until its owner and mode are right: two of these files are secrets.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    shutil.chown(path, owner, owner)
    path.chmod(mode)

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

from hpcbert.lab.record import Lab, LabPlan, Layout, Network

SLURM_USER = "slurm"
MUNGE_USER = "munge"
DATABASE_USER = "mysql"
# Slurm's plugins, below the root.
PLUGINS = "usr/lib/*/slurm-wlm/*.so"
# A release of Slurm: year and month. The files are for 22.05 and later. Older releases lack the key
# of cgroup.conf, and before 21.08 AccountingStoreFlags has another name (slurm.conf(5)).
Release = tuple[int, int]
_RELEASE: Release = (22, 5)
_STORE_FLAGS: Release = (21, 8)
_STORE_COMMENT = "AccountingStoreJobComment=YES"
_VERSION = re.compile(r"^slurm\S* (\d+)\.(\d+)", re.MULTILINE)
# The plugin for PMIx; Debian unstable's Slurm 26.05 lacks it.
PMIX = "mpi_pmix"


def read_release(text: str) -> Release:
    """Read the output of `slurmctld -V`; without a version, it is the one of the files."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2])) if match else _RELEASE


def fill_template(name: str, /, **values: object) -> str:
    """Return the text of a template of this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8").format(**values)


def slurm_conf(
    plan: LabPlan, network: Network, layout: Layout, *, host: str, release: Release = _RELEASE
) -> str:
    """Return slurm.conf (slurm.conf(5) of Slurm 22.05); `host` is this machine's short name."""
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={name} NodeAddr={network.address(name)}"
        f" CPUs={plan.cpus} RealMemory={_MEMORY_MB}{gres and ' Gres='}{gres} State=UNKNOWN"
        for name, gres in plan.node_gres.items()
    )
    plugins = f"PluginDir={layout.plugins}\n" if plan.lacks else ""
    text = fill_template(
        "slurm.conf.in",
        plan=plan,
        network=network,
        layout=layout,
        host=host,
        user=SLURM_USER,
        memory_per_cpu=_MEMORY_MB // plan.cpus,
        accounting=_accounting(plan, network, layout, release),
        plugins="JobSubmitPlugins=lua\n" if plan.job_submit else "",
        nodes=nodes,
    )
    # If a key appears twice, Slurm takes the last.
    return "\n".join([text + plugins, *plan.settings, ""]) if plan.settings else text + plugins


def slurmdbd_conf(network: Network, layout: Layout, *, host: str) -> str:
    """Return slurmdbd.conf (slurmdbd.conf(5)).

    It needs no password: MariaDB asks the kernel who is at the other end of its socket.
    """
    return fill_template(
        "slurmdbd.conf.in", network=network, layout=layout, host=host, user=SLURM_USER
    )


def gres_conf(plan: LabPlan, layout: Layout) -> str:
    """Return gres.conf: the same device files represent the GPUs of every node."""
    if not plan.gpus_per_node:
        return "AutoDetect=off\n"
    numbers = f"[0-{plan.gpus_per_node - 1}]" if plan.gpus_per_node > 1 else "0"
    device = f"File={layout.devices}/nvidia{numbers}"
    if not plan.gpu_types:
        return f"AutoDetect=off\nName=gpu {device}\n"
    rows = [
        f"NodeName={name} Name=gpu Type={gres.split(':')[1]} {device}"
        for name, gres in plan.node_gres.items()
        if gres
    ]
    return "\n".join(["AutoDetect=off", *rows, ""])


def cgroup_conf(release: Release) -> str:
    """Return cgroup.conf; before 22.05, slurmd has only that plugin, and refuses its name.

    slurmd reads it although nothing here uses cgroups. If it is named, the v1 plugin touches
    nothing until a controller is requested; `autodetect` and v2 fail or leave directories behind
    where there is no systemd. CgroupAutomount, defunct in Slurm 26.05, was `no` by default.
    """
    return "CgroupPlugin=cgroup/v1\n" if release >= _RELEASE else ""


def hosts_file(plan: LabPlan, network: Network, *, host: str) -> str:
    """Return the nodes' /etc/hosts."""
    names = {network.address(node): node for node in plan.node_names}
    rows = {"127.0.0.1": "localhost", "::1": "localhost", network.controller: host, **names}
    return "".join(f"{address} {name}\n" for address, name in rows.items())


def site_toml(plan: LabPlan, layout: Layout, *, mpi: str) -> str:
    """Return the site description with which hpcbert uses the lab.

    Args:
        mpi: How srun starts ranks; empty: as each program needs it.
    """
    return fill_template(
        "site.toml.in",
        plan=plan,
        layout=layout,
        mpi=mpi,
        gres="gpu" if plan.gpus_per_node else "",
        # Without GPUs: ranks on the CPUs of a node.
        ranks=plan.gpus_per_node or plan.cpus,
    )


def env_sh(layout: Layout, programs: Path | None = None) -> str:
    """Return the shell lines that point Slurm's commands and hpcbert at the lab.

    The munge socket needs no variable: slurm.conf names it. The lab's paths need no quotes: see
    `root_of`.

    Args:
        programs: The directory of hpcbert for the lab's user; None: found on PATH.
    """
    path = f"export PATH={shlex.quote(str(programs))}:$PATH\n" if programs else ""
    return f"export SLURM_CONF={layout.slurm_conf}\nexport HPCBERT_SITE={layout.site}\n{path}"


# Claimed, not real: config_overrides makes slurmd accept it, so that --mem works as on a site.
_MEMORY_MB = 256000


def _accounting(plan: LabPlan, network: Network, layout: Layout, release: Release) -> str:
    if not plan.accounting:
        return "AccountingStorageType=accounting_storage/none"
    comment = "AccountingStoreFlags=job_comment" if release >= _STORE_FLAGS else _STORE_COMMENT
    return fill_template(
        "accounting.conf.in", network=network, layout=layout, store_comment=comment
    )


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
    layout, plan, network = lab.layout, lab.plan, lab.network
    host = socket.gethostname().partition(".")[0]
    _write_file(layout.munge_key, secrets.token_hex(64), owner=MUNGE_USER, mode=0o400)
    conf = slurm_conf(plan, network, layout, host=host, release=release)
    _write_file(layout.slurm_conf, conf)
    _write_file(layout.etc / "gres.conf", gres_conf(plan, layout))
    _write_file(layout.etc / "cgroup.conf", cgroup_conf(release))
    _write_file(layout.hosts, hosts_file(plan, network, host=host))
    mpi = "pmix" if has_pmix() and PMIX not in plan.lacks else ""
    _write_file(layout.site, site_toml(plan, layout, mpi=mpi))
    _write_file(layout.env_sh, env_sh(layout, lab.programs))
    if plan.lacks:
        _link_plugins(layout.plugins, plan.lacks)
    if plan.job_submit:
        _write_file(layout.job_submit, plan.job_submit)
    if plan.accounting:
        conf = slurmdbd_conf(network, layout, host=host)
        _write_file(layout.etc / "slurmdbd.conf", conf, owner=SLURM_USER, mode=0o600)
        # What gives slurmdbd its database and its access.
        _write_file(layout.database_init, fill_template("database.sql.in", user=SLURM_USER))


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

"""The requirements of a lab, and how to install them."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Sequence
from pathlib import Path

from hpcbert.errors import CheckError, UsageError
from hpcbert.lab.files import DATABASE_USER, MUNGE_USER, PMIX, SLURM_USER, find_plugins
from hpcbert.lab.record import SEARCH_PATH
from hpcbert.system.runner import Runner

# The program or file -> the package of Debian 12 that provides it.
_COMMANDS = {
    "munged": "munge",
    "munge": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "hostname": "hostname",
    "mount": "mount",
}
_FILES = {"/usr/lib/*/slurm-wlm/mpi_pmi2.so": "slurm-wlm-basic-plugins"}
# The plugin opens the library under its development name, which only this package provides.
_PMIX_FILES = {"/usr/lib/*/pmix*/lib/libpmix.so": "libpmix-dev"}
_USERS = {MUNGE_USER: "munge", SLURM_USER: "slurm-wlm-basic-plugins"}
_ACCOUNTING_COMMANDS = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}
_ACCOUNTING_FILES = {"/usr/lib/*/slurm-wlm/accounting_storage_mysql.so": "slurm-wlm-mysql-plugin"}
_ACCOUNTING_USERS = {DATABASE_USER: "mariadb-server"}


def check_root() -> None:
    """Check that this process is root.

    Raises:
        UsageError: It is not.
    """
    if os.geteuid() != 0:
        raise UsageError(
            "Only root can make namespaces, bridges and devices.",
            where="hpcbert lab",
            hint="Run it with sudo. Jobs run as whoever submits them, without root.",
        )


def check_packages(*, accounting: bool) -> None:
    """Check that all packages are installed.

    Raises:
        CheckError: Some are missing; the hint is the command that installs them.
    """
    lacking = missing(accounting=accounting)
    if lacking:
        packages = " ".join(sorted(set(lacking.values())))
        raise CheckError(
            f"Missing: {', '.join(sorted(lacking))}.",
            where="hpcbert lab",
            hint=f"apt-get install --no-install-recommends {packages}",
        )


def missing(*, accounting: bool) -> dict[str, str]:
    """Return the missing parts, each with its Debian package."""
    commands = _COMMANDS | (_ACCOUNTING_COMMANDS if accounting else {})
    patterns = _FILES | (_ACCOUNTING_FILES if accounting else {})
    # If no plugins are installed yet, Slurm's packages bring them, PMIx included.
    patterns |= _PMIX_FILES if not find_plugins() or PMIX in find_plugins() else {}
    users = _USERS | (_ACCOUNTING_USERS if accounting else {})
    accounts = {entry.pw_name for entry in pwd.getpwall()}
    root = Path("/")
    lacking = {
        program: package
        for program, package in commands.items()
        if not shutil.which(program, path=SEARCH_PATH)
    }
    lacking |= {
        Path(pattern).name: package
        for pattern, package in patterns.items()
        if not any(root.glob(pattern[1:]))
    }
    return lacking | {
        f"user {user}": package for user, package in users.items() if user not in accounts
    }


def check_abilities(run: Runner) -> None:
    """Check that the kernel lets this process make namespaces, mounts and links.

    Raises:
        CheckError: It does not, as in a container without privileges.
    """
    trial = ["mount", "-t", "tmpfs", "tmpfs", "/tmp"]  # noqa: S108  in the trial's own namespace
    unshare = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
    _try_command(run, [*unshare, *trial], "namespaces and mounts")
    _try_command(run, ["unshare", "--net", "ip", "link", "add", "type", "bridge"], "a bridge")
    _try_command(run, ["unshare", "--net", "ip", "link", "add", "type", "veth"], "a veth pair")


def _try_command(run: Runner, argv: Sequence[str], ability: str) -> None:
    result = run(argv, env={"PATH": SEARCH_PATH}, timeout=20)
    if not result.ok:
        raise CheckError(
            f"This machine does not let root make {ability}: {result.stderr.strip()}",
            where="hpcbert lab",
            hint="In a container, give it all privileges, or use a virtual machine.",
        )

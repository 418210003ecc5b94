"""Environment variables of a point: the names and values that the user may give."""

from __future__ import annotations

import re

from hpcbert.system import redact
from hpcbert.system.decode import Invalid

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Variables by which Slurm, its PMI and hpcbert's scripts inform the ranks (sbatch(1) and srun(1),
# OUTPUT ENVIRONMENT VARIABLES; job.bash, rank.bash), and those that steer Slurm's own commands.
_RESERVED_PREFIXES = {
    "SLURM": "Slurm",
    "SBATCH_": "Slurm",
    "SRUN_": "Slurm",
    "PMI_": "Slurm",
    "PMIX_": "Slurm",
    "HPCBERT_": "hpcbert",
}
# Slurm decides which devices a rank sees (gres.conf(5), AutoDetect), and for the CPU, hpcbert.
_RESERVED_NAMES = {
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), ""),
    **dict.fromkeys(("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"), ""),
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"), ""),
}
# bash refuses to export these (bash(1), Shell Variables).
_READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})


def check_variable(name: str) -> str:
    """Return a valid name for an environment variable.

    Raises:
        Invalid: It is not valid.
    """
    if not _VARIABLE_NAME.fullmatch(name):
        raise Invalid("is not a valid name for an environment variable")
    return name


def check_point_variable(name: str) -> str:
    """Return the name of a variable that the user may set for a point.

    Raises:
        Invalid: It is not a name, or something else sets it, or it names a secret.
    """
    check_variable(name)
    owner = next(
        (program for prefix, program in _RESERVED_PREFIXES.items() if name.startswith(prefix)), ""
    )
    if owner or name in _RESERVED_NAMES:
        raise Invalid(f"is set by {owner or 'Slurm and hpcbert'} itself", "Leave it out.")
    if name in _READ_ONLY:
        raise Invalid("belongs to bash, which refuses to set it", "Leave it out.")
    if redact.is_secret_name(name):
        raise Invalid("may hold a secret, and would appear in scripts and tables", _SECRETS_HINT)
    return name


_SECRETS_HINT = (
    "Put it where the program reads it itself, for example a file in your home directory."
)


def check_point_value(text: str) -> str:
    """Return a value that the user may give to a variable of a point.

    Raises:
        Invalid: It holds a control character or looks like a secret.
    """
    if _CONTROL.search(text):
        raise Invalid("holds a line break or another control character", value=text)
    if redact.mask_text(text) != text:
        raise Invalid("looks like a secret, and would appear in scripts and tables", _SECRETS_HINT)
    return text

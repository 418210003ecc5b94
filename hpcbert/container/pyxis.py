"""The options that pyxis gives to srun, and the release of pyxis that brought each; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# By the tags of NVIDIA/pyxis, args.c.
PYXIS_SINCE: Mapping[str, str] = {
    "container-image": "0.1",
    "container-name": "0.1",
    "container-mounts": "0.1",
    "container-workdir": "0.1",
    "container-mount-home": "0.3",
    "no-container-mount-home": "0.3",
    "container-remap-root": "0.4",
    "no-container-remap-root": "0.4",
    "container-entrypoint": "0.8",
    "no-container-entrypoint": "0.8",
    "container-writable": "0.11",
    "container-readonly": "0.11",
    "container-env": "0.15",
}
# Descriptions name other options too: an option's own line begins with it.
_SRUN_OPTION = re.compile(r"^\s*(?:-\w, )?--([a-z][a-z-]*)", re.MULTILINE)


def pyxis_options(
    *, home: bool, remap_root: bool, entrypoint: bool, writable: bool
) -> tuple[str, ...]:
    """Return the options that a job script gives to srun, without dashes."""
    return (
        "container-image",
        "container-name",
        "container-mounts",
        "container-workdir",
        "container-env",
        "container-mount-home" if home else "no-container-mount-home",
        "container-remap-root" if remap_root else "no-container-remap-root",
        "container-entrypoint" if entrypoint else "no-container-entrypoint",
        "container-writable" if writable else "container-readonly",
    )


def has_pyxis(usage: str) -> bool:
    """Return whether the output of `srun --help` shows any pyxis."""
    return "container-image" in _SRUN_OPTION.findall(usage)


def missing_pyxis_options(usage: str, required: Iterable[str]) -> tuple[str, ...]:
    """Return the wanted options that the output of `srun --help` lacks, the newest last."""
    options = frozenset(_SRUN_OPTION.findall(usage))
    return tuple(
        flag for flag in PYXIS_SINCE if flag in frozenset(required) and flag not in options
    )

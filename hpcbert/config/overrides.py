"""The part of a site that a command line can set, cheap enough to import for `--help`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Runtime = Literal["none", "pyxis", "enroot", "apptainer"]
RUNTIMES: tuple[str, ...] = get_args(Runtime)
# Common names of runtimes, and their names here.
_ALIASES = {"singularity": "apptainer"}
# Stands among shapes for the curve up to `nodes` and `gpus_per_node`.
SCALING = "scaling"


def runtime_name(text: str) -> str:
    """Return the runtime's name here, from its name or a common one."""
    return _ALIASES.get(text, text)


@dataclass(frozen=True)
class Overrides:
    """The values of a command line that replace a site.toml's; empty values come from the site.

    Attributes:
        runs, image: Paths are relative to the working directory.
        sbatch_arg, srun_arg: Extra arguments, after the site's.
        notify: When Slurm sends mail, and to whom, as `hpcbert.slurm.mail` reads it.
        fw: The framework that image, data, source, python and repository belong to.
    """

    runs: str = ""
    runtime: str | None = None
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    nodelist: str = ""
    exclude: str = ""
    time_limit: str = ""
    sbatch_arg: tuple[str, ...] = ()
    srun_arg: tuple[str, ...] = ()
    notify: str = ""
    fw: str = ""
    image: str = ""
    data: str = ""
    source: str = ""
    python: str = ""
    repository: str = ""

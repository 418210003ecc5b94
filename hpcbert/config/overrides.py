"""What a command line can say of a site: little enough to import for `--help`."""

from __future__ import annotations

from typing import Literal, get_args

from hpcbert.system.lazy import dataclass

Runtime = Literal["none", "pyxis", "enroot", "apptainer"]
RUNTIMES: tuple[str, ...] = get_args(Runtime)
# Names that people know a runtime by, and what it is called here.
_ALIASES = {"singularity": "apptainer"}
# Stands among shapes for the curve up to `nodes` and `gpus_per_node`.
SCALING = "scaling"


def runtime_name(text: str) -> str:
    """Return what a container runtime is called here, for what a person calls it."""
    return _ALIASES.get(text, text)


@dataclass(frozen=True)
class Overrides:
    """What a command line says instead of a site.toml; what is empty is as the site has it.

    Attributes:
        runs, image: Paths are relative to the working directory.
        sbatch_arg, srun_arg: Further words, after the site's.
        notify: When Slurm writes mail, and to whom: `hpcbert.slurm.mail` reads it.
        fw: The framework that image, data, source, python and repository are of.
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

"""The Slurm scheduler: runs Slurm's commands and follows jobs."""

from __future__ import annotations

from functools import partial

from hpcbert.config.schedulers import SHELL, SLURM, Traits
from hpcbert.script.quoting import directive

TRAITS = Traits(
    SLURM,
    "hpcbert.scheduler.slurm.backend:Slurm",
    launch=SHELL / "slurm.bash",
    launcher='srun "${step_options[@]}" --output="${log//%/%%}"',
    prefix="#SBATCH",
    format_options=partial(map, directive),
    srun=True,
)

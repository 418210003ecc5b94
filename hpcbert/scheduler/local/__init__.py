"""The local queue: one machine without Slurm. Its scripts request what Slurm's do."""

from __future__ import annotations

from functools import partial

from hpcbert.config.schedulers import LOCAL, Traits
from hpcbert.script.quoting import directive

TRAITS = Traits(
    LOCAL,
    "hpcbert.scheduler.local.backend:Local",
    prefix="#SBATCH",
    format_options=partial(map, directive),
    runs_locally=True,
    accepts_more=False,
    records_end=True,
)

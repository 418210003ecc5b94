"""The schedulers that a site can name, and their differences for scripts and checks.

A scheduler is added by a class in hpcbert/scheduler/ and a line in TABLE.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbert.system.decode import check_choice


@dataclass(frozen=True)
class Traits:
    """The properties of a scheduler.

    Attributes:
        name: Its name in a site.toml, `--scheduler` and a manifest.
        class_path: `MODULE:CLASS` of its `hpcbert.scheduler.base.Scheduler`.
        runs_locally: Whether its jobs run only on this machine.
        srun: Whether srun starts the ranks, with pyxis if requested; otherwise the script does.
        accepts_more: Whether more of a campaign may be submitted while some of it waits or runs.
        records_end: Whether it adds the end of a repeat to the repeat's status file.
    """

    name: str
    class_path: str
    runs_locally: bool = False
    srun: bool = False
    accepts_more: bool = True
    records_end: bool = False

    @property
    def launch(self) -> str:
        """Name of the library's file that starts the ranks."""
        return "slurm" if self.srun else "local"


SLURM = Traits("slurm", "hpcbert.scheduler.slurm.backend:Slurm", srun=True)
LOCAL = Traits(
    "local",
    "hpcbert.scheduler.local.backend:Local",
    runs_locally=True,
    accepts_more=False,
    records_end=True,
)
SCHEDULERS = {entry.name: entry for entry in (SLURM, LOCAL)}


def check_scheduler(name: str) -> str:
    """Return the name of a scheduler.

    Raises:
        Invalid: No scheduler has that name.
    """
    scheduler: str = check_choice(tuple(sorted(SCHEDULERS)), name)
    return scheduler


def find_traits(name: str) -> Traits:
    """Return the properties of a scheduler that a site, a manifest or a command line names."""
    return SCHEDULERS[name]

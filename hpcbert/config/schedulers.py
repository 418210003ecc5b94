"""The schedulers that a site can name, and their differences for scripts and checks.

A scheduler is added by a class in hpcbert/scheduler/ and a line in TABLE.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbert.system.decode import choose


@dataclass(frozen=True)
class Traits:
    """The properties of a scheduler.

    Attributes:
        name: Its name in a site.toml, `--scheduler` and a manifest.
        made_by: `MODULE:CLASS` of its `hpcbert.scheduler.base.Scheduler`.
        here: Whether its jobs run only on this machine.
        srun: Whether srun starts the ranks, with pyxis if requested; otherwise the script does.
        grows: Whether more of a campaign may be submitted while some of it waits or runs.
        writes_ends: Whether it adds the end of a repeat to the repeat's status file.
    """

    name: str
    made_by: str
    here: bool = False
    srun: bool = False
    grows: bool = True
    writes_ends: bool = False

    @property
    def launch(self) -> str:
        """Name of the library's file that starts the ranks."""
        return "slurm" if self.srun else "local"


SLURM = Traits("slurm", "hpcbert.scheduler.slurm.backend:Slurm", srun=True)
LOCAL = Traits(
    "local",
    "hpcbert.scheduler.local.backend:Local",
    here=True,
    grows=False,
    writes_ends=True,
)
TABLE = {one.name: one for one in (SLURM, LOCAL)}


def known(name: str) -> str:
    """Return the name of a scheduler.

    Raises:
        Invalid: No scheduler has that name.
    """
    found: str = choose(tuple(sorted(TABLE)), name)
    return found


def traits(name: str) -> Traits:
    """Return the properties of a scheduler that a site, a manifest or a command line names."""
    return TABLE[name]

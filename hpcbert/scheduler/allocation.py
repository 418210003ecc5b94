"""Slurm's scripts as steps of an allocation that the user has already: `submit --here`."""

from __future__ import annotations

from dataclasses import replace

from hpcbert.config.schedulers import ALLOCATION
from hpcbert.scheduler.slurm import TRAITS as SLURM_TRAITS

TRAITS = replace(
    SLURM_TRAITS,
    name=ALLOCATION,
    class_path="hpcbert.scheduler.local.allocation:InAllocation",
    accepts_more=False,
    records_end=True,
    in_allocation=True,
)

"""The Slurm scheduler: runs Slurm's commands and follows jobs."""

from __future__ import annotations

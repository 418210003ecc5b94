"""The local queue: one machine without Slurm."""

from __future__ import annotations

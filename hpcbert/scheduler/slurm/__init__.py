"""The Slurm scheduler: its commands are run here, and jobs followed."""

from __future__ import annotations

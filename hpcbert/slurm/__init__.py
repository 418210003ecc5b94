"""Slurm: starting its commands, reading what they say, following jobs."""

from __future__ import annotations

"""Slurm's language, pure: the output of its commands, states, reasons, node lists."""

from __future__ import annotations

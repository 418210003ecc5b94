"""Slurm's language, pure: what its commands print, states, reasons, node lists."""

from __future__ import annotations

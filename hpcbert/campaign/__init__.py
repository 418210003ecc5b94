"""A campaign: its directory, its repeats, and the verdict on each run."""

from __future__ import annotations

"""Checks before a run: on this machine, on nodes, in the cluster."""

from __future__ import annotations

"""Logs of runs that hpcbert did not submit: their frameworks, and which ones make a point."""

from __future__ import annotations

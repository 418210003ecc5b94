"""Logs of runs that hpcbert never submitted: whose they are, and which make a point."""

from __future__ import annotations

"""From results to a report: its contents, its figures, and its formats."""

from __future__ import annotations

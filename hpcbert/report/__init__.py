"""From results to a report: what it says, its figures, and each form that it is written in."""

from __future__ import annotations

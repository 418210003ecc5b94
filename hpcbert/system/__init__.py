"""The interface to the operating system: processes, files, locks, users."""

from __future__ import annotations

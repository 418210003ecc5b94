"""What hpcbert asks of the operating system: processes, files, locks, users."""

from __future__ import annotations

"""From runs to speedup tables, and tables written down: one module a format."""

from __future__ import annotations

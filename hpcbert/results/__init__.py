"""From runs to speedup tables, and writers of tables: one module per format."""

from __future__ import annotations

"""Tables written down: one module a format."""

from __future__ import annotations

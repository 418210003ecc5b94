"""TOML to nouns: discovery, strict reading, the origin of every value."""

from __future__ import annotations

"""Preparing image, program and data: one module a part."""

from __future__ import annotations

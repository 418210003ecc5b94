"""Prepare image, program and data: one module per part."""

from __future__ import annotations

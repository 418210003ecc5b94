"""Schedulers: handing jobs over, following them, cancelling them."""

from __future__ import annotations

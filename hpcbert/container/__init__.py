"""Containers: image references, mounts, the cache of images, and how a rank enters by enroot."""

from __future__ import annotations

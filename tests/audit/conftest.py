from __future__ import annotations

from tests.collect.conftest import build, collect, collect_json

__all__ = ["build", "collect", "collect_json"]

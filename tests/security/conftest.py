from __future__ import annotations

from tests.monitor.conftest import watched

__all__ = ["watched"]

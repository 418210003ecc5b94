from __future__ import annotations

from tests.collect.conftest import build
from tests.monitor.conftest import accounting, hpcbert, queue, slurm, watched

__all__ = ["accounting", "build", "hpcbert", "queue", "slurm", "watched"]

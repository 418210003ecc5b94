from __future__ import annotations

from tests.monitor.conftest import hpcbert, slurm

__all__ = ["hpcbert", "slurm"]

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kit import Cluster
from tests.kit.cli import Cli
from tests.kit.lab import Checkout


@pytest.fixture(scope="module")
def impatient(lab: Any, as_user: Any) -> Iterator[None]:
    """Half of Slurm's own time is what a command waits for a controller or node that is away."""
    path = lab.layout.slurm_conf
    conf = path.read_text()
    anybody = Cluster(lab, as_user, Cli(lab.layout.runs))
    path.write_text(f"{conf}MessageTimeout=5\n")
    anybody.must("scontrol", "reconfigure", as_root=True)
    yield
    path.write_text(conf)
    anybody.must("scontrol", "reconfigure", as_root=True)


@pytest.fixture
def cluster(
    lab: Any, as_user: Any, checkout: Checkout, work: Path, impatient: None
) -> Iterator[Cluster]:
    hpcbert = Cli(work, {"PYTHONPATH": str(checkout.path)}, as_user, checkout.python)
    new_cluster = Cluster(lab, as_user, hpcbert)
    yield new_cluster
    new_cluster.clear()

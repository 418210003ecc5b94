from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.killing import Desk
from tests.faults.kit import PATIENCE, Cluster, wait_for
from tests.faults.rounds import Round


@pytest.fixture
def desk(as_user: Any, checkout: Any, work: Path) -> Iterator[Desk]:
    """A desk on the shared lab, with a directory of campaigns that everybody can write to."""
    runs = work / "runs"
    as_user(["mkdir", "--mode=1777", str(runs)])
    yield Desk(runs, as_user, checkout)
    as_user(["bash", "-c", "scancel --user=$USER"])


@pytest.fixture(scope="module")
def rounds(
    lab: Any, as_user: Any, user: Any, checkout: Any, narrow: Path
) -> Iterator[Callable[[int], Round]]:
    """Starts the round of a seed when it is first asked for."""
    work = lab.layout.runs / f"faults-{os.getpid()}"
    work.mkdir()
    os.chown(work, user.uid, user.gid)
    cluster = Cluster(lab, as_user, checkout.python, checkout.path, narrow, work)
    conf = lab.layout.slurm_conf.read_text()
    # Half of Slurm's own: what a command waits for a controller that is dead or a node that is cut.
    lab.layout.slurm_conf.write_text(f"{conf}MessageTimeout={PATIENCE}\n")
    wait_for("Slurm has read it", lambda: cluster.root("scontrol", "reconfigure").ok)
    started: dict[int, Round] = {}

    def start(seed: int) -> Round:
        if seed not in started:
            for current in started.values():
                current.close()
            started[seed] = Round(cluster, seed)
        return started[seed]

    yield start
    for current in started.values():
        current.close()
    lab.layout.slurm_conf.write_text(conf)
    wait_for("Slurm has read it", lambda: cluster.root("scontrol", "reconfigure").ok)
    cluster.clear()

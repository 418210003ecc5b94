"""Every recipe rehearsed on a real cluster: queue, nodes, ranks, addresses, as its launch wants."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcbert.config import places, recipe
from hpcbert.lab.files import has_pmix
from tests.kit.needs import not_applicable
from tests.kit.recipes import NAMES
from tests.kit.waiting import unqueued, until

pytestmark = pytest.mark.slurm

RANK = re.compile(
    r"REHEARSAL rank=(\d+)/(\d+) local_rank=(\d+) node=(\d+)/(\d+) host=(\w+) gpus=([\d,]+) "
    r"master=([\d.]+):\d+ nodes=([\d.,]+) reached=(\d+)/(\d+)"
)


@pytest.fixture(scope="module")
def campaign_folders(as_user: Any, checkout: Any, lab: Any) -> dict[str, Path]:
    """Submit all recipes at 4n8g, one repeat each, and wait until none of them is queued."""
    runs = lab.layout.runs / "rehearsals"
    environment = {"PYTHONPATH": str(checkout.path), "HPCBERT_RUNS": str(runs)}
    folders = {}
    for name in filter(_is_startable, NAMES):
        words = ["--fw", name, "--nodes", "4", "--gpus-per-node", "8", "--repeats", "1"]
        submission = as_user(
            [checkout.python, "-m", "hpcbert", "submit", *words, "--rehearse", "--json"],
            env=environment,
        )
        assert submission.ok, submission.stdout + submission.stderr
        folders[name] = Path(json.loads(submission.stdout)["data"]["directory"])
    queue = ["squeue", "--noheader", "--format=%j"]

    def over() -> bool:
        listing = as_user(queue)
        return all(unqueued(listing, folder.name) for folder in folders.values())

    until(over, lambda: str(as_user(queue)), pause=0.5)
    return folders


def _is_startable(name: str) -> bool:
    """Say whether this release's Slurm starts the ranks of a recipe as that needs it."""
    mpi = recipe.load(places.package_templates() / name).mpi
    return has_pmix() or set(mpi) != {"pmix"}


@pytest.mark.parametrize("framework", NAMES)
def test_a_rehearsal_has_the_ranks_and_addresses_that_the_launch_wants(
    framework: str, campaign_folders: dict[str, Path]
) -> None:
    if framework not in campaign_folders:
        not_applicable("this release's Slurm has no mpi_pmix.so")
    directory = campaign_folders[framework]
    (status,) = (directory / "status").glob("*.jsonl")
    last = json.loads(status.read_text().splitlines()[-1])
    (log,) = (directory / "logs").rglob("*.log")
    text = log.read_text()
    assert (last["event"], last["exit"]) == ("end", 0), text
    ranks = [match.groups() for match in RANK.finditer(text)]
    per_node = recipe.load(places.package_templates() / framework).launch == "per-node"
    world = 4 if per_node else 32
    assert sorted(int(rank[0]) for rank in ranks) == list(range(world))
    assert {rank[1] for rank in ranks} == {str(world)}
    local = {int(rank[2]) for rank in ranks}
    assert local == ({0} if per_node else set(range(8)))
    assert {rank[5] for rank in ranks} == {"n1", "n2", "n3", "n4"}
    assert {rank[6] for rank in ranks} == {"0,1,2,3,4,5,6,7"}
    addresses = {rank[8] for rank in ranks}
    assert len(addresses) == 1
    assert len(set(addresses.pop().split(","))) == 4
    assert {rank[9:] for rank in ranks} == {("4", "4")}
    assert {rank[7] for rank in ranks} == {ranks[0][8].split(",")[0]}

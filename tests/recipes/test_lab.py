"""Every recipe rehearsed on a real cluster: queue, nodes, ranks, addresses, as its launch wants."""

import json
import re
from functools import partial
from pathlib import Path

from hpcbert.lab.files import has_pmix
from tests.kit.recipes import NAMES, load
from tests.kit.waiting import unqueued, until


def test_rehearsals_have_the_ranks_and_addresses_that_each_launch_wants(as_user, checkout, lab):
    """All recipes at 4n2g, one repeat each, queued at once."""
    rank_line = re.compile(
        r"REHEARSAL rank=(\d+)/(\d+) local_rank=(\d+) node=(\d+)/(\d+) host=(\w+) gpus=([\d,]+) "
        r"master=([\d.]+):\d+ nodes=([\d.,]+) reached=(\d+)/(\d+)"
    )
    runs, fields = lab.layout.runs / "rehearsals", {"PYTHONPATH": str(checkout.path)}
    # Without mpi_pmix.so in this release's Slurm, pmix alone is not enough.
    names = [name for name in NAMES if has_pmix() or set(load(name).mpi) != {"pmix"}]
    shape = ["--nodes", "4", "--gpus-per-node", "2", "--repeats", "1", "--rehearse", "--json"]
    lines = [["submit", "--fw", name, *shape] for name in names]
    # A process forks for each of them: most of a submission's time is its start.
    code = "import json, os, sys; from hpcbert.cli.main import root\n"
    code += "for words in json.loads(sys.argv[1]): (os.fork() or root(words)) and os.wait()"
    argv = [checkout.python, "-c", code, json.dumps(lines)]
    submission = as_user(argv, env={**fields, "HPCBERT_RUNS": str(runs)})
    assert submission.ok, submission.stdout + submission.stderr
    documents = map(json.loads, submission.stdout.splitlines())
    directories = [Path(document["data"]["directory"]) for document in documents]
    folders = dict(zip(names, directories, strict=True))
    assert folders
    for name, directory in folders.items():
        until(partial(unqueued, as_user, directory.name), f"{name} is queued", pause=0.5)
        (status,) = (directory / "status").glob("*.jsonl")
        last = json.loads(status.read_text().splitlines()[-1])
        (log,) = (directory / "logs").rglob("*.log")
        assert (last["event"], last["exit"]) == ("end", 0), log.read_text()
        ranks = [match.groups() for match in rank_line.finditer(log.read_text())]
        numbers, worlds, local, _, _, hosts, gpus, masters, addresses, *reached = zip(
            *ranks, strict=True
        )
        per_node = load(name).launch == "per-node"
        world = 4 if per_node else 8
        assert sorted(map(int, numbers)) == list(range(world)), name
        assert {*worlds} == {str(world)}
        assert {*map(int, local)} == ({0} if per_node else {0, 1})
        assert {*hosts} == {"n1", "n2", "n3", "n4"}
        assert {len(visible.split(",")) for visible in gpus} == {2}
        (nodes,) = {*addresses}
        assert len({*nodes.split(",")}) == 4
        assert {*zip(*reached, strict=True)} == {("4", "4")}
        assert {*masters} == {nodes.split(",")[0]}

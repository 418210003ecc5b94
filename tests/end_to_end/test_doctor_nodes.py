"""The doctor's look at nodes from inside a job, without containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.cli import Cli


def examined(hpcbert: Cli, work: Path, runs: str) -> dict[str, dict[str, str]]:
    (work / "site.toml").write_text(
        'schema = 1\nname = "x"\nscheduler = "slurm"\n[slurm]\npartition = "gpu"\n'
        f'[frameworks.pytorch]\npython = "/no/such/python"\n'
        f'[frameworks.oneflow]\npython = "/bin/bash"\ndata = "{work}"\nsource = "/no/source"\n'
    )
    words = ("--nodes", "4", "--site", work, "--fw", "pytorch", "--fw", "oneflow", "--json")
    done = hpcbert("doctor", *words, HPCBERT_RUNS=runs)
    return {f"{one['name']}: {one['detail']}": one for one in done.data}


def test_a_job_says_what_its_nodes_see(hpcbert: Cli, work: Path) -> None:
    found = examined(hpcbert, work, str(work / "runs"))
    status = {name: one["status"] for name, one in found.items() if "(n[1-4])" in name}
    assert status == {
        f"runs (n[1-4]): {work}/runs is the login node's": "ok",
        "python (n[1-4]): there is no program /no/such/python": "fail",
        "python (n[1-4]): /bin/bash": "ok",
        f"files (n[1-4]): {work}": "ok",
        "files (n[1-4]): there is no /no/source": "fail",
    }


def test_a_directory_that_the_nodes_do_not_share_is_found(
    as_user: Any, hpcbert: Cli, work: Path
) -> None:
    place = f"/tmp/hpcbert-{work.name}/runs"  # every node of the lab has a /tmp of its own
    try:
        found = examined(hpcbert, work, place)
        (seen,) = [one for one in found.values() if one["name"] == "runs (n[1-4])"]
        assert seen["status"] == "fail"
        assert f"there is no {place}" in seen["detail"]
        assert seen["change"] == "site.toml: runs"
        (known,) = [one for one in found.values() if "each machine has for itself" in one["detail"]]
        assert known["status"] == "fail"
    finally:
        as_user(["rm", "-r", f"/tmp/hpcbert-{work.name}"])

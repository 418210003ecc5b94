"""A site's own sbatch, which changes every job: one job for each array, on a real cluster.

The partition is hidden, and USER is not the submitter's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.fingerprint import parse
from hpcbert.lab.record import Lab
from hpcbert.model import MANIFEST
from hpcbert.system.runner import run
from tests.kit.cli import Cli
from tests.kit.scripts import tool

COPY = 'copy=$(mktemp /tmp/wrapped.XXXXXX); cat "${@: -1}" >"$copy"; set -- "${@:1:$#-1}" '
WRAPPERS = {
    "renames": 'exec /usr/bin/sbatch --job-name=proj "$@"\n',
    "moves": f'{COPY} --chdir=/tmp "$copy"\nexec /usr/bin/sbatch "$@"\n',
    "renames and moves": f'{COPY} --job-name=p --chdir=/tmp "$copy"\n/usr/bin/sbatch "$@"\n',
    "comments": 'exec /usr/bin/sbatch --comment=charged "$@"\n',
    "checks its name": '[[ $0 == */sbatch && $0 != /proc/* ]] || exit 9\n/usr/bin/sbatch "$@"\n',
    # As a job_submit plugin does; and it prints a quota after the id, and fails at last.
    "renames later and fails": 'job=$(/usr/bin/sbatch "$@") || exit\n'
    'scontrol update jobid="$job" jobname="proj-$job" >&2\n'
    'printf "%s\\n%s\\n" "$job" 7\nexit 1\n',
    "leaves its folder out of PATH": 'export PATH=${PATH#"${0%/*}:"}\nexec sbatch "$@"\n',
}
ALL = (
    f'{COPY} --job-name=proj --chdir=/tmp --comment=x "$copy"\n'
    'echo "Welcome"; set -- "${@/--parsable/--verbose}"\n/usr/bin/sbatch "$@"; echo "12 h left"\n'
)
# The reset of the colour stands before the command's own first line.
NOTICE = r"printf '\033[31mNotice\nMaintenance\n| down | 12 hours |\n99\n\033[0m'"
COMMANDS = ("sbatch", "squeue", "sacct", "sinfo", "scontrol", "sacctmgr", "srun")
SUBMIT = ("submit", "--fw", "pytorch", "--repeats", "2", "--python", "/usr/bin/python3", "--json")


@pytest.fixture(autouse=True)
def hidden(lab: Lab) -> Iterator[None]:
    """The lab's partition is hidden."""

    def update(value: str) -> None:
        argv = ["scontrol", "update", "partitionname=gpu", f"hidden={value}"]
        outcome = run(argv, env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **lab.environment})
        assert outcome.ok, outcome.stderr

    update("yes")
    yield
    update("no")


@pytest.fixture
def new_jobs(as_user: Any) -> Iterator[Callable[[], set[str]]]:
    """Return the jobs that are there since the test began."""
    words = ["squeue", "--all", "--noheader", "--states=all", "--format=%F"]

    def ids() -> set[str]:
        return set(as_user(words).stdout.split())

    before = ids()
    yield lambda: ids() - before
    as_user(["scancel", *(ids() - before)])


def wrapped(hpcbert: Cli, body: str) -> Cli:
    tool(hpcbert.cwd, "sbatch", f"#!/bin/bash\n{body}")
    path = f"{hpcbert.cwd}:/usr/bin:/bin:/usr/sbin:/sbin"
    somebody = {"PATH": path, "USER": "jovyan", "LOGNAME": "jovyan"}
    return replace(hpcbert, env={**hpcbert.env, **somebody})


@pytest.mark.parametrize("body", [*WRAPPERS.values(), ALL], ids=[*WRAPPERS, "all of it"])
def test_a_wrapped_submission_makes_one_job_and_cancels_it(
    hpcbert: Cli, new_jobs: Callable[[], set[str]], body: str
) -> None:
    hpcbert = wrapped(hpcbert, body)
    document = hpcbert(*SUBMIT, "--sbatch-arg=--hold", status=0).document
    (array,) = document["data"]["arrays"]
    assert new_jobs() == {array["job_id"]}
    assert array["doubtful"] == (body == ALL)
    if body == ALL:
        assert any("'proj' in /tmp" in warning for warning in document["warnings"])
    if body == WRAPPERS["renames later and fails"]:
        assert [change["what"] for change in array["changed"]] == ["JobName"]
        assert any(f"proj-{array['job_id']}" in warning for warning in document["warnings"])
    directory = Path(document["data"]["directory"])
    assert store.read_manifest(directory).user != "jovyan"
    events = hpcbert("monitor", "--once", directory, "--json", status=0).events
    assert [event["state"] for event in events] == ["PENDING", "PENDING"]
    hpcbert("submit", "--resume", directory, "--json", status=0)
    hpcbert("retry", f"runs/{directory.name}", "--json", status=0)
    assert new_jobs() == {array["job_id"]}
    cancelled = hpcbert("cancel", "--yes", directory, "--json", status=0).data
    assert cancelled["jobs"] == [array["job_id"]]


def test_a_job_in_doubt_is_settled_when_it_begins(
    hpcbert: Cli, new_jobs: Callable[[], set[str]]
) -> None:
    hpcbert = wrapped(hpcbert, ALL)
    data = hpcbert(*SUBMIT, "--rehearse", status=0).data
    directory = Path(data["directory"])
    hpcbert("monitor", directory, "--json", status=0)
    hpcbert("submit", "--resume", directory, "--json", status=0)
    (array,) = store.read_manifest(directory).arrays
    assert (bool(array.seen), array.is_doubtful) == (True, False)
    assert new_jobs() == {array.job_id}


def test_a_campaign_restored_from_before_its_submission_adopts_its_jobs(
    hpcbert: Cli, new_jobs: Callable[[], set[str]]
) -> None:
    hpcbert = wrapped(hpcbert, WRAPPERS["renames and moves"])
    data = hpcbert(*SUBMIT, "--sbatch-arg=--hold", status=0).data
    directory = Path(data["directory"])
    (array,) = store.read_manifest(directory).arrays
    old = replace(
        array, state="intended", job_id="", called="", submitted="", seen="", workdir="", changed=()
    )
    manifest = replace(store.read_manifest(directory), arrays=(replace(old, submit_time=None),))
    (directory / MANIFEST).write_text(store.format_manifest(store.SCHEMA, manifest))
    hpcbert("submit", "--resume", directory, "--json", status=0)
    (again,) = store.read_manifest(directory).arrays
    assert new_jobs() == {again.job_id} == {array.job_id}
    assert hpcbert("cancel", "--yes", directory, "--json", status=0).data["jobs"] == [array.job_id]


def test_killed_after_sbatch_where_squeue_and_accounting_lag_the_job_is_not_doubled(
    hpcbert: Cli, new_jobs: Callable[[], set[str]]
) -> None:
    body = f'{COPY} --job-name=proj --chdir=/tmp "$copy"\n/usr/bin/sbatch "$@"; kill -9 $PPID\n'
    dying = wrapped(hpcbert, body)
    assert dying(*SUBMIT, "--sbatch-arg=--hold").returncode != 0
    (directory,) = store.find_all_campaigns(hpcbert.cwd / "runs")
    (job,) = new_jobs()
    for name in ("squeue", "sacct"):
        tool(hpcbert.cwd, name, "#!/bin/sh\nexit 0\n")
    again = wrapped(hpcbert, 'exec /usr/bin/sbatch "$@"\n')
    again("submit", "--resume", directory, "--json", status=0)
    (array,) = store.read_manifest(directory).arrays
    assert new_jobs() == {array.job_id} == {job}


def test_a_notice_of_every_command_is_no_answer(
    hpcbert: Cli, new_jobs: Callable[[], set[str]]
) -> None:
    for name in COMMANDS:
        body = f'{NOTICE}\n/usr/bin/{name} "$@"\ncode=$?\n{NOTICE}\nexit "$code"\n'
        tool(hpcbert.cwd, name, f"#!/bin/bash\n{body}")
    path = f"{hpcbert.cwd}:/usr/bin:/bin:/usr/sbin:/sbin"
    hpcbert = replace(hpcbert, env={**hpcbert.env, "PATH": path})
    choices = hpcbert("init", "--output", "new.toml", "--json", status=0).data["choices"]
    values = {choice["key"]: choice["value"] for choice in choices}
    assert (values["slurm.partition"], values["slurm.mpi"]) == ("gpu", "pmix")
    shape = ("--nodes", "2", "--gpus-per-node", "2", "--rehearse")
    data = hpcbert(*SUBMIT, *shape, status=0).data
    (array,) = data["arrays"]
    assert new_jobs() == {array["job_id"]}
    ends = {
        event["repeat"]: (event["state"], len(event["nodes"]))
        for event in hpcbert("monitor", data["directory"], "--json", status=0).events
        if event["event"] == "state"
    }
    assert ends == {1: ("COMPLETED", 2), 2: ("COMPLETED", 2)}
    for file in Path(data["directory"], "env").glob("*.nodes.jsonl"):
        (equal_nodes,) = parse(file.read_bytes())
        assert len(equal_nodes.nodes) == 2

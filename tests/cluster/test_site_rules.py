"""What a site does to every job, on a real cluster: its plugin, its own sbatch, notices, exports.

Ranks need nothing of their submitter's environment, and each array is one job, whatever it is called.
"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.fingerprint import parse
from hpcbert.system.runner import run
from tests.kit.cases import read_constant
from tests.kit.cli import first_row
from tests.kit.lab import JOB_SUBMIT
from tests.kit.logs import WORDS, stand_in
from tests.kit.scripts import tool
from tests.kit.slurm import PROGRAMS

pytestmark = pytest.mark.slurm

# What a site's job_submit.lua may do to every job, and what its own sbatch may.
RULES, WRAPPERS = read_constant(__file__, "RULES"), read_constant(__file__, "WRAPPERS")
SUBMIT = ("submit", "--fw", "pytorch", "--repeats", "2", "--python", "/usr/bin/python3", "--json")
POINT = ("submit", "--fw", "pytorch", "--gpus-per-node", "1", "--repeats", "1", "--json")


@pytest.mark.site("`--export=NONE`", "`job_submit.lua`")
def test_ranks_need_nothing_of_their_submitters_environment(hpcbert, lab, wait_for_end):
    def rehearse(*words, **env):
        result = hpcbert(*POINT, "--nodes", "2", "--rehearse", *words, status=0, **env)
        return result.data["directory"]

    def rule(text):
        path = lab.layout.job_submit
        # slurmctld compares times in whole seconds.
        later = path.stat().st_mtime + 2
        path.write_text(JOB_SUBMIT.format(rule=text))
        os.utime(path, (later, later))

    # Addresses of the named interface are asked for by a step.
    text = lab.layout.site.read_text().replace("[nodes]", '[nodes]\ninterface = "eth0"')
    (hpcbert.cwd / "site.toml").write_text(text)
    site, option = ("--site", "."), "--sbatch-arg=--export=NONE"
    campaigns = [rehearse(option), rehearse(*site, "--sbatch-arg=--export=NIL")]
    campaigns += [rehearse(SBATCH_EXPORT="NONE", SLURM_EXPORT_ENV="NONE")]
    try:
        for name in ("forced", "bare"):
            rule(RULES[name])
            campaigns.append(rehearse(*site))
        rule(RULES["demanded"])
        refused = hpcbert(*POINT, *site, "--rehearse", status=3)
        assert "submit with --export=NONE" in refused.error["message"]
        campaigns.append(rehearse(*site, option))
    finally:
        rule("")
    pattern = r"REHEARSAL rank=(\d)/2 .* node=(\d)/2 .* gpus=\d master=(\S+) .* reached=(\S+)"
    for campaign in campaigns:
        directory = wait_for_end(campaign)
        (log,) = directory.rglob("bert_*.log")
        ranks = sorted(re.findall(pattern, log.read_text()))
        assert [rank[:2] for rank in ranks] == [("0", "0"), ("1", "1")]
        assert {rank[3] for rank in ranks} == {"2/2"}
        assert len({rank[2] for rank in ranks}) == 1
        (status,) = directory.glob("status/*.jsonl")
        events = map(json.loads, status.read_text().splitlines())
        assert [event["exit"] for event in events if event["event"] == "step-end"] == [0]


def test_a_reservation_that_the_shell_names_is_used_and_recorded(hpcbert, lab, user):
    slots = [f"users={user.name}", "nodes=n2", "starttime=now", "duration=10"]
    create = ["scontrol", "create", "reservationname=shell", *slots]
    assert run(create, env=lab.daemon_environment).ok
    words = ("--repeats", "1", "--python", stand_in(hpcbert.cwd, ""), "--wait", "--json")
    env = {"SBATCH_RESERVATION": "shell", "SBATCH_PARTITION": "x"}
    try:
        row = first_row(hpcbert(*WORDS, *words, status=0, **env).document)
    finally:
        assert run(["scontrol", "delete", "reservationname=shell"], env=lab.daemon_environment).ok
    assert row["runs"][0]["nodes"] == ["n2"]
    (directory,) = (hpcbert.cwd / "runs").iterdir()
    lock = (directory / "campaign.lock.toml").read_text()
    assert 'variables."slurm.reservation" = "SBATCH_RESERVATION"' in lock
    # The site has a partition of its own.
    assert "SBATCH_PARTITION" not in lock


@pytest.fixture
def new_jobs(as_user, lab):
    """Return the jobs that are there since the test began; the lab's partition is hidden."""

    def list_jobs():
        words = ["squeue", "--all", "--noheader", "--states=all", "--format=%F"]
        return set(as_user(words).stdout.split())

    hide = ["scontrol", "update", "partitionname=gpu"]
    before = list_jobs()
    assert run([*hide, "hidden=yes"], env=lab.daemon_environment).ok
    yield lambda: list_jobs() - before
    assert run([*hide, "hidden=no"], env=lab.daemon_environment).ok
    as_user(["scancel", *(list_jobs() - before)])


def wrap(hpcbert, **programs):
    """Return hpcbert where a site has programs of its own, and USER is not the submitter's name."""
    for name, body in programs.items():
        tool(hpcbert.cwd, name, f"#!/bin/bash\n{body}\n")
    env = {"PATH": f"{hpcbert.cwd}:/usr/bin:/bin:/usr/sbin:/sbin", "USER": "jovyan"}
    return replace(hpcbert, env={**hpcbert.env, **env, "LOGNAME": "jovyan"})


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_submission_makes_one_job_and_cancels_it(hpcbert, new_jobs, name):
    hpcbert = wrap(hpcbert, sbatch=WRAPPERS[name])
    document = hpcbert(*SUBMIT, "--sbatch-arg=--hold", status=0).document
    (array,) = document["data"]["arrays"]
    assert new_jobs() == {array["job_id"]}
    assert array["doubtful"] == (name == "all of it")
    warnings = str(document["warnings"])
    assert ("'proj' in /tmp" in warnings) == (name == "all of it")
    if name == "renames later and fails":
        assert [change["what"] for change in array["changed"]] == ["JobName"]
        assert f"proj-{array['job_id']}" in warnings
    directory = Path(document["data"]["directory"])
    assert store.read_manifest(directory).user != "jovyan"
    events = hpcbert("monitor", "--once", directory, "--json", status=0).events
    assert [event["state"] for event in events] == ["PENDING", "PENDING"]
    hpcbert("submit", "--resume", directory, "--json", status=0)
    hpcbert("retry", f"runs/{directory.name}", "--json", status=0)
    assert new_jobs() == {array["job_id"]}
    cancelled = hpcbert("cancel", "--yes", directory, "--json", status=0).data
    assert cancelled["jobs"] == [array["job_id"]]


def test_a_job_in_doubt_is_settled_when_it_begins(hpcbert, new_jobs):
    hpcbert = wrap(hpcbert, sbatch=WRAPPERS["all of it"])
    directory = Path(hpcbert(*SUBMIT, "--rehearse", status=0).data["directory"])
    hpcbert("monitor", directory, "--json", status=0)
    hpcbert("submit", "--resume", directory, "--json", status=0)
    (array,) = store.read_manifest(directory).arrays
    assert (bool(array.seen), array.is_doubtful) == (True, False)
    assert new_jobs() == {array.job_id}


def test_a_campaign_restored_from_before_its_submission_adopts_its_jobs(hpcbert, new_jobs):
    hpcbert = wrap(hpcbert, sbatch=WRAPPERS["renames and moves"])
    directory = Path(hpcbert(*SUBMIT, "--sbatch-arg=--hold", status=0).data["directory"])
    campaign = store.read_manifest(directory)
    (array,) = campaign.arrays
    unknown = replace(array, state="intended", job_id="", called="", submitted="", seen="")
    unknown = replace(unknown, workdir="", changed=())
    manifest = replace(campaign, arrays=(replace(unknown, submit_time=None),))
    store.write_manifest(directory, manifest)
    hpcbert("submit", "--resume", directory, "--json", status=0)
    (again,) = store.read_manifest(directory).arrays
    assert new_jobs() == {again.job_id} == {array.job_id}
    assert hpcbert("cancel", "--yes", directory, "--json", status=0).data["jobs"] == [array.job_id]


def test_killed_after_sbatch_where_squeue_and_accounting_lag_the_job_is_not_doubled(
    hpcbert, new_jobs
):
    dying = wrap(hpcbert, sbatch=f"{WRAPPERS['renames and moves']}; kill -9 $PPID")
    assert not dying(*SUBMIT, "--sbatch-arg=--hold").ok
    (directory,) = store.find_all_campaigns(hpcbert.cwd / "runs")
    (job,) = new_jobs()
    silent = wrap(hpcbert, sbatch='exec /usr/bin/sbatch "$@"', squeue="exit 0", sacct="exit 0")
    silent("submit", "--resume", directory, "--json", status=0)
    (array,) = store.read_manifest(directory).arrays
    assert new_jobs() == {array.job_id} == {job}


def test_a_notice_of_every_command_is_no_answer(hpcbert, new_jobs):
    # The reset of the colour stands before the command's own first line.
    notice = r"printf '\033[31mNotice\nMaintenance\n| down | 12 hours |\n99\n\033[0m'"
    body = '{0}\n/usr/bin/{1} "$@"\ncode=$?\n{0}\nexit "$code"'
    hpcbert = wrap(hpcbert, **{name: body.format(notice, name) for name in PROGRAMS})
    choices = hpcbert("init", "--output", "new.toml", "--json", status=0).data["choices"]
    values = {choice["key"]: choice["value"] for choice in choices}
    assert (values["slurm.partition"], values["slurm.mpi"]) == ("gpu", "pmix")
    shape = ("--nodes", "2", "--gpus-per-node", "2", "--rehearse")
    data = hpcbert(*SUBMIT, *shape, status=0).data
    assert new_jobs() == {array["job_id"] for array in data["arrays"]}
    ends = {
        event["repeat"]: (event["state"], len(event["nodes"]))
        for event in hpcbert("monitor", data["directory"], "--json", status=0).events
        if event["event"] == "state"
    }
    assert ends == {1: ("COMPLETED", 2), 2: ("COMPLETED", 2)}
    for file in Path(data["directory"], "env").glob("*.nodes.jsonl"):
        (equal_nodes,) = parse(file.read_bytes())
        assert len(equal_nodes.nodes) == 2

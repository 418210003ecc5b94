"""What of a site's choices is not to be had: found, with what to type instead."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcbert.finding import Finding
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.examine import examine_site, forecast_start
from hpcbert.system import files
from hpcbert.system.runner import Outcome
from tests.kit import drafts
from tests.kit.cases import cases

ME = files.user_name(os.geteuid())
SINFO = "gpu*|up|3|1:00:00|1-infinite|gpu:v100:8|n[1-3]\ngpu*|up|1|1:00:00|1-infinite|gpu:v100:4|n4\nlow|up|4|infinite|1-2|gpu:v100:8|m[1-4]\n"
STATES = "n1|gpu*|idle\nn2|gpu*|mixed\nn3|gpu*|drained\nn4|gpu*|down*\n"
FEATURES = "gpu*|volta,ib|3\ngpu*|volta|1\nlow|(null)|4\n"
ASSOC = f"proj|{ME}|||normal,high|normal|||\nother|{ME}|||normal||||\n"
CONFIG = "ClusterName = c\nAccountingStorageEnforce = associations,limits,qos\nSLURM_VERSION = 22.05.8\nMaxArraySize = 1001\n"
PARTITIONS = "PartitionName=gpu AllowAccounts=ALL AllowQos=ALL Default=YES MaxTime=01:00:00 Nodes=n[1-4] State=UP TotalNodes=4\n"


def findings(folder: Path, site: str, nodes: int = 2, **texts: Any) -> dict[str, Finding]:
    """Return what is bad at a site, by the check's name."""
    return {finding.name: finding for finding in list_problems(folder, site, nodes, **texts)}


def list_problems(folder: Path, site: str, nodes: int = 2, **texts: Any) -> list[Finding]:
    """Return what is bad at a site; `texts` is what commands print instead."""

    def run(argv: Sequence[str], **_: Any) -> Outcome:
        words = " ".join(argv)
        table = {
            "--test-only": texts["refuse"](words) if "refuse" in texts else "",
            "%P|%f|%D": FEATURES,
            "%N|%P|%T": texts.get("states", STATES),
            "sinfo": SINFO,
            "show partition": PARTITIONS,
            "show config": texts.get("config", CONFIG),
            f"show assoc user={ME}": ASSOC,
            "show user": f"{ME}|proj\n",
            "show qos": "normal|||||||\nhigh|||||||\n",
            "--mpi=list": texts.get("mpi", "MPI plugin types are...\n\tnone\n\tpmi2\n"),
            "srun --help": "Usage\n",
        }
        text = next((answer for key, answer in table.items() if key in words), "")
        if text.startswith("error"):
            return Outcome(tuple(argv), 1, "", text)
        return Outcome(tuple(argv), 0, text)

    start = 'schema = 1\nname = "x"\nscheduler = "slurm"\nruns = "/shared/runs"\n'
    results = examine_site(
        drafts.site(folder, site, start=start), SchedulerContext(run, environ={}), nodes
    )
    return [finding for finding in results if finding.status != "ok"]


@cases
def test_a_choice_that_can_not_be_had_is_found_with_what_to_type(
    tmp_path: Path, slurm: str, name: str, detail: str, remedy: str
) -> None:
    chosen = "" if slurm.startswith("gres") else 'gres = "gpu:v100"\n'
    problems = findings(tmp_path, f"[slurm]\n{chosen}{slurm}\n")
    assert detail in problems[name].detail
    assert problems[name].remedy == remedy
    assert set(problems) <= {name, "sbatch --test-only"}


def test_more_nodes_than_work_are_told_with_those_that_are_away(tmp_path: Path) -> None:
    problems = findings(tmp_path, '[slurm]\ngres = "gpu:v100"\n', nodes=3)
    away = problems["nodes of the partition"]
    assert away.detail == (
        "2 of 3 nodes with such GPUs run jobs; away: n3 (drained); you asked for 3."
    )
    assert (away.nodes, away.remedy) == (("n3",), "--nodes 2")


def test_more_gpus_than_a_node_has_are_told_with_what_it_has(tmp_path: Path) -> None:
    text = '[slurm]\ngres = "gpu:v100"\n[nodes]\ngpus_per_node = 16\n'
    assert findings(tmp_path, text)["GPUs"].remedy == "--gpus-per-node 8"


def test_what_sbatch_itself_says_is_told_and_a_demand_answered(tmp_path: Path) -> None:
    text = '[slurm]\ngres = "gpu:v100"\n'
    demand = "error: submit with --export=NONE\nerror: allocation failure: Unspecified error"

    def refuse(words: str) -> str:
        return "" if "--export=NONE" in words else demand

    finding = findings(tmp_path, text, refuse=refuse)["sbatch --test-only"]
    assert "submit with --export=NONE; error: allocation failure" in finding.detail
    assert finding.remedy == 'site.toml: slurm.sbatch_args = ["--export=NONE"]'
    problems = findings(
        tmp_path, f"{text}sbatch_args = ['--export=NONE']\n", refuse=lambda _: demand
    )
    assert problems["sbatch --test-only"].remedy == ""


NO_GRES = "error: cli_filter/lua: --gres is not supported here"


@cases
def test_the_form_that_sbatch_accepts_is_the_remedy(
    tmp_path: Path, accepted: str, settings: list[str]
) -> None:
    def refuse(words: str) -> str:
        return "" if all(word in words for word in accepted.split()) else NO_GRES

    remedies = [f"site.toml: {setting}" if setting else "" for setting in settings]
    problems = list_problems(tmp_path, '[slurm]\ngres = "gpu:v100"\n', refuse=refuse)
    trials = [finding for finding in problems if finding.name == "sbatch --test-only"]
    assert [finding.remedy for finding in trials] == remedies
    assert all(setting in trials[0].hint for setting in settings)


def test_arrays_that_are_too_short_are_told(tmp_path: Path) -> None:
    config = CONFIG.replace("1001", "3")
    problems = findings(tmp_path, '[slurm]\ngres = "gpu:v100"\n', config=config)
    assert "2 jobs" in problems["arrays"].detail


UNAVAILABLE = "allocation failure: Requested node configuration is not available"


@cases
def test_a_refusal_for_nodes_that_come_back_names_them(words: str, absence: str) -> None:
    def run(argv: Sequence[str], **_: Any) -> Outcome:
        if argv[0] == "sbatch":
            return Outcome(tuple(argv), 1, stderr=complaint)
        return Outcome(tuple(argv), 0, STATES if "%N|%P|%T" in " ".join(argv) else SINFO)

    script = "".join(f"#SBATCH {word}\n" for word in words.split())
    complaint = UNAVAILABLE
    start = forecast_start(script, SchedulerContext(run, environ={}))
    assert (start.absence, bool(start.refused)) == (absence, not absence)
    # No node would have so much memory when it came back.
    complaint = f"error: Memory specification can not be satisfied\n{UNAVAILABLE}"
    assert not forecast_start(script, SchedulerContext(run, environ={})).absence

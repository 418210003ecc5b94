"""What of a site's choices is not to be had: found, with what to type instead."""

import os
from functools import partial

from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.examine import examine_site, forecast_start
from hpcbert.system import files
from hpcbert.system.runner import Outcome
from tests.kit import drafts
from tests.kit.cases import cases, read_constant

SHOWN: dict[str, str] = read_constant(__file__, "SHOWN")
V100 = '[slurm]\ngres = "gpu:v100"\n'


def print_shown(argv, texts, **_):
    """Print what `SHOWN` or `texts` has for a part of a command; `refuse` says what sbatch says."""
    words = " ".join(argv)
    if "--test-only" in argv:
        complaint = texts["refuse"](words) if "refuse" in texts else ""
        return Outcome(tuple(argv), int(bool(complaint)), "", complaint)
    text = next((text for part, text in {**SHOWN, **texts}.items() if part in words), "")
    return Outcome(tuple(argv), 0, text.format(me=files.user_name(os.geteuid())))


def list_problems(folder, text, nodes=2, **texts):
    site = drafts.site(folder, text, start=f'{drafts.MINIMAL}runs = "/shared/runs"\n')
    context = SchedulerContext(partial(print_shown, texts=texts), environ={})
    return [finding for finding in examine_site(site, context, nodes) if finding.status != "ok"]


@cases
def test_a_choice_that_can_not_be_had_is_found_with_what_to_type(
    tmp_path, site, name, detail, remedy
):
    problems = {finding.name: finding for finding in list_problems(tmp_path, site)}
    assert detail in problems[name].detail
    assert problems[name].remedy == remedy
    assert set(problems) <= {name, "sbatch --test-only"}


def test_nodes_arrays_and_what_sbatch_itself_says_are_told(tmp_path):
    demand = "error: submit with --export=NONE\nerror: allocation failure: Unspecified error"

    def find(name, text=V100, **more):
        problems = list_problems(tmp_path, text, **more)
        return {finding.name: finding for finding in problems}[name]

    away = find("nodes of the partition", nodes=3)
    assert away.detail == (
        "2 of 3 nodes with such GPUs run jobs; away: n3 (drained); you asked for 3."
    )
    assert (away.nodes, away.remedy) == (("n3",), "--nodes 2")
    config = {"show config": SHOWN["show config"].replace("1001", "3")}
    assert "2 jobs" in find("arrays", **config).detail
    shown = SHOWN["show partition"].replace("State", "ReqResv=YES State")
    reserved = {"show partition": shown}
    assert "it is for reservations only" in find("partition", **reserved).detail
    assert list_problems(tmp_path, f'{V100}reservation = "mine"\n', **reserved) == []
    refused = find(
        "sbatch --test-only", refuse=lambda words: "" if "--export=NONE" in words else demand
    )
    assert "submit with --export=NONE; error: allocation failure" in refused.detail
    assert refused.remedy == 'site.toml: slurm.sbatch_args = ["--export=NONE"]'
    text = f"{V100}sbatch_args = ['--export=NONE']\n"
    assert find("sbatch --test-only", text, refuse=lambda _: demand).remedy == ""


@cases
def test_the_form_that_sbatch_accepts_is_the_remedy(tmp_path, accepted, settings: list[str]):
    def refuse(words):
        unsupported = "error: cli_filter/lua: --gres is not supported here"
        return "" if all(word in words for word in accepted.split()) else unsupported

    problems = list_problems(tmp_path, V100, refuse=refuse)
    trials = [finding for finding in problems if finding.name == "sbatch --test-only"]
    remedies = [f"site.toml: {setting}" if setting else "" for setting in settings]
    assert [finding.remedy for finding in trials] == remedies
    assert all(setting in trials[0].hint for setting in settings)


@cases
def test_a_refusal_for_nodes_that_come_back_names_them(words, absence):
    script = "".join(f"#SBATCH {word}\n" for word in words.split())

    def forecast(complaint):
        run = partial(print_shown, texts={"refuse": lambda _: complaint})
        return forecast_start(script, SchedulerContext(run, environ={}))

    unavailable = "allocation failure: Requested node configuration is not available"
    start = forecast(unavailable)
    assert (start.absence, bool(start.refused)) == (absence, not absence)
    # No node would have so much memory when it came back.
    memory = "error: Memory specification can not be satisfied"
    assert not forecast(f"{memory}\n{unavailable}").absence

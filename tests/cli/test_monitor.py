"""monitor and cancel, with a scripted Slurm on PATH, and what a submission shows that waits."""

import json
import os
import re
import signal
from dataclasses import replace

import pytest

from hpcbert.campaign.repeats import open_campaign
from hpcbert.cli.progress import Display, report_finished_points
from hpcbert.commands.monitor import Change, View
from tests.kit.campaigns import report_states
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run_here
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

CHANGES = ["1/2  RUNNING", "2/2  PENDING", "1/2  COMPLETED", "2/2  RUNNING", "2/2  FAILED"]


@pytest.fixture
def hpcbert(hpcbert):
    return replace(hpcbert, env={**os.environ, **hpcbert.env}, run=run_here)


@pytest.fixture
def story(slurm, watched):
    """Two repeats: one completes, one fails after a limit has held it back."""
    built = watched()
    ended = built.sacct(1, "COMPLETED")
    waits = built.squeue(2, "PENDING", reason="AssocGrpGRES")
    slurm.answers(
        sacct=[
            built.sacct(1, "RUNNING"),
            ended + built.sacct(2, "RUNNING"),
            ended + built.sacct(2, "FAILED", exit_code="3:0"),
        ],
        squeue=[built.squeue(1, "RUNNING") + waits],
    )
    return built


def test_piped_each_change_is_a_line_and_a_limit_has_its_remedy(hpcbert, slurm, story):
    result = hpcbert("monitor", story.campaign.id, status=0)
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert re.findall(r"\d/2  [A-Z_]+", "\n".join(lines[:5])) == CHANGES
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  ", lines[0])
    assert "limit on GPUs over all its jobs" in lines[1]
    assert "submit again with fewer --nodes or --gpus-per-node" in lines[1]
    assert "n[1-2]  (failed, exit status 3)  [sacct]" in lines[4]
    assert lines[5:] == [
        "1 completed, 1 failed",
        "bert-tiny_1n1g_fp32_b4: median - samples/s, 0/2 repeats",
        "FAILED: read its log with hpcbert logs and fix the cause, then run hpcbert retry",
        f"then: hpcbert collect '{story.directory}'",
    ]
    refused = hpcbert("monitor", "--interval", "0.1", "--json", status=2)
    assert "--interval" in refused.error["message"]
    assert "0.2 s" in refused.error["hint"]


def test_json_is_an_object_a_line_and_the_usual_document_last(hpcbert, slurm, story):
    story.reach(1, 60)
    once = hpcbert("monitor", "--once", "--json")
    assert [event["state"] for event in once.events] == ["RUNNING", "PENDING"]
    assert once.data["over"] is False
    assert len(slurm.calls("sacct")) == 1
    running, waiting = once.events
    assert set(running) == set(read_constant(__file__, "KEYS").split())
    assert (running["event"], running["job"], running["nodes"]) == ("state", "12_1", ["n1", "n2"])
    assert (running["iteration"], running["start"]) == (60, "2026-11-21T10:06:40Z")
    assert (running["elapsed"], running["time_limit"]) == (8.0, 3600.0)
    assert (waiting["reason"], waiting["start"]) == ("AssocGrpGRES", None)
    assert running["advice"] is waiting["iteration"] is None
    result = hpcbert("monitor", story.campaign.id, "--json", "--exit-status")
    *_, failed = result.events
    assert (failed["state"], failed["kind"]) == ("FAILED", "failed")
    assert (failed["exit_code"], failed["source"]) == (3, "sacct")
    assert "hpcbert logs" in failed["advice"]
    assert (result.returncode, result.error["code"]) == (4, "incomplete")


def test_equal_last_error_lines_are_one_line(hpcbert, slurm, watched):
    built, message = watched(repeats=5), "ModuleNotFoundError: No module named 'torch'"
    for repeat in range(1, 6):
        built.log("1n1g", repeat, f"Traceback (most recent call last):\n  File 'a'\n{message}\n")
    slurm.answers(sacct=["".join(built.sacct(n, "FAILED", exit_code="1:0") for n in range(1, 6))])
    events = hpcbert("monitor", "--json", built.campaign.id).events
    assert [event["failure"] for event in events] == [{"kind": "error", "said": message}] * 5
    lines = hpcbert("monitor", built.campaign.id).stdout.splitlines()
    assert all(f"({message})" in line for line in lines[:5])
    assert f"5 repeats: {message}" in lines[6:]
    collected = hpcbert("collect", built.campaign.id).stdout
    assert collected.count(f"error: {message}") == 1
    assert "1n1g, 5 repeats left out: state: it is FAILED" in collected


def test_the_newest_is_shown_where_none_lives_and_without_slurm_none(hpcbert, slurm, watched):
    watched("20261101T000000Z-pytorch-older1", job_id="5")
    newest = watched("20261102T000000Z-pytorch-newest", job_id="6")
    slurm.answers(sacct=[newest.sacct(1, "COMPLETED") + newest.sacct(2, "COMPLETED")])
    result = hpcbert("monitor", status=0)
    assert "2 completed" in result.stdout
    assert "older1" not in result.stdout
    assert len(slurm.calls("sacct")) == 1
    for words in ((), ("--once",)):
        result = hpcbert("monitor", newest.campaign.id, *words, status=3, PATH=str(hpcbert.cwd))
        assert "UNKNOWN" in result.stdout
        assert "Neither sacct nor squeue answers, and 2 repeats are open" in result.stderr
        assert "The jobs continue" in result.stderr


def test_who_waits_sees_changes_and_an_interrupt_leaves_the_jobs_alone(hpcbert, slurm, story):
    def interrupt(child, stream):
        """Interrupt a process when it has shown that a job runs; return what it then prints."""
        while "RUNNING" not in (line := stream.readline()):
            assert line
        child.send_signal(signal.SIGINT)
        return child.communicate(timeout=CEILING)

    submit = ("submit", "--resume", story.directory, "--wait")
    text = hpcbert(*submit, status=4).stderr
    assert re.findall(r"\d/2  [A-Z_]+", text) == CHANGES
    assert "median - samples/s, 0/2 repeats\n" in text
    runs = story.sacct(1, "COMPLETED") + story.sacct(2, "RUNNING")
    slurm.answers(sacct=[runs], squeue=[story.squeue(2, "RUNNING")])
    with hpcbert.start("monitor") as child:
        out, complaint = interrupt(child, child.stdout)
    assert (child.returncode, out) == (130, "")
    assert "The jobs continue." in complaint
    assert f"To cancel them: hpcbert cancel '{story.directory}'\n" in complaint
    with hpcbert.start("monitor", "--json") as child:
        out, complaint = interrupt(child, child.stdout)
    assert (child.returncode, complaint) == (130, "")
    assert json.loads(out)["errors"][0]["code"] == "interrupted"
    with hpcbert.start(*submit) as child:
        _, complaint = interrupt(child, child.stderr)
    assert child.returncode == 130
    assert "The jobs continue. To cancel them: hpcbert cancel" in complaint
    assert slurm.calls("scancel") == []


def test_a_reader_or_a_terminal_that_leaves_ends_it_quietly(hpcbert, slurm, story):
    with hpcbert.start("monitor") as child:
        assert child.stdout
        child.stdout.readline()
        child.stdout.close()
        child.stdout = None
        _, complaint = child.communicate(timeout=CEILING)
    assert (child.returncode, complaint) == (0, "")
    slurm.answers(sacct="", squeue=story.squeue(1, "PENDING") + story.squeue(2, "PENDING"))
    _, output = hpcbert.on_terminal("monitor", columns=80, last="bert-tiny")
    assert "bert-tiny" in output, "the terminal left without a signal, and the view ended"


@cases
def test_terminals_without_a_view_get_lines(hpcbert, slurm, story, words, options):
    _, output = hpcbert.on_terminal("monitor", *words, story.directory, **options)
    assert not re.search(r"\x1b\[[0-9;?]*[A-Za-ln-z]", output), "colours aside"
    plain = re.sub(r"\x1b\[[0-9;?]*m", "", output)
    assert plain.isascii() or "LC_ALL" not in options
    assert re.findall(r"\d/2  [A-Z_]+", plain) == CHANGES


def test_cancel_needs_a_yes(hpcbert, slurm, watched):
    built = watched()
    slurm.answers(squeue=[built.squeue(1, "RUNNING") + built.squeue(2, "PENDING")])
    assert "--yes" in hpcbert("cancel", "aaaaaa", status=2).stderr
    code, text = hpcbert.on_terminal("cancel", "aaaaaa", answer="n\n")
    assert (code, "Nothing was cancelled" in text) == (0, True)
    assert slurm.calls("scancel") == []
    data = hpcbert("cancel", "aaaaaa", "--yes", "--json", status=0).data
    assert (data["cancelled"], data["jobs"], len(data["repeats"])) == (True, ["12"], 2)
    (call,) = slurm.calls("scancel")
    assert call[1:] == ["12"]
    _, text = hpcbert.on_terminal("cancel", "aaaaaa", answer="y\n")
    assert "Cancelled 2 repeats" in text
    slurm.answers(squeue=[""])
    assert "waits or runs" in hpcbert("cancel", "aaaaaa", status=0).stdout
    assert len(slurm.calls("scancel")) == 2


def test_a_point_is_printed_when_it_is_over_with_its_efficiency_and_what_counts(build):
    built = build("1n1g", "1n2g", repeats=2).finish()
    built.log("1n2g", 2, built.text("1n2g", 18.0))
    watched = open_campaign(built.directory)
    last = watched.repeats[-1]
    for words, numbers in (
        ("COMPLETED", "19.00 samples/s, efficiency 90.5%, 2/2 repeats"),
        ("FAILED CANCELLED NODE_FAIL", "20.00 samples/s, efficiency 95.2%, 1/2 repeats"),
        ("RUNNING PENDING REQUEUED UNKNOWN", ""),
    ):
        for word in words.split():
            state = report_states(default=word)(watched)[last.key]
            states = {**report_states()(watched), last.key: state}
            lines = report_finished_points([Change(last, state, 0.0)], states)
            assert "".join(lines).partition("median ")[2] == numbers, word


def test_an_outage_of_slurm_is_printed_once(capsys):
    show = Display().watching().view
    for trouble in ("down", "", "down", "down", "down", "", "gone", "gone"):
        show(View((), {}, 0.0, trouble))
    lines = ["Slurm does not answer: down", "Slurm does not answer: gone"]
    assert capsys.readouterr().err.splitlines() == lines

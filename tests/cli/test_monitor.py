"""monitor, cancel and logs as programs, with a scripted Slurm on PATH."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.campaigns import Build, Built
from tests.kit.cases import cases
from tests.kit.cli import Cli, run_here
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow


@pytest.fixture
def hpcbert(hpcbert: Cli) -> Cli:
    return replace(hpcbert, env={**os.environ, **hpcbert.env}, run=run_here)


@pytest.fixture
def story(slurm: Any, watched: Build) -> Built:
    """Two repeats: one completes, one fails."""
    built = watched()
    slurm.answers(
        sacct=[
            built.sacct(1, "RUNNING"),
            built.sacct(1, "COMPLETED") + built.sacct(2, "RUNNING"),
            built.sacct(1, "COMPLETED") + built.sacct(2, "FAILED", exit_code="3:0"),
        ],
        squeue=[
            built.squeue(1, "RUNNING") + built.squeue(2, "PENDING", reason="JobArrayTaskLimit")
        ],
    )
    return built


@cases
@pytest.mark.parametrize("words", [("--once",), ()], ids=["once", "until-it-ends"])
def test_a_limit_that_holds_a_job_back_is_shown_with_its_remedy(
    hpcbert: Any, slurm: Any, watched: Build, reason: str, remedy: str, *, words: tuple[str, ...]
) -> None:
    built = watched(repeats=1)
    ended = built.sacct(1, "CANCELLED by 0")
    slurm.answers(
        sacct=[built.sacct(1, "PENDING"), ended, ended],
        squeue=[built.squeue(1, "PENDING", reason=reason), "", ""],
    )
    lines = hpcbert("monitor", built.campaign.id, *words).stdout.splitlines()
    assert "PENDING" in lines[0]
    assert remedy in lines[0]


def test_piped_each_change_is_a_line(hpcbert: Any, story: Built) -> None:
    result = hpcbert("monitor", story.campaign.id)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    matches = [re.search(r"(\d)/2  ([A-Z_]+)", line) for line in lines[:5]]
    assert [match and match.groups() for match in matches] == [
        ("1", "RUNNING"),
        ("2", "PENDING"),
        ("1", "COMPLETED"),
        ("2", "RUNNING"),
        ("2", "FAILED"),
    ]
    assert "(repeats of a point run one after another)" in lines[1]
    assert "n[1-2]  (failed, exit status 3)  [sacct]" in lines[4]
    assert lines[5:] == [
        "1 completed, 1 failed",
        "bert-tiny_1n1g_fp32_b4: median - samples/s, 0/2 repeats",
        ("FAILED: read its log with hpcbert logs and fix the cause, then run hpcbert retry"),
        f"then: hpcbert collect '{story.directory}'",
    ]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  ", lines[0])


def test_json_is_an_object_a_line_and_the_usual_document_last(hpcbert: Any, story: Built) -> None:
    story.reach(1, 60)
    result = hpcbert("monitor", story.campaign.id, "--json", "--exit-status")
    assert result.returncode == 4
    *events, document = map(json.loads, result.stdout.splitlines())
    assert [(event["repeat"], event["state"], event["kind"]) for event in events] == [
        (1, "RUNNING", "running"),
        (2, "PENDING", "waiting"),
        (1, "COMPLETED", "succeeded"),
        (2, "RUNNING", "running"),
        (2, "FAILED", "failed"),
    ]
    running, waiting, *_, failed = events
    assert set(running) == {
        *("version", "event", "time", "campaign", "point", "repeat", "attempt", "job", "state"),
        *("kind", "source", "reason", "detail", "advice", "nodes", "exit_code", "step_exit_code"),
        *("start", "end", "elapsed", "time_limit", "iteration", "throughput", "expected_end"),
        *("attempts", "failure"),
    }
    assert running["event"] == "state"
    assert running["job"] == "12_1"
    assert running["nodes"] == ["n1", "n2"]
    assert running["iteration"] == 60
    assert running["start"] == "2026-11-21T10:06:40Z"
    assert (running["elapsed"], running["time_limit"]) == (8.0, 3600.0)
    assert (waiting["reason"], waiting["start"], waiting["iteration"]) == (
        *("JobArrayTaskLimit", None, None),
    )
    assert (failed["exit_code"], failed["source"]) == (3, "sacct")
    assert "hpcbert logs" in failed["advice"]
    assert waiting["advice"] is None
    assert document["command"] == "monitor"
    assert document["exit_code"] == 4
    assert document["data"]["repeats"] == {"asked": 2, "succeeded": 1, "failed": 1}
    assert document["data"]["over"] is True
    assert document["errors"][0]["code"] == "incomplete"


def test_equal_last_error_lines_are_one_line(hpcbert: Any, slurm: Any, watched: Build) -> None:
    built = watched(repeats=5)
    shape = str(built.campaign.arrays[0].point.shape)
    message = "ModuleNotFoundError: No module named 'torch'"
    for repeat in range(1, 6):
        built.log(shape, repeat, f"Traceback (most recent call last):\n  File 'a'\n{message}\n")
    slurm.answers(sacct=["".join(built.sacct(n, "FAILED", exit_code="1:0") for n in range(1, 6))])
    events = hpcbert("monitor", "--json", built.campaign.id).stdout.splitlines()
    assert [json.loads(event)["failure"] for event in events[:5]] == [
        {"kind": "error", "said": message}
    ] * 5
    lines = hpcbert("monitor", built.campaign.id).stdout.splitlines()
    assert all(f"({message})" in line for line in lines[:5])
    assert f"5 repeats: {message}" in lines[6:]
    collected = hpcbert("collect", built.campaign.id).stdout
    assert collected.count(f"error: {message}") == 1
    assert "✗ 5 repeats: state: it is FAILED" in collected


def test_once_tells_every_repeat_and_leaves(hpcbert: Any, slurm: Any, story: Built) -> None:
    result = hpcbert("monitor", "--once", "--json")
    *events, document = map(json.loads, result.stdout.splitlines())
    assert [event["state"] for event in events] == ["RUNNING", "PENDING"]
    assert document["data"]["over"] is False
    assert len(slurm.calls("sacct")) == 1


def test_without_a_name_it_follows_what_lives_and_else_looks_at_the_newest(
    hpcbert: Any, slurm: Any, watched: Build
) -> None:
    watched("20261101T000000Z-pytorch-older1", job_id="5")
    newest = watched("20261102T000000Z-pytorch-newest", job_id="6")
    slurm.answers(sacct=[newest.sacct(1, "COMPLETED") + newest.sacct(2, "COMPLETED")])
    result = hpcbert("monitor")
    assert result.returncode == 0
    assert "2 completed" in result.stdout
    assert "older1" not in result.stdout
    assert len(slurm.calls("sacct")) == 1


def test_the_interval_has_the_sites_floor(hpcbert: Any, story: Built) -> None:
    result = hpcbert("monitor", "--interval", "0.1", "--json")
    assert result.returncode == 2
    (error,) = json.loads(result.stdout)["errors"]
    assert "--interval" in error["message"]
    assert "0.2 s" in error["hint"]


def test_without_slurm_it_says_so_and_leaves_with_3(hpcbert: Any, watched: Build) -> None:
    watched()
    empty = {"PATH": str(hpcbert.cwd)}
    for words in (["monitor"], ["monitor", "--once"]):
        result = hpcbert(*words, **empty)
        assert result.returncode == 3
        assert "Neither sacct nor squeue answers, and 2 repeats are open" in result.stderr
        assert "The jobs continue" in result.stderr
        assert "UNKNOWN" in result.stdout


def read_until(stream: Any, words: str) -> str:
    text = ""
    while words not in text:
        line = stream.readline()
        assert line, text
        text += line
    return text


def test_an_interrupt_leaves_the_jobs_alone_and_says_how_to_cancel_them(
    hpcbert: Any, slurm: Any, watched: Build
) -> None:
    built = watched(repeats=1)
    slurm.answers(sacct=[built.sacct(1, "RUNNING")], squeue=[built.squeue(1, "RUNNING")])
    with hpcbert.start("monitor") as child:
        read_until(child.stdout, "RUNNING")
        child.send_signal(signal.SIGINT)
        out, complaint = child.communicate(timeout=CEILING)
    assert child.returncode == 130
    assert out == ""
    assert "The jobs continue." in complaint
    command = complaint.partition("To cancel them: ")[2].strip()
    assert command == f"hpcbert cancel '{built.directory}'"
    assert slurm.calls("scancel") == []
    with hpcbert.start("monitor", "--json") as child:
        read_until(child.stdout, "RUNNING")
        child.send_signal(signal.SIGINT)
        out, complaint = child.communicate(timeout=CEILING)
    assert child.returncode == 130
    assert json.loads(out)["errors"][0]["code"] == "interrupted"
    assert complaint == ""


def follow(bench: Any, directory: Path) -> subprocess.Popen[str]:
    code = (
        "import sys; from pathlib import Path\n"
        "from hpcbert.cli.progress import follow_campaign; from hpcbert.config.site import load\n"
        "from hpcbert.campaign.suspects import RetryPolicy\n"
        "follow_campaign(Path(sys.argv[1]), RetryPolicy(0), load())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(directory)],
        cwd=bench.cwd, env=bench.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_submission_that_waits_shows_changes_on_stderr(
    hpcbert: Any, slurm: Any, story: Built
) -> None:
    with follow(hpcbert, story.directory) as child:
        out, lines = child.communicate(timeout=CEILING)
    assert (child.returncode, out) == (0, "")
    *changes, numbers = lines.splitlines()
    assert [line.split()[4] for line in changes] == [
        *("RUNNING", "PENDING", "COMPLETED", "RUNNING", "FAILED")
    ]
    assert numbers.endswith("median - samples/s, 0/2 repeats")


def test_a_submission_that_waits_says_on_an_interrupt_what_goes_on(
    hpcbert: Any, slurm: Any, watched: Build
) -> None:
    built = watched(repeats=1)
    slurm.answers(sacct=[built.sacct(1, "RUNNING")], squeue=[built.squeue(1, "RUNNING")])
    with follow(hpcbert, built.directory) as child:
        read_until(child.stderr, "RUNNING")
        child.send_signal(signal.SIGINT)
        _, complaint = child.communicate(timeout=CEILING)
    assert child.returncode != 0
    assert "The jobs continue. To cancel them: hpcbert cancel" in complaint
    assert slurm.calls("scancel") == []


def test_a_reader_that_leaves_ends_it_quietly(hpcbert: Any, slurm: Any, watched: Build) -> None:
    built = watched()
    slurm.answers(
        sacct=[
            built.sacct(1, "RUNNING"),
            built.sacct(1, "COMPLETED"),
            built.sacct(1, "COMPLETED") + built.sacct(2, "COMPLETED"),
        ],
        squeue=[built.squeue(1, "RUNNING") + built.squeue(2, "PENDING")],
    )
    with hpcbert.start("monitor") as child:
        read_until(child.stdout, "RUNNING")
        child.stdout.close()
        child.stdout = None
        _, complaint = child.communicate(timeout=CEILING)
    assert (child.returncode, complaint) == (0, "")


def test_a_local_campaign_is_watched_without_slurm(
    hpcbert: Any, slurm: Any, watched: Build
) -> None:
    built = watched(job_id="local-1-1", scheduler="local", repeats=1)
    array = built.campaign.arrays[0]
    (built.directory / array.status(1)).write_text(
        '{"event":"start","time":1,"attempt":0,"nodelist":"here"}\n'
        '{"event":"finished","time":61,"attempt":0,"state":"TIMEOUT","exit":143}\n'
    )
    result = hpcbert("monitor", "--json", "--exit-status", built.campaign.id)
    event, document = map(json.loads, result.stdout.splitlines())
    assert result.returncode == document["exit_code"] == 4
    assert (event["state"], event["source"], event["exit_code"], event["elapsed"]) == (
        *("TIMEOUT", "status-file", 143, 60),
    )
    assert slurm.calls("sacct") == slurm.calls("squeue") == []


def test_cancel_needs_a_yes(hpcbert: Any, slurm: Any, watched: Build) -> None:
    built = watched()
    slurm.answers(squeue=[built.squeue(1, "RUNNING") + built.squeue(2, "PENDING")])
    refused = hpcbert("cancel", "aaaaaa")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert slurm.calls("scancel") == []
    code, text = hpcbert.on_terminal("cancel", "aaaaaa", answer="n\n")
    assert (code, "Nothing was cancelled" in text) == (0, True)
    assert slurm.calls("scancel") == []
    result = hpcbert("cancel", "aaaaaa", "--yes", "--json")
    assert result.returncode == 0
    data = json.loads(result.stdout)["data"]
    assert (data["cancelled"], data["jobs"], len(data["repeats"])) == (True, ["12"], 2)
    (call,) = slurm.calls("scancel")
    assert call[1:] == ["12"]
    code, text = hpcbert.on_terminal("cancel", "aaaaaa", answer="y\n")
    assert "Cancelled 2 repeats" in text
    assert len(slurm.calls("scancel")) == 2
    slurm.answers(squeue=[""])
    over = hpcbert("cancel", "aaaaaa")
    assert (over.returncode, "waits or runs" in over.stdout) == (0, True)
    assert len(slurm.calls("scancel")) == 2


def test_logs_prints_the_bytes_of_the_log(hpcbert: Any, watched: Build) -> None:
    built = watched()
    first, second = built.reach(1, 30), built.reach(2, 40)
    now = time.time()
    os.utime(first, (now, now))
    os.utime(second, (now - 60, now - 60))
    assert hpcbert("logs", "--path").stdout == f"{first}\n", "the one written to last"
    assert hpcbert("logs", "aaaaaa").stdout == first.read_text()
    assert hpcbert("logs", "--repeat", "2").stdout == second.read_text()
    tail = hpcbert("logs", "--repeat", "2", "--tail", "3").stdout
    assert tail.splitlines() == second.read_text().splitlines()[-3:]
    assert hpcbert("logs", "--tail", "0").stdout == ""
    document = json.loads(hpcbert("logs", "--repeat", "2", "--tail", "1", "--json").stdout)
    assert document["data"]["path"] == str(second)
    assert document["data"]["bytes"] == second.stat().st_size
    assert len(document["data"]["lines"]) == 1


def test_logs_prefers_the_newest_attempt_and_falls_back_to_the_script(
    hpcbert: Any, watched: Build
) -> None:
    built = watched()
    empty = hpcbert("logs")
    assert empty.returncode == 4
    assert "no log yet" in empty.stderr
    (built.directory / "slurm" / "12_2.out").write_text("from the script\n")
    script = hpcbert("logs", "--repeat", "2")
    assert script.stdout == "from the script\n"
    assert "no log yet" in script.stderr
    built.reach(1, 5)
    again = built.reach(1, 6, attempt=1)
    (built.directory / built.campaign.arrays[0].status(1)).write_text(
        '{"event":"start","time":1,"attempt":0}\n{"event":"start","time":2,"attempt":1}\n'
    )
    assert hpcbert("logs", "--repeat", "1", "--path").stdout == f"{again}\n"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--point", "bert-tiny_1n1g_fp32_b5"], "Did you mean bert-tiny_1n1g_fp32_b4?"),
        (["--repeat", "9"], "Repeats are numbered from 1 to 2."),
        (["nosuch"], "There is no campaign"),
    ],
)
def test_logs_of_what_is_not_there_are_refused(
    hpcbert: Any, watched: Build, words: list[str], part: str
) -> None:
    watched()
    result = hpcbert("logs", *words)
    assert result.returncode == 2
    assert part in result.stderr


def test_a_log_can_not_steer_a_terminal_and_a_pipe_is_no_log(hpcbert: Any, watched: Build) -> None:
    built = watched()
    path = built.reach(1, 1)
    path.write_bytes("\x1b[2Jé\x07\n".encode() * 3)
    _, text = hpcbert.on_terminal("logs", "--repeat", "1")
    assert "é" in text
    assert not {"\x1b", "\x07"} & set(text)
    path.unlink()
    os.mkfifo(path)
    assert hpcbert("logs", "--repeat", "1").returncode == 4

"""What steers a terminal never reaches one, wherever it comes from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from hpcbert.cli.main import exit_on_error
from hpcbert.cli.output import escape_json, replace_controls
from tests.kit.campaigns import node, write_nodes
from tests.kit.cases import read_constant
from tests.kit.cli import Cli
from tests.kit.slurm import Answer, failed

# Clear the screen, set the title, the same with a C1 code, back up, delete, right to left.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b2J\x08\x7f\u202e"
FORBIDDEN = ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\x08", "\x7f", "\u202e")


def show(words: list[str], *, cwd: Path, env: dict[str, str]) -> str:
    """Return all that hpcbert sends to a terminal of its own, which is clean."""
    shown = Cli(cwd, env).on_terminal(*words, PYTHONUTF8="1")[1]
    clean(shown)
    return shown


def clean(shown: str) -> None:
    assert shown.strip()
    assert "Traceback" not in shown
    assert [character for character in FORBIDDEN if character in shown] == []


@pytest.fixture
def hostile(build: Any) -> Any:
    """A campaign of the local scheduler in which everything that can be is hostile."""
    built = build("1n1g", "2n2g", repeats=2, scheduler="local")
    for repeat in (1, 2):
        built.complete("1n1g", repeat, 10.0)
        built.complete("2n2g", repeat, 38.0)
    write_nodes(built.directory, built.array("1n1g"), 1, node("n1", host__kernel=HOSTILE))
    write_nodes(built.directory, built.array("1n1g"), 2, node("n1"))
    built.log("2n2g", 1, HOSTILE + built.text("2n2g", 38.0, last=3) + HOSTILE)
    finished = {"event": "finished", "state": "FAILED", "exit": 1, "reason": HOSTILE}
    built.mark("2n2g", 2, {"event": "start", "nodelist": HOSTILE, "host": HOSTILE}, finished)
    arrays = [
        replace(
            array,
            error=HOSTILE,
            point=replace(array.point, model=f"m{HOSTILE}", options=(("o", HOSTILE),)),
        )
        for array in built.campaign.arrays
    ]
    for array, old in zip(arrays, built.campaign.arrays, strict=True):
        for repeat in (1, 2):
            path = built.directory / old.status(repeat)
            path.rename(built.directory / array.status(repeat))
    return built.change(
        arrays=tuple(arrays), user=HOSTILE, site=HOSTILE, image=HOSTILE, command=(HOSTILE,)
    )


COMMANDS = read_constant(__file__, "COMMANDS")


def test_clicks_own_errors_do_not_let_it_through(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        exit_on_error(click.UsageError(f"No such option: --{HOSTILE}"))
    err = capsys.readouterr().err
    assert "No such option: --" in err
    clean(err)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_lets_it_through(hostile: Any, tmp_path: Path, name: str) -> None:
    words = [word.replace("{}", str(hostile.directory)) for word in COMMANDS[name]]
    runs = {"HPCBERT_RUNS": str(tmp_path / "runs")}
    show(words, cwd=tmp_path, env=runs)


def test_audit_lets_nothing_through(hostile: Any, tmp_path: Path) -> None:
    for array in hostile.campaign.arrays:
        for repeat in (1, 2):
            finished = {"event": "finished", "state": "COMPLETED", "exit": 0}
            path = hostile.directory / array.status(repeat)
            with path.open("a") as file:
                file.write(json.dumps({"time": 1, "attempt": 0, **finished}) + "\n")
    environment = {"HPCBERT_RUNS": str(tmp_path / "runs")}
    words = [str(hostile.directory)]
    show(["collect", *words], cwd=tmp_path, env=environment)
    (hostile.directory / "logs" / f"{HOSTILE}.log").write_text("")
    shown = show(["audit", *words], cwd=tmp_path, env=environment)
    assert "it did not exist before" in shown


@pytest.mark.parametrize("text", [f"x = {HOSTILE}", f'schema = 1\nname = "{HOSTILE}"', "[a]\n" * 2])
@pytest.mark.parametrize("command", ["config", "doctor"])
def test_a_hostile_site_is_named_safely(tmp_path: Path, command: str, text: str) -> None:
    (tmp_path / "site.toml").write_text(text)
    show([command, "--site", "site.toml"], cwd=tmp_path, env={})


def test_what_slurm_says_is_shown_safely(hpcbert: Any, slurm: Any, watched: Any) -> None:
    tracked = watched()
    rows = tracked.sacct(1, f"FAILED {HOSTILE}") + tracked.sacct(2, HOSTILE)
    waits = tracked.squeue(1, "PENDING", reason=HOSTILE)
    garbage = f"{HOSTILE}|x\n"
    answers = [
        {"sacct": [rows + garbage], "squeue": [waits + garbage]},
        {"sacct": [Answer(HOSTILE, 1, HOSTILE)], "squeue": [Answer(HOSTILE, 1, HOSTILE)]},
        {"sacct": [rows.replace("n[1-2]", HOSTILE)], "squeue": [""]},
    ]
    for answer in answers:
        slurm.answers(**answer)
        for words in (["monitor", "--once"], ["collect"]):
            place = str(tracked.directory)
            show([*words, place], cwd=hpcbert.cwd, env=hpcbert.environment)


def test_a_refusal_of_sbatch_is_shown_safely(hpcbert: Any, slurm: Any) -> None:
    slurm.answers(sbatch=[failed(f"sbatch: error: refused {HOSTILE}")], squeue=[""], sacct=[""])
    words = ["submit", "--nodes", "1", "--gpus-per-node", "1", "--fw", "pytorch"]
    assert "refused" in show(words, cwd=hpcbert.cwd, env=hpcbert.environment)


def test_json_holds_what_was_escaped() -> None:
    data = {"a": HOSTILE, "b": "é😀\u2028"}
    document = escape_json(json.dumps(data, ensure_ascii=False))
    assert json.loads(document) == data
    assert replace_controls(document) == document
    assert "é😀" in document

"""What steers a terminal never reaches one, wherever it comes from."""

import json
from dataclasses import replace

import click
import pytest

from hpcbert.cli.main import exit_on_error
from hpcbert.cli.output import escape_json, replace_controls
from tests.kit.campaigns import node, status_file, write_nodes
from tests.kit.cases import read_constant
from tests.kit.cli import Cli
from tests.kit.slurm import Answer, failed

# Clear the screen, set the title, the same with a C1 code, back up, delete, right to left.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b2J\x08\x7f\u202e"
FORBIDDEN = ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\x08", "\x7f", "\u202e")


def show(hpcbert, *words):
    """Return all that hpcbert sends to a terminal of its own, which is clean."""
    shown = hpcbert.on_terminal(*words, PYTHONUTF8="1")[1]
    check_clean(shown)
    return shown


def check_clean(shown):
    assert shown.strip()
    assert "Traceback" not in shown
    assert [character for character in FORBIDDEN if character in shown] == []


def test_no_command_lets_it_through(build, tmp_path):
    """Everything that can be is hostile in a campaign of the local scheduler."""
    terminal = Cli(tmp_path, {"HPCBERT_RUNS": str(tmp_path / "runs")})
    built = build("1n1g", "2n2g", repeats=2, scheduler="local").finish()
    write_nodes(built.directory, built.array("1n1g"), 1, node("n1", host__kernel=HOSTILE))
    write_nodes(built.directory, built.array("1n1g"), 2, node("n1"))
    built.log("2n2g", 1, HOSTILE + built.text("2n2g", 38.0, last=3) + HOSTILE)
    finished = {"event": "finished", "state": "FAILED", "exit": 1, "reason": HOSTILE}
    built.mark("2n2g", 2, {"event": "start", "nodelist": HOSTILE, "host": HOSTILE}, finished)
    arrays = []
    for array in built.campaign.arrays:
        point = replace(array.point, model=f"m{HOSTILE}", options=(("o", HOSTILE),))
        arrays.append(replace(array, error=HOSTILE, point=point))
        for repeat in (1, 2):
            path = built.directory / array.status(repeat)
            path.rename(built.directory / arrays[-1].status(repeat))
    texts = {"user": HOSTILE, "site": HOSTILE, "image": HOSTILE, "command": (HOSTILE,)}
    built = built.change(arrays=tuple(arrays), **texts)
    for words in read_constant(__file__, "COMMANDS"):
        show(terminal, *(word.replace("{}", str(built.directory)) for word in words))
    # What was collected is audited.
    for array in built.campaign.arrays:
        for repeat in (1, 2):
            finished = {"event": "finished", "state": "COMPLETED", "exit": 0}
            status_file(built.directory / array.status(repeat), finished, time=1)
    show(terminal, "collect", built.directory)
    (built.directory / "logs" / f"{HOSTILE}.log").write_text("")
    assert "it did not exist before" in show(terminal, "audit", built.directory)
    # A hostile site is named safely.
    for text in (f"x = {HOSTILE}", f'schema = 1\nname = "{HOSTILE}"', "[a]\n" * 2):
        (tmp_path / "site.toml").write_text(text)
        for command in ("config", "doctor"):
            show(terminal, command, "--site", "site.toml")


def test_what_slurm_says_is_shown_safely(hpcbert, slurm, watched):
    tracked = watched()
    rows = tracked.sacct(1, f"FAILED {HOSTILE}") + tracked.sacct(2, HOSTILE)
    waits = tracked.squeue(1, "PENDING", reason=HOSTILE)
    garbage = f"{HOSTILE}|x\n"
    for answer in (
        {"sacct": [rows + garbage], "squeue": [waits + garbage]},
        {"sacct": [Answer(HOSTILE, 1, HOSTILE)], "squeue": [Answer(HOSTILE, 1, HOSTILE)]},
        {"sacct": [rows.replace("n[1-2]", HOSTILE)], "squeue": [""]},
    ):
        slurm.answers(**answer)
        for words in (["monitor", "--once"], ["collect"]):
            show(hpcbert, *words, tracked.directory)
    slurm.answers(sbatch=[failed(f"sbatch: error: refused {HOSTILE}")], squeue=[""], sacct=[""])
    words = ["submit", "--nodes", "1", "--gpus-per-node", "1", "--fw", "pytorch"]
    assert "refused" in show(hpcbert, *words)


def test_clicks_own_errors_and_json_are_escaped(capsys):
    with pytest.raises(SystemExit, match="2"):
        exit_on_error(click.UsageError(f"No such option: --{HOSTILE}"))
    err = capsys.readouterr().err
    assert "No such option: --" in err
    check_clean(err)
    data = {"a": HOSTILE, "b": "é😀\u2028"}
    document = escape_json(json.dumps(data, ensure_ascii=False))
    assert json.loads(document) == data
    assert replace_controls(document) == document
    assert "é😀" in document

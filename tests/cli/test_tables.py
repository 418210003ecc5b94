"""Tables on terminals that are narrower or lower than they are; pipes and files get all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_monitor_terminal import _CODE as CODE
from tests.kit.cli import Cli

pytestmark = pytest.mark.slow

FULL = r"nodes +GPUs +median samples/s +min \.\. max +cv +speedup +efficiency +repeats +flags"


@pytest.fixture
def terminal(tmp_path: Path) -> Callable[..., list[str]]:
    """Returns the lines that a command prints on a terminal, without colours."""
    cli = Cli(tmp_path, {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})

    def read_lines(*words: str, **options: Any) -> list[str]:
        return CODE.sub("", cli.on_terminal(*words, **{"columns": 80, **options})[1]).splitlines()

    return read_lines


def table(lines: list[str]) -> list[str]:
    """Return the lines of a table, below its title."""
    start = next(number for number, line in enumerate(lines) if line.startswith("rule "))
    end = next(number for number, line in enumerate(lines) if line.startswith("hpcbert "))
    return lines[start:end]


@pytest.mark.parametrize(
    "options",
    [{"columns": 60}, {"columns": 40}, {"columns": 80}, {"columns": 200, "COLUMNS": "60"}],
    ids=["60", "40", "80", "COLUMNS"],
)
def test_a_narrow_terminal_gets_a_folded_table(
    options: dict[str, Any], finished: Path, terminal: Any
) -> None:
    lines = table(terminal("collect", str(finished), LC_ALL="C.UTF-8", **options))
    assert max(map(len, lines)) <= int(options.get("COLUMNS", options["columns"]))
    content = " ".join(lines)
    for text in ("median samples/s", "5/5", "min .. max 10.00 .. 14.00", "efficiency 100.0%"):
        assert text in re.sub(" +", " ", content)
    # What is in columns stays below its title.
    head = next(line for line in lines if line.startswith("nodes"))
    row = lines[lines.index(head) + 1]
    assert row[: head.index("samples/s") + 9].split() == ["1", "1", "12.00"]


def test_pipes_and_files_get_the_columns_at_any_width(
    finished: Path, run_commands: Callable[..., list[Any]], terminal: Any, tmp_path: Path
) -> None:
    (result,) = run_commands([["collect", str(finished)]], COLUMNS="60")
    assert re.search(FULL, result.stdout)
    written = tmp_path / "table.txt"
    terminal("collect", str(finished), "--output", str(written), columns=60)
    assert re.search(FULL, written.read_text())


def test_a_table_taller_than_the_screen_is_there_from_its_first_row(
    build: Any, terminal: Any
) -> None:
    shapes = [f"1n{gpus}g" for gpus in range(1, 31)]
    built = build(*shapes, repeats=1)
    for shape in shapes:
        built.complete(shape, 1, 10.0 * int(shape[2:-1]))
    lines = terminal("collect", str(built.directory), rows=10, columns=60)
    words = [line.split()[:2] for line in lines if re.match(r" +1 +\d+ ", line)]
    assert words == [["1", str(gpus)] for gpus in range(1, 31)]


def test_a_refused_repeat_is_folded_with_its_reason(build: Any, terminal: Any) -> None:
    built = build("1n1g", repeats=2)
    built.complete("1n1g", 1, 10.0)
    built.complete("1n1g", 2, 10.0, last=7)
    lines = table(terminal("collect", str(built.directory), columns=40, LC_ALL="C.UTF-8"))
    assert max(map(len, lines)) <= 40
    assert "✗ repeat 2  incomplete: the log ends at iteration 7 of 12" in " ".join(
        line.strip() for line in lines
    )

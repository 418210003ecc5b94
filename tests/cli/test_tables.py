"""Tables on terminals that are narrow or low; pipes and files get all of them, in any form."""

import json
import re

import pytest

from tests.kit.cli import run

pytestmark = pytest.mark.slow


def read_terminal(hpcbert, *words, **options):
    """Return the lines that `collect` prints on a terminal, without colours."""
    _, text = hpcbert.on_terminal("collect", *words, **options)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()


def test_a_narrow_terminal_folds_tables_and_files_do_not(finished, run_commands, hpcbert, tmp_path):
    head = r"nodes +GPUs +samples/s +speedup +efficiency +min +max +cv +repeats +flags"
    (piped,) = run_commands([["collect", str(finished)]], COLUMNS="60")
    assert re.search(head, piped.stdout)
    read_terminal(hpcbert, finished, "--output", tmp_path / "table.txt", columns=60)
    assert re.search(head, (tmp_path / "table.txt").read_text())
    for columns, variables in ((40, {}), (80, {}), (200, {"COLUMNS": "60"})):
        lines = read_terminal(hpcbert, finished, columns=columns, **variables)
        start, end = (
            next(number for number, line in enumerate(lines) if line.startswith(word))
            for word in ("pytorch ", "hpcbert ")
        )
        table = lines[start:end]
        assert max(map(len, table)) <= int(variables.get("COLUMNS", columns)), columns
        content = re.sub(" +", " ", " ".join(table))
        for text in ("5/5", "10.00", "14.00", "100.0%", "rule "):
            assert text in content
        # What is in columns stays below its title.
        titles = next(line for line in table if line.startswith("nodes"))
        row = table[table.index(titles) + 1]
        assert row[: titles.index("samples/s") + 9].split() == ["1", "1", "12.00"]


def test_a_low_screen_gets_every_row_and_a_narrow_one_whole_reasons(build, hpcbert):
    built = build(*(f"1n{gpus}g" for gpus in range(1, 31)), repeats=1).finish()
    built.log("1n30g", 1, built.text("1n30g", 300.0, last=7))
    lines = read_terminal(hpcbert, built.directory, rows=10, columns=40)
    words = [line.split()[:2] for line in lines if re.match(r" +1 +\d+ ", line)]
    assert words == [["1", str(gpus)] for gpus in range(1, 31)]
    reason = "repeat 1 left out: incomplete: the log ends at iteration 7 of 12"
    assert reason in " ".join(line.strip() for line in lines)


def test_a_table_takes_its_form_from_its_name(empty_directory, logs, tmp_path):
    text = {}
    for name in ("t.csv", "t.MD", "t.markdown", "t.json", "t.txt", "t", "t.out"):
        result = run("collect", logs, "--json", "--output", tmp_path / name)
        assert result.returncode == 0
        text[name] = (tmp_path / name).read_text()
    # Below the table stand the time and the command that made it.
    head = {name: content.splitlines()[:5] for name, content in text.items()}
    assert text["t.csv"].count(",") > 5
    assert head["t.MD"] == head["t.markdown"]
    assert "|" in text["t.MD"]
    assert json.loads(text["t.json"])["tables"]
    assert head["t.txt"] == head["t"] == head["t.out"]
    for name in ("u.csv", "u.md"):
        run("collect", logs, "--format", "markdown", "--output", tmp_path / name)
        assert (tmp_path / name).read_text().splitlines()[:5] == head["t.MD"]
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "absent" / "t.md", tmp_path / "file" / "t.md", "/dev/full", tmp_path):
        run("collect", logs, "--output", place, status=1)


def test_options_about_logs_are_refused_of_campaigns(empty_directory, logs, finished):
    options = {
        "--fw": "oneflow", "--nodes": "1", "--gpus-per-node": "1", "--batch-size": "4",
        "--precision": "AMP", "--model": "bert", "--pattern": "{repeat}.log",
    }  # fmt: skip
    for name, value in options.items():
        refused = run("collect", finished, name, value, status=2)
        assert f"{name} has no effect on campaigns" in refused.stderr
        assert "no effect on campaigns" not in run("collect", logs, "--json", name, value).stdout

"""What others got, in one list."""

from __future__ import annotations

from tests.kit.cases import cases
from tests.kit.cli import run


def test_a_list_has_year_program_and_rate_of_each_number() -> None:
    words = ("record", "--model", "bert-large", "--gpus", "8")
    rows = run(*words, "--json").data["rows"]
    assert len(rows) > 150
    assert {(row["model"], row["devices"]) for row in rows} == {("bert-large", 8)}
    values = [row["value"] for row in rows if row["value"] and not row["task"]]
    assert values == sorted(values, reverse=True)
    assert (rows[0]["year"], rows[0]["precision"]) == (2025, "fp8")
    text = run(*words).stdout
    assert len(text.splitlines()) < 45
    assert "203.648" in text, "a row with minutes alone"
    assert "--all" in text
    assert len(run(*words, "--all").stdout.splitlines()) > 150


@cases
def test_a_list_of_nothing_is_an_error(words: tuple[str, ...], message: str) -> None:
    result = run("record", *words)
    assert result.returncode == 2
    assert message in result.stderr

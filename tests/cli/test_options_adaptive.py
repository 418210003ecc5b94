"""--repeats auto: what is typed, what a campaign.toml says, what plan makes of it, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.cases import cases
from tests.kit.cli import CliResult, run

pytestmark = pytest.mark.slow

LOCAL = ("--scheduler", "local", "--device", "cpu")


def run_plan(*words: object) -> CliResult:
    return run("plan", *LOCAL, *words, "--json")


def test_a_plan_goes_from_five_to_the_most(empty_directory: None) -> None:
    result = run_plan("--repeats", "auto", "--max-repeats", "20", "--time", "60")
    (point,) = result.data["campaigns"][0]["points"]
    assert (point["least_repeats"], point["repeats"], point["jobs"]) == (5, 20, 20)
    assert (point["least_node_hours"], point["node_hours"]) == (5, 20)
    assert "5 to 20" in run("plan", *LOCAL, "--repeats", "auto", "--max-repeats", "20").output
    costly = run_plan("--repeats", "auto", "--time", "60", "--max-gpu-hours", "14")
    # Where PyTorch is not installed, that is an error too.
    messages = [error["message"] for error in costly.document["errors"]]
    assert costly.returncode == 5
    assert any("up to 15 rank-hours" in message for message in messages), messages
    fixed = run_plan("--repeats", "7")
    assert fixed.data["total"]["least_repeats"] == fixed.data["total"]["repeats"] == 7


def test_a_file_says_it_and_what_is_typed_beside_it_wins(
    empty_directory: None, tmp_path: Path
) -> None:
    file = tmp_path / "campaign.toml"
    head = 'schema = 1\nframeworks = "pytorch"\n'
    file.write_text(f'{head}repeats = "auto"\nmax_repeats = 9\nprecision_of_median = "2 %"\n')
    repeats = [
        run_plan(file, *words).data["total"]["repeats"]
        for words in ((), ("--repeats", "3"), ("--max-repeats", "12"))
    ]
    assert repeats == [9, 3, 12]
    file.write_text(f"{head}max_repeats = 9\n")
    result = run("submit", file, *LOCAL)
    assert (result.returncode, str(file) in result.output) == (2, True), result.output
    assert 'max_repeats has no effect without repeats = "auto"' in result.output


@cases
def test_what_makes_no_sense_is_refused(
    empty_directory: None, words: tuple[str, ...], says: str
) -> None:
    result = run("submit", *LOCAL, *words)
    assert (result.returncode, says in result.output) == (2, True), result.output

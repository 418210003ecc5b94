"""hpcbert compare: what is matched, what is said of it, what is refused, and the gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from hpcbert.model import Counted, Group, Measured, Reason, Run, Shape
from hpcbert.results.document import ResultSet, render_results
from hpcbert.results.reduce import tabulate
from tests.kit import cli, logs
from tests.kit.campaigns import Built
from tests.kit.cases import cases
from tests.kit.cli import CliResult

GROUP = Group("oneflow", "bert-base", "fp32", 32, "rate")
QUIET = (1.0, 1.001, 0.999, 1.002, 0.998)


def measured(
    shape: str = "1n1g",
    rate: float = 100.0,
    *,
    spread: tuple[float, ...] = QUIET,
    iterations: tuple[int, int] = (20, 120),
    facts: Mapping[str, str] | None = None,
    **group: Any,
) -> Measured:
    runs = tuple(
        Run(number, 0, rate * factor, True, (), "COMPLETED", "sacct", f"{number}.log")
        for number, factor in enumerate(spread, 1)
    )
    skip, last = iterations
    return Measured(
        replace(GROUP, **group),
        Shape.parse(shape),
        len(runs) or 5,
        runs,
        counted=Counted(skip, last, f"iterations {skip + 1} to {last}"),
        facts=tuple((name, (text,)) for name, text in (facts or {}).items()),
    )


Save = Callable[..., Path]


@pytest.fixture
def save(empty_directory: None, tmp_path: Path) -> Save:
    """Writes results to a file; a name for each."""

    def write(name: str, *points: Measured) -> Path:
        path = tmp_path / f"{name}.json"
        path.write_text(render_results(ResultSet(tabulate(points))))
        return path

    return write


def compare(*words: object) -> CliResult:
    result = cli.run("compare", *words)
    result.check(as_json="--json" in words)
    return result


@cases
def test_two_results_are_compared(
    save: Save,
    *,
    base: tuple[Mapping[str, Any], ...] | None,
    new: tuple[Mapping[str, Any], ...] | None,
    words: str | None,
    status: int | None,
    points: Mapping[str, str] | None,
    message: str | None,
    text: str | None,
) -> None:
    """`points`: the verdict on each, by name; `message`: of the errors; `text`: of the output.

    Without `new`, BASE is compared with itself by a dimension.
    """
    files = [save("base", *(measured(**point) for point in base or ({},)))]
    files += [save("new", *(measured(**point) for point in new))] if new else []
    options = (words or "").split()
    result = compare(*files, *options, "--json")
    assert result.returncode == (status or 0), result
    errors = " ".join(f"{error['message']} {error['hint']}" for error in result.document["errors"])
    assert (message or "") in errors
    if points:
        (comparison,) = result.data["comparisons"]
        assert {point["point"]: point["verdict"] for point in comparison["points"]} == points
    if text:
        assert text in compare(*files, *options).output


def test_a_verdict_has_its_interval_and_its_coverage(save: Save) -> None:
    files = save("base", measured()), save("new", measured(rate=95))
    (point,) = compare(*files, "--json").data["comparisons"][0]["points"]
    assert point["ratio"] == pytest.approx(0.95)
    assert point["low"] < point["ratio"] < point["high"]
    assert point["coverage"] == pytest.approx(0.87890625)


@pytest.mark.parametrize(
    "word", ["97", "", "%", "-1%", "nan", "inf", "1e-1", "97,5%", "0", "0%", "1001%", "97%%", "x"]
)
def test_a_nonsensical_share_is_refused(save: Save, word: str) -> None:
    base = save("base", measured())
    result = compare(base, base, f"--fail-under={word}")
    assert result.returncode == 2
    assert "is not a share" in result.stderr


def test_a_lacking_point_shuts_the_gate(save: Save, tmp_path: Path) -> None:
    both = measured(), measured("4n8g", 3000)
    base, new, report = save("base", *both), save("new", both[0]), tmp_path / "gate.xml"
    assert compare(base, new).returncode == 0
    result = compare(base, new, "--fail-under", "50%", "--junit", report)
    assert result.returncode == 7
    assert "4n8g" in result.stderr
    suite = ET.parse(report).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["oneflow bert-base 4n8g fp32 b32"]
    # A point that only NEW has harms nobody.
    assert compare(new, base, "--fail-under", "50%").returncode == 0


@cases
def test_a_point_that_still_runs_is_not_a_regression(
    save: Save, tmp_path: Path, codes: tuple[str, ...], status: int, code: str
) -> None:
    good, other = measured(), measured("1n2g", 200)
    runs = tuple(
        replace(run, throughput=None, valid=False, reasons=(Reason(reason, ""),))
        for run, reason in zip(good.runs, codes, strict=False)
    )
    invalid = replace(good, runs=runs, asked=len(runs))
    new, report = save("new", invalid, other), tmp_path / "gate.xml"
    words = (save("base", good, other), new, "--fail-under", "97%")
    result = compare(*words, "--junit", report, "--json")
    assert (result.returncode, result.error["code"]) == (status, code)
    (suite,) = ET.parse(report).getroot()
    assert suite.get("skipped") == ("1" if status == 6 else "0")
    slow = save("slow", invalid, measured("1n2g", 100))
    assert compare(words[0], slow, "--fail-under", "97%").returncode == 7
    alone = save("alone", invalid)
    assert compare(save("good", good), alone, "--fail-under", "97%").returncode == status
    # Nothing at all has a number in both, whatever the gate.
    assert compare(save("good", good), alone).returncode == 4


def test_several_are_held_against_the_first(save: Save) -> None:
    files = [save(name, measured(rate=rate)) for name, rate in (("a", 9), ("b", 9), ("c", 8))]
    result = compare(*files, "--json", "--fail-under", "97%")
    assert result.returncode == 7
    names = [comparison["new"] for comparison in result.data["comparisons"]]
    assert names == list(map(str, files[1:]))
    (error,) = result.document["errors"]
    assert "c.json" in error["message"]
    # The same dimension from two places.
    first, second = save("one", measured()), save("other", measured(framework="mxnet", rate=80))
    (comparison,) = compare(first, second, "--by", "framework", "--json").data["comparisons"]
    assert [point["verdict"] for point in comparison["points"]] == ["slower"]


def test_campaigns_and_logs_are_compared(
    tmp_path: Path, build: Callable[..., Built], empty_directory: None
) -> None:
    built = build("1n1g")
    for number in range(1, 6):
        built.complete("1n1g", number, 10.0 + number / 100)
        name = f"pytorch/bert/bz4/1n1g/bert_b4_fp32_{number}.log"
        log = logs.log("1n1g", 9.0 + number / 100, start=1.7e9 + 1e4 * number)
        logs.write_file(tmp_path / "logs", name, log)
    path = tmp_path / "saved.json"
    cli.run("collect", built.directory, "--output", path)
    (same,) = compare(built.directory, path, "--json").data["comparisons"][0]["points"]
    assert (same["verdict"], same["ratio"]) == ("equal", 1.0)
    words = ("--model", same["base"]["model"], "--skip", "2", "--iters", "12", "--json")
    result = compare(built.directory, tmp_path / "logs", *words)
    assert result.data["comparisons"][0]["points"][0]["verdict"] == "slower"
    result = compare(built.directory, built.directory, "--fw", "pytorch", "--json")
    assert (result.returncode, "--fw has no effect on" in result.error["message"]) == (2, True)


def test_names_steer_nothing(save: Save, tmp_path: Path) -> None:
    name = 'a|b<script>&"\x1b[31m'
    base, new = (
        save("base", measured(framework=name)),
        save("new", measured(framework=name, rate=9)),
    )
    report = tmp_path / "gate.xml"
    result = compare(base, new, "--fail-under", "1", "--junit", report)
    assert "\x1b[31ma" not in result.stdout
    assert ET.parse(report).getroot()[0][0].get("name", "").startswith("a|b<script>&")
    table = compare(base, new, "--format", "markdown").stdout
    assert r"a\|b\<script\>" in table

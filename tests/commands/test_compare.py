"""hpcbert compare: what is matched, what is said of it, what is refused, and the gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from hpcbert.cli.main import COMMANDS
from hpcbert.model import Counted, Facts, Group, Measured, Reason, Run, Shape
from hpcbert.results.document import ResultSet, render_results
from hpcbert.results.reduce import tabulate
from tests.kit import cli, logs
from tests.kit.campaigns import Built
from tests.kit.cases import cases
from tests.kit.cli import CliResult

GROUP = Group("oneflow", "bert-base", "fp32", 32, "rate")
WINDOW = Counted(20, 120, "iterations 21 to 120")
QUIET = (1.0, 1.001, 0.999, 1.002, 0.998)
POINT = "oneflow bert-base 1n1g fp32 b32"
Speeds = Sequence[float]


def measured(
    shape: str,
    speeds: Speeds,
    group: Group = GROUP,
    *,
    counted: Counted | None = WINDOW,
    facts: Facts = (),
    repeats: int = 0,
) -> Measured:
    runs = tuple(
        Run(number, 0, speed, True, (), "COMPLETED", "sacct", f"{number}.log")
        for number, speed in enumerate(speeds, 1)
    )
    at = Shape.parse(shape)
    return Measured(group, at, repeats or len(runs), runs, counted=counted, facts=facts)


def times(factor: float, speeds: Speeds = QUIET) -> list[float]:
    return [factor * speed for speed in speeds]


@pytest.fixture
def save(empty_directory: None, tmp_path: Path) -> Callable[..., Path]:
    """Writes results to a file; a name for each."""

    def write(name: str, *points: Measured) -> Path:
        path = tmp_path / f"{name}.json"
        path.write_text(render_results(ResultSet(tabulate(points))))
        return path

    return write


Save = Callable[..., Path]


def compare(*words: object) -> CliResult:
    result = cli.run("compare", *words)
    result.check(as_json="--json" in words)
    return result


def points(*words: object) -> dict[str, Any]:
    result = compare(*words, "--json")
    assert result.returncode == 0, result
    (comparison,) = result.data["comparisons"]
    return {point["point"]: point for point in comparison["points"]}


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(0.95, "slower"), (1.05, "faster"), (1.0, "equal"), (0.999, "equal"), (1.5, "faster")],
)
def test_a_verdict_for_each_point(save: Save, factor: float, verdict: str) -> None:
    base = save("base", measured("1n1g", times(100)))
    new = save("new", measured("1n1g", times(100 * factor)))
    (point,) = points(base, new).values()
    assert point["verdict"] == verdict
    assert point["ratio"] == pytest.approx(factor)
    assert point["low"] < point["ratio"] < point["high"]
    assert point["coverage"] == pytest.approx(0.87890625)
    assert verdict in compare(base, new).stdout


def test_what_cannot_be_told_says_how_many_repeats_it_takes(save: Save) -> None:
    loud = (0.98, 0.99, 1.0, 1.01, 1.02)
    base = save("base", measured("1n1g", times(100, loud)))
    new = save("new", measured("1n1g", times(101, loud)))
    (point,) = points(base, new).values()
    assert point["verdict"] == "unknown"
    assert 5 < point["repeats"] < 100
    assert f"can't be told: it needs about {point['repeats']} repeats" in compare(base, new).stdout


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_runs_decide_nothing(save: Save, count: int) -> None:
    base = save("base", measured("1n1g", times(100)[:count]))
    new = save("new", measured("1n1g", times(50)[:count]))
    (point,) = points(base, new).values()
    assert (point["verdict"], point["repeats"]) == ("unknown", 4)


def test_what_passes_for_equal_can_be_said(save: Save) -> None:
    base = save("base", measured("1n1g", times(100)))
    new = save("new", measured("1n1g", times(101)))
    for within, verdict in (("2%", "equal"), ("0.001", "faster"), (" .05 ", "equal")):
        (point,) = points(base, new, "--within", within).values()
        assert point["verdict"] == verdict


GATE: Mapping[str, tuple[float, str, int]] = {
    "five percent lost": (0.95, "97%", 7),
    "a share": (0.95, "0.97", 7),
    "a blank before the sign": (0.95, "97 %", 7),
    "enough": (0.98, "97%", 0),
    "less is asked": (0.95, "90%", 0),
    "a gain is asked": (1.0, "105%", 7),
}


@pytest.mark.parametrize("name", GATE)
def test_the_gate(save: Save, name: str) -> None:
    factor, least, code = GATE[name]
    base = save("base", measured("1n1g", times(100)))
    new = save("new", measured("1n1g", times(100 * factor)))
    result = compare(base, new, "--fail-under", least, "--json")
    assert result.returncode == code
    if code:
        assert result.error["code"] == "regression"
        assert POINT in result.error["message"]
        assert POINT in compare(base, new, "--fail-under", least).stderr


@pytest.mark.parametrize(
    "word", ["97", "", "%", "-1%", "nan", "inf", "1e-1", "97,5%", "0", "0%", "1001%", "97%%", "x"]
)
def test_a_nonsensical_share_is_refused(save: Save, word: str) -> None:
    base = save("base", measured("1n1g", times(100)))
    result = compare(base, base, f"--fail-under={word}")
    assert result.returncode == 2
    assert "is not a share" in result.stderr


def test_a_lacking_point_shuts_the_gate(save: Save, tmp_path: Path) -> None:
    both = measured("1n1g", times(100)), measured("4n8g", times(3000))
    base, new = save("base", *both), save("new", both[0])
    assert compare(base, new).returncode == 0
    report = tmp_path / "gate.xml"
    result = compare(base, new, "--fail-under", "50%", "--junit", report)
    assert result.returncode == 7
    assert "4n8g" in result.stderr
    suite = ET.parse(report).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["oneflow bert-base 4n8g fp32 b32"]
    # A point that only NEW has harms nobody.
    assert compare(new, base, "--fail-under", "50%").returncode == 0


@pytest.mark.parametrize("side", ["base", "new"])
def test_a_point_without_a_number_shuts_the_gate(save: Save, side: str) -> None:
    good = measured("1n1g", times(100))
    empty = replace(good, runs=())
    other = measured("1n2g", times(200))
    base = save("base", empty if side == "base" else good, other)
    new = save("new", empty if side == "new" else good, other)
    result = compare(base, new, "--fail-under", "97%", "--json")
    assert result.returncode == 7
    assert f"no number in {side.upper()}" in result.error["message"]


@cases
def test_a_point_that_still_runs_is_not_a_regression(
    save: Save, tmp_path: Path, codes: tuple[str, ...], status: int, code: str
) -> None:
    good, other = measured("1n1g", times(100)), measured("1n2g", times(200))
    runs = tuple(
        replace(run, throughput=None, valid=False, reasons=(Reason(reason, ""),))
        for run, reason in zip(good.runs, codes, strict=False)
    )
    new = save("new", replace(good, runs=runs, asked=len(runs)), other)
    report = tmp_path / "gate.xml"
    words = (save("base", good, other), new, "--fail-under", "97%")
    result = compare(*words, "--junit", report, "--json")
    assert (result.returncode, result.error["code"]) == (status, code)
    (suite,) = ET.parse(report).getroot()
    assert suite.get("skipped") == ("1" if status == 6 else "0")
    slow = save("slow", replace(good, runs=runs, asked=len(runs)), measured("1n2g", times(100)))
    assert compare(words[0], slow, "--fail-under", "97%").returncode == 7
    alone = save("alone", replace(good, runs=runs, asked=len(runs)))
    assert compare(save("good", good), alone, "--fail-under", "97%").returncode == status


def test_nothing_is_left_to_compare(save: Save) -> None:
    good = measured("1n1g", times(100))
    result = compare(save("base", good), save("new", replace(good, runs=())), "--json")
    assert result.returncode == 4


OTHERS = {
    "rule": (measured("1n1g", times(100), replace(GROUP, rule="clock")), "rule: rate in BASE"),
    "window": (
        measured("1n1g", times(100), counted=Counted(2, 12, "iterations 3 to 12")),
        "window: iterations 21 to 120 in BASE, iterations 3 to 12 in NEW",
    ),
    "length": (
        measured("1n1g", times(100), facts=(("sequence_length", ("512",)),)),
        "sequence length: 128 in BASE, 512 in NEW",
    ),
    "protocol": (
        measured("1n1g", times(100), replace(GROUP, variant="every-step")),
        "options: none in BASE, every-step in NEW",
    ),
    "an option for it": (
        measured("1n1g", times(100), replace(GROUP, variant="sequence_length=512")),
        "options: none in BASE, sequence_length=512 in NEW",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_comparable_is_refused(save: Save, name: str) -> None:
    other, reason = OTHERS[name]
    base = save("base", measured("1n1g", times(100), facts=(("sequence_length", ("128",)),)))
    new = save("new", other)
    result = compare(base, new, "--json")
    assert result.returncode == 2
    assert reason in result.error["message"]
    assert "--anyway" in result.error["hint"]
    (point,) = points(base, new, "--anyway").values()
    assert not point["comparable"]
    assert point["obstacles"]
    assert "not comparable" in compare(base, new, "--anyway").stdout


def test_options_make_other_points(save: Save) -> None:
    xla = replace(GROUP, variant="xla")
    base = save("base", measured("1n1g", times(100)), measured("1n1g", times(120), xla))
    new = save("new", measured("1n1g", times(118), xla))
    assert list(points(base, new)) == [f"{POINT} xla"]


def test_what_differs_is_said(save: Save) -> None:
    def on(gpu: str, driver: str) -> Measured:
        facts = (("GPU", (gpu,)), ("GPU driver", (driver,)), ("kernel", ("6.1",)))
        return measured("1n1g", times(100), facts=facts)

    base, new = save("base", on("V100", "450")), save("new", on("H100", "550"))
    (point,) = points(base, new).values()
    assert [difference["what"] for difference in point["differences"]] == ["GPU", "GPU driver"]
    assert "GPU: V100 in BASE, H100 in NEW" in compare(base, new).stdout


def test_nothing_in_common_says_in_what_they_differ(save: Save) -> None:
    base = save("base", measured("1n1g", times(100)))
    new = save("new", measured("1n1g", times(100), replace(GROUP, batch_size_per_device=64)))
    result = compare(base, new, "--json")
    assert result.returncode == 2
    assert "batch-size (32; 64)" in result.error["hint"]
    assert "--by batch-size" in result.error["hint"]


BY = {
    "framework": replace(GROUP, framework="pytorch", rule="clock"),
    "model": replace(GROUP, model="bert-large"),
    "precision": replace(GROUP, precision="fp16"),
    "batch-size": replace(GROUP, batch_size_per_device=64),
    "options": replace(GROUP, variant="xla"),
    "device": replace(GROUP, device="cpu"),
}


@pytest.mark.parametrize("name", BY)
def test_the_points_of_one_set_are_compared(save: Save, name: str) -> None:
    path = save("all", measured("1n1g", times(100)), measured("1n1g", times(80), BY[name]))
    (point,) = points(path, "--by", name).values()
    assert point["verdict"] == "slower"
    # The same from two places.
    first = save("one", measured("1n1g", times(100)))
    other = save("other", measured("1n1g", times(80), BY[name]))
    (again,) = points(first, other, "--by", name).values()
    assert again == point


def test_shapes_are_compared(save: Save) -> None:
    path = save("all", measured("1n1g", times(100)), measured("1n2g", times(190)))
    (point,) = points(path, "--by", "shape").values()
    assert point["ratio"] == pytest.approx(1.9)


def test_one_value_is_nothing_to_compare(save: Save) -> None:
    base = save("base", measured("1n1g", times(100)))
    result = compare(base, "--by", "framework", "--json")
    assert (result.returncode, "oneflow" in result.error["message"]) == (2, True)
    assert compare(base, "--json").returncode == 2


def test_several_are_held_against_the_first(save: Save) -> None:
    files = [save(name, measured("1n1g", times(at))) for name, at in (("a", 9), ("b", 9), ("c", 8))]
    result = compare(*files, "--json", "--fail-under", "97%")
    assert result.returncode == 7
    assert [comparison["new"] for comparison in result.data["comparisons"]] == [
        str(file) for file in files[1:]
    ]
    (error,) = result.document["errors"]
    assert "c.json" in error["message"]


def test_campaigns_and_logs_are_compared(
    tmp_path: Path, build: Callable[..., Built], empty_directory: None
) -> None:
    built = build("1n1g")
    for number in range(1, 6):
        built.complete("1n1g", number, 10.0 + number / 100)
        name = f"pytorch/bert/bz4/1n1g/bert_b4_fp32_{number}.log"
        log = logs.log("1n1g", 9.0 + number / 100, start=1.7e9 + 1e4 * number)
        logs.write_file(tmp_path / "logs", name, log)
    path = tmp_path / "kept.json"
    cli.run("collect", built.directory, "--output", path)
    (same,) = points(built.directory, path).values()
    assert (same["verdict"], same["ratio"]) == ("equal", 1.0)
    words = ("--model", same["base"]["model"], "--skip", "2", "--iters", "12")
    (slower,) = points(built.directory, tmp_path / "logs", *words).values()
    assert slower["verdict"] == "slower"


def test_what_says_of_logs_what_campaigns_record(
    build: Callable[..., Built], empty_directory: None
) -> None:
    built = build("1n1g")
    built.finish()
    result = compare(built.directory, built.directory, "--fw", "pytorch", "--json")
    assert result.returncode == 2
    assert "--fw has no effect on campaigns" in result.error["message"]


NASTY = 'a|b<script>&"\x1b[31m'


def test_names_steer_nothing(save: Save, tmp_path: Path) -> None:
    group = replace(GROUP, framework=NASTY)
    base = save("base", measured("1n1g", times(100), group))
    new = save("new", measured("1n1g", times(50), group))
    report = tmp_path / "gate.xml"
    result = compare(base, new, "--fail-under", "1", "--junit", report)
    assert "\x1b[31ma" not in result.stdout
    assert ET.parse(report).getroot()[0][0].get("name", "").startswith("a|b<script>&")
    table = compare(base, new, "--format", "markdown").stdout
    assert r"a\|b\<script\>" in table


def test_the_command_is_listed() -> None:
    assert "compare" in COMMANDS

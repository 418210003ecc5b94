"""Every real log is read by its framework's recipe; what was published of it comes out, or is explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli
from click.testing import CliRunner, Result

from hpcbert.cli.collect import collect as command
from hpcbert.config import places
from hpcbert.logs.scan import read
from tests.kit.needs import Log, index, lacks
from tests.kit.recipes import HERE, grammar
from tests.recipes.published import (
    EXACT,
    RECIPES,
    find_nearest,
    find_recipe,
    format_page,
    is_here,
    list_readings,
    make_setting,
)

UNEXPLAINED = tomli.loads((HERE / "unexplained.toml").read_text())["cell"]
# Of the usual window, as docs/explanation/numbers.md says.
UNEVEN = {"base_bs96_fp16_gpu32_gradacc.log"}
_NAMES = sorted({*RECIPES.values(), "mlperf-bert", "perfzero"})


@pytest.fixture(params=_NAMES)
def recipe_logs(request: pytest.FixtureRequest, shared: Path) -> list[Log]:
    logs = [log for log in index(shared) if find_recipe(log) == request.param and is_here(log)]
    if not logs:
        lacks("logs", "its logs", f"none of {request.param} in the index")
    return logs


def test_no_log_is_forgotten(shared: Path) -> None:
    assert all(is_here(log) for log in index(shared))


def test_every_rule_reads_every_log_to_a_number_or_a_reason(recipe_logs: list[Log]) -> None:
    for log in recipe_logs:
        readings = list_readings(log)
        usual = [reading for _, window, reading in readings if window == "protocol"]
        is_uneven = any("uneven" in reading.flags for reading in usual)
        assert is_uneven == (log.path.name in UNEVEN), log.name
        for rule, window, reading in readings:
            if reading.throughput is None:
                assert reading.reasons or reading.missing, (log.name, rule, window)
            else:
                assert 0 < reading.throughput < 1e6, (log.name, rule, window)
                # By every rule and window: what is given without a reason is about the right number.
                ratio = reading.throughput / (log.published or reading.throughput)
                assert 1 / 1.3 < ratio < 1.3, (log.name, rule, window, reading.throughput)


@pytest.mark.needs("published")
def test_a_clock_knows_the_accumulation_or_is_refused(shared: Path) -> None:
    """It was taken for 1 where no flag of Horovod states it: 0.07 instead of 145.33."""
    log_grammar = grammar("ngc-tf1")
    stated = {"v2.2-0abb1f6": True, "v2.0-ee2e639": False}
    for log in index(shared):
        release = log.name.split("/")[1]
        if find_recipe(log) != "ngc-tf1" or log.gpus != 1 or release not in stated:
            continue
        reading = read(log.path, log_grammar, log_grammar.rule(), make_setting(log, 10, 40))
        if stated[release]:
            assert reading.throughput == pytest.approx(log.published, rel=0.08)
        else:
            assert {reason.code for reason in reading.reasons} == {"contradiction"}
            assert "accumulation" in str(reading.reasons[0])


@pytest.mark.parametrize("gpus", [4, 16])
def test_a_wrong_number_of_gpus_contradicts_a_real_log(shared: Path, gpus: int) -> None:
    logs = [log for log in index(shared) if find_recipe(log) == "ngc-tf1" and log.gpus == 8]
    for log in logs[:6]:
        log_grammar = grammar(find_recipe(log))
        wrong = make_setting(log, 10, 40)._replace(gpus=gpus, nodes=None)
        for rule in ("dlperf-time", "rate", "footer"):
            reading = read(log.path, log_grammar, log_grammar.rule(rule), wrong)
            assert {reason.code for reason in reading.reasons} <= {"contradiction", "config"}
            assert reading.throughput is None, (log.name, rule)


def test_what_a_real_log_states_contradicts_another_request(recipe_logs: list[Log]) -> None:
    """Every fact that its header has, except names of versions and devices; once for each header."""
    headers: set[tuple[str, ...]] = set()
    for log in recipe_logs:
        log_grammar = grammar(find_recipe(log))
        for rule in log_grammar.rules[:2]:
            full_reading = read(log.path, log_grammar, rule, make_setting(log, 0, 1 << 40))
            header = (rule.name, *dict(full_reading.facts))
            if header in headers:
                continue
            headers.add(header)
            request = make_setting(log, 2, full_reading.iteration)
            reading = read(log.path, log_grammar, rule, request)
            for name, value in reading.facts:
                if name in ("version", "device"):
                    continue
                wrong = "tf32" if isinstance(value, str) else 3 * value
                other = request._replace(**{name: wrong})  # type: ignore[arg-type]
                refused = read(log.path, log_grammar, rule, other)
                assert refused.throughput is None, (log.name, rule.name, name, value)
                text = str(refused.reasons)
                assert reading.throughput is None or str(wrong) in text, (log.name, name, text)


def test_published_values_come_out_or_are_explained(recipe_logs: list[Log]) -> None:
    explained = {(cell["log"], cell["published"]): cell for cell in UNEXPLAINED}
    for log in recipe_logs:
        if not log.published:
            continue
        cell = find_nearest(log)
        entry = explained.get((log.name, log.published))
        text = f"{log.name}: {log.published} published, {cell.value} by {cell.rule} {cell.window}"
        if entry is None:
            assert cell.difference <= EXACT, text
        else:
            assert cell.difference > EXACT, f"{text}: no longer unexplained"
            assert cell.difference <= entry.get("within", 0.02), text


@pytest.mark.needs("published")
def test_the_page_of_published_cells_names_what_no_rule_gives(shared: Path) -> None:
    """If not: `python -m tests.recipes.published --page > docs/reference/published-cells.md`."""
    written = HERE.parent.parent / "docs" / "reference" / "published-cells.md"
    assert written.read_text(encoding="utf-8") == format_page(UNEXPLAINED, shared)


@pytest.mark.parametrize("cell", UNEXPLAINED, ids=lambda cell: str(cell["published"]))
@pytest.mark.needs("published")
def test_explanations_hold(cell: dict[str, Any], shared: Path) -> None:
    (log,) = {candidate for candidate in index(shared) if candidate.name == cell["log"]}
    assert log.published == cell["published"]
    assert cell["why"].endswith(".")
    if "iterations" in cell:
        assert _average_rates(log, cell) == pytest.approx(log.published, rel=EXACT)


def _average_rates(log: Log, cell: dict[str, Any]) -> float:
    log_grammar = grammar(find_recipe(log))
    first, last = cell["iterations"]
    values = []
    for number in range(first, last + 1):
        if number not in cell.get("without", ()):
            reading = read(
                log.path,
                log_grammar,
                log_grammar.rule(cell["rule"]),
                make_setting(log, number - 1, number),
            )
            assert reading.throughput is not None
            values.append(reading.throughput)
    return sum(values) / len(values)


# --- Cautions -------------------------------------------------------------------------------------


def run_collect(*words: str) -> Result:
    return CliRunner().invoke(command, [*words, "--json"])


def test_mlperfs_printed_rate_is_given_with_a_warning_and_is_too_high(shared: Path) -> None:
    release = shared / "logs" / "mlcommons+training_results_v1.0" / "50619b5"
    logs = str(release / "NVIDIA/results/dgxa100_ngc21.05_pytorch")
    words = [logs, "--fw", "mlperf-bert", "--pattern", "result_{repeat}.txt", "--nodes", "1"]
    words += ["--gpus-per-node", "8", "--batch-size", "56", "--precision", "fp16"]
    document = json.loads(run_collect(*words, "--rule", "printed").stdout)
    (row,) = document["data"]["tables"][0]["rows"]
    # Samples over run_start to run_stop of these ten logs: 2082 to 2205 a second.
    assert (round(row["min"]), round(row["max"])) == (2193, 2943)
    assert "--max_steps" in document["warnings"][0]


@pytest.mark.parametrize(
    ("framework", "rule"),
    [("ngc-tf1", "footer"), ("deepspeed", "dlperf-rate"), ("oneflow", "rate")],
)
def test_a_rule_with_a_caution_warns_and_others_do_not(
    framework: str, rule: str, tmp_path: Path
) -> None:
    folder = tmp_path / "logs" / framework / "bert/bz32/4n8g"
    folder.mkdir(parents=True)
    sample = (places.package_templates() / framework / "sample.log").read_bytes()
    (folder / "bert_b32_fp32_1.log").write_bytes(sample)
    document = json.loads(run_collect(str(tmp_path), "--rule", rule).stdout)
    warned = [text for text in document["warnings"] if text.startswith(f"rule {rule}: ")]
    assert len(warned) == (framework != "oneflow")

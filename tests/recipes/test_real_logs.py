"""Every real log is read by its framework's recipe; what was published of it comes out, or is explained.

RECORD_PAGES=1 writes docs/reference/published-cells.md.
"""

import os
from collections import Counter
from functools import cache
from statistics import fmean
from typing import Any

import pytest
import tomli

from hpcbert.logs.scan import read
from hpcbert.logs.setting import Setting
from tests.kit.cases import read_constant
from tests.kit.cli import run
from tests.kit.logs import write_file
from tests.kit.needs import index, lacks
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import HERE, grammar, sample

# The index's word for a framework, and the recipe that reads its logs.
RECIPES = read_constant(__file__, "RECIPES")
# Cells that no rule of a recipe gives to EXACT, and why.
CELLS = tomli.loads((HERE / "unexplained.toml").read_text())["cell"]
EXPLAINED = {(cell["log"], cell["published"]): cell for cell in CELLS}
EXACT = 5e-5


def find_recipe(log):
    if "PerfZero" in log.framework:
        return "perfzero"
    if log.name.startswith("mlcommons"):
        return "mlperf-bert"
    return RECIPES[log.framework.partition("(")[0]]


def make_setting(log, skip, iters):
    return Setting(
        nodes=log.nodes or None, gpus=log.gpus or None,
        batch_size_per_device=log.batch_size or None, skip=skip, iters=iters,
    ).settled({})[0]  # fmt: skip


@cache
def read_log(log, rule, skip, iters):
    log_grammar = grammar(find_recipe(log))
    return read(log.path, log_grammar, log_grammar.rule(rule), make_setting(log, skip, iters))


@pytest.fixture(params=sorted({*RECIPES.values(), "mlperf-bert", "perfzero"}))
def recipe_logs(request, shared):
    logs = [log for log in index(shared) if find_recipe(log) == request.param]
    if not logs:
        lacks("logs", "its logs", f"none of {request.param} in the index")
    return logs


def test_every_rule_reads_every_log_to_a_number_or_a_reason(recipe_logs):
    for log in {log._replace(note="") for log in recipe_logs}:
        is_uneven = False
        for rule in grammar(find_recipe(log)).rules:
            reading = read_log(log, rule.name, 20, 120)
            is_uneven |= "uneven" in reading.flags
            if reading.throughput is None:
                assert reading.reasons or reading.missing, (log.name, rule.name)
                continue
            # By every rule: what is given without a reason is about the right number.
            assert 0 < reading.throughput < 1e6, (log.name, rule.name)
            ratio = reading.throughput / (log.published or reading.throughput)
            assert 1 / 1.3 < ratio < 1.3, (log.name, rule.name, reading.throughput)
        # Of the usual window, as docs/explanation/numbers.md says.
        assert is_uneven == (log.path.name == "base_bs96_fp16_gpu32_gradacc.log"), log.name


def test_published_values_come_out_or_are_explained(recipe_logs):
    """By a rule of the recipe, after a warm-up that reports left out, to the end of the log."""
    hits: Counter[Any] = Counter()  # what often gave the value is tried first
    for log in [log for log in recipe_logs if log.published]:
        rules, nearest = grammar(find_recipe(log)).rules, float("inf")
        end = read_log(log, rules[0].name, 0, 1 << 40).iteration
        # Warm-up iterations that reports left out; without one, the protocol's window.
        windows = [(rule.name, skip) for rule in rules for skip in (None, 0, 1, 2, 5, 20, 100)]
        for window in sorted(windows, key=lambda window: -hits[window]):
            rule, skip = window
            window_end = (20, 120) if skip is None else (skip, end)
            value = read_log(log, rule, *window_end).throughput
            if value is not None:
                nearest = min(nearest, abs(value - log.published) / log.published)
            if nearest <= EXACT:
                hits[window] += 1
                break
        cell = EXPLAINED.get((log.name, log.published))
        text = f"{log.name}: {log.published} published, {nearest:.1e} off"
        assert (nearest > EXACT) == (cell is not None), text
        assert nearest <= (cell or {}).get("within", 0.02), text


@pytest.mark.needs("published")
def test_the_page_of_published_cells_names_what_no_rule_gives_and_why(shared):
    names = {(log.name, log.published): log.name for log in index(shared) if log.published}
    places = {name: name.split("/", 2) for name in names.values()}
    repositories = {name: place[0].replace("+", "/") for name, place in places.items()}
    lines = ["| log | published, samples/s | why |", "|---|---:|---|"]
    for cell in CELLS:
        _, version, path = places[cell["log"]]
        where = f"{repositories[cell['log']]}@{version.rpartition('-')[2]}, `{path}`"
        lines.append(f"| {where} | {cell['published']} | {cell['why']} |")
    counts = Counter(repositories[name] for name in names.values())
    text = read_constant(__file__, "PAGE").format(
        count=len(names), logs=len(places), cells="\n".join(lines),
        shares=", ".join(f"{count} of {name}" for name, count in counts.most_common()),
        exact=len(names) - len(CELLS),
    )  # fmt: skip
    page = REPOSITORY / "docs" / "reference" / "published-cells.md"
    if os.environ.get("RECORD_PAGES"):
        page.write_text(text, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == text
    for log in index(shared):
        cell = EXPLAINED.get((log.name, log.published), {})
        assert cell.get("why", ".").endswith(".")
        if "iterations" in cell:
            first, last = cell["iterations"]
            numbers = set(range(first, last + 1)) - {*cell.get("without", ())}
            readings = [read_log(log, cell["rule"], n - 1, n) for n in numbers]
            rates = [reading.throughput for reading in readings if reading.throughput]
            assert len(rates) == len(numbers)
            assert fmean(rates) == pytest.approx(log.published, rel=EXACT)


@pytest.mark.needs("published")
def test_a_clock_knows_the_accumulation_or_is_refused(shared):
    """It was taken for 1 where no flag of Horovod states it: 0.07 instead of 145.33."""
    stated = {"v2.2-0abb1f6": True, "v2.0-ee2e639": False}
    for log in index(shared):
        release = log.name.split("/")[1]
        if find_recipe(log) == "ngc-tf1" and log.gpus == 1 and release in stated:
            reading = read_log(log, "", 10, 40)
            if stated[release]:
                assert reading.throughput == pytest.approx(log.published, rel=0.08)
            else:
                assert {reason.code for reason in reading.reasons} == {"contradiction"}
                assert "accumulation" in str(reading.reasons[0])


def test_what_a_real_log_states_contradicts_another_request(recipe_logs):
    """Every fact that its header has, except names of versions and devices; once for each folder."""
    for log in {log.path.parent: log for log in recipe_logs}.values():
        log_grammar = grammar(find_recipe(log))
        for rule in log_grammar.rules[:2]:
            end = read_log(log, rule.name, 0, 1 << 40).iteration
            request = make_setting(log, 2, end)
            reading = read(log.path, log_grammar, rule, request)
            for name, value in reading.facts:
                if name in ("version", "device"):
                    continue
                wrong = "tf32" if isinstance(value, str) else 3 * value
                other = request._replace(**{name: wrong})
                refused = read(log.path, log_grammar, rule, other)
                assert refused.throughput is None, (log.name, rule.name, name, value)
                text = str(refused.reasons)
                assert reading.throughput is None or str(wrong) in text, (log.name, name, text)


def test_mlperfs_printed_rate_is_given_with_a_warning_and_is_too_high(shared):
    release = shared / "logs" / "mlcommons+training_results_v1.0" / "50619b5"
    result = run(
        "collect", release / "NVIDIA/results/dgxa100_ngc21.05_pytorch", "--fw", "mlperf-bert",
        "--pattern", "result_{repeat}.txt", "--nodes", 1, "--gpus-per-node", 8, "--batch-size", 56,
        "--precision", "fp16", "--rule", "printed", "--json",
    )  # fmt: skip
    (row,) = result.data["tables"][0]["rows"]
    # Samples over run_start to run_stop of these ten logs: 2082 to 2205 a second.
    assert (round(row["min"]), round(row["max"])) == (2193, 2943)
    assert "--max_steps" in result.document["warnings"][0]


def test_a_rule_with_a_caution_warns_and_no_other_does(tmp_path):
    rules = {"ngc-tf1": "footer", "deepspeed": "dlperf-rate", "oneflow": "rate"}
    for framework, rule in rules.items():
        name = f"logs/{framework}/bert/bz32/4n8g/bert_b32_fp32_1.log"
        write_file(tmp_path / framework, name, sample(framework))
        document = run("collect", tmp_path / framework, "--rule", rule, "--json").document
        warned = [text for text in document["warnings"] if text.startswith(f"rule {rule}: ")]
        assert len(warned) == (framework != "oneflow"), framework

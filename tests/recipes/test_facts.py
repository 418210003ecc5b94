"""What a recipe's program prints of its own run is read, checked, and listed in the recipe's README."""

import re
from typing import Any

import pytest
import tomli

from hpcbert.logs.fields import LogFacts
from hpcbert.logs.grammar import FACTS
from hpcbert.logs.lines import Line
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import HERE, NAMES, grammar, printed, read, sample, setting

COUNTING = {name: fact for name in NAMES for fact in grammar(name).facts if fact.counts}


def read_refusal(name, folder, data, settings):
    """Return what a reading by the default rule says against the configuration; empty if nothing."""
    reading = read(name, folder, data, settings=settings)
    assert reading.throughput is None or not reading.reasons
    return "; ".join(reason.detail for reason in reading.reasons if reason.code == "config")


def test_the_table_of_a_readme_is_what_the_grammar_reads(name):
    lines: dict[str, list[str]] = {}
    for fact in grammar(name).facts:
        text = fact.contains.decode().strip().replace("|", r"\|")
        for group in fact.match.groupindex:
            lines.setdefault(group, []).append(f"`{text}`")
        if fact.counts:
            lines.setdefault(fact.counts, []).append(f"`{text}` from every rank")
    page = (TEMPLATES / name / "README.md").read_text()
    table = page.partition("\n## Facts in a log\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    rows = dict(listed)
    assert len(rows) == len(listed), "a fact is listed twice"
    printed_rows = {fact: line for fact, line in rows.items() if not line.startswith("not printed")}
    assert printed_rows == {fact: ", ".join(dict.fromkeys(texts)) for fact, texts in lines.items()}
    assert list(rows) == [fact for fact in FACTS if fact in rows], "in the order of the facts"
    # What a README must say of every program: that it is read, or that it is not printed.
    assert {*rows} >= {
        *("nodes", "gpus", "batch_size_per_device", "global_batch_size", "precision"),
        *("sequence_length", "model", "version"),
    }


def test_every_fact_has_a_line_and_one_that_says_otherwise_refuses_the_run(name, tmp_path):
    """A log with the line is no run with another value, and both are named."""

    def read_values(line):
        """Return what a line states, by the fact that reads it and its name."""
        values: dict[Any, Any] = {}
        for fact in facts:
            if fact.contains in line and fact.match.search(line):
                stated = LogFacts()
                stated.add(fact, Line(line))
                read_facts = stated.values | stated.suggested.get(fact, {})
                values |= {(fact, group): value for group, value in read_facts.items()}
        return values

    stated: dict[Any, Any] = {}
    facts = grammar(name).facts
    # Lines of facts that a sample's run had no reason to print, each with what it states.
    unprinted = tomli.loads((HERE / "facts.toml").read_text()).get(name, {})
    for line in [*map(str.encode, unprinted), *sample(name).splitlines()]:
        for pair, value in read_values(line).items():
            stated.setdefault(pair, (line, value))
    assert {(fact, group) for fact in facts for group in fact.match.groupindex} <= {*stated}
    for text, values in unprinted.items():
        assert {pair[1]: value for pair, value in read_values(text.encode()).items()} == values
    for (_, group), (line, value) in stated.items():
        # Of texts, the first one in a log stands: `collect` tells runs apart that differ in them.
        if group in ("version", "device"):
            continue
        wrong: Any = "tf32" if isinstance(value, str) else value * 2 + 1
        settings = setting(name)._replace(**{group: wrong})
        detail = read_refusal(name, tmp_path, line + b"\n" + printed(name), settings)
        if line in printed(name):
            assert str(value) in detail
            assert str(wrong) in detail
        else:
            # The user's word outweighs a line that only suggests its fact.
            assert detail or any(
                fact.assumed and group in fact.match.groupindex
                for fact in facts
                if fact.match.search(line)
            )


@pytest.mark.parametrize("recipe", COUNTING)
def test_ranks_that_speak_are_counted(recipe, tmp_path):
    """A log with half or twice the ranks is not the run that was asked for."""
    fact, lines = COUNTING[recipe], printed(recipe).splitlines(keepends=True)
    spoken = [line for line in lines if fact.contains in line and fact.match.search(line)]
    settings = setting(recipe)
    settings = settings if settings.gpus else settings._replace(gpus=len(spoken))
    assert len(spoken) == settings.gpus != 1
    text = b"".join(line for line in lines if line not in spoken)
    twice = read_refusal(recipe, tmp_path, b"".join(spoken * 2) + text, settings)
    assert {str(len(spoken)), str(2 * len(spoken))} <= {*re.findall(r"\d+", twice)}
    if len(spoken) // 2 >= fact.least:
        # Where a line states the number, fewer ranks have only torn lines.
        facts = grammar(recipe).facts
        patterns = [other.match for other in facts if fact.counts in other.match.groupindex]
        silent = [line for line in lines if not any(pattern.search(line) for pattern in patterns)]
        half = spoken[::2] + [line for line in silent if line not in spoken]
        refusal = read_refusal(recipe, tmp_path, b"".join(half), settings)
        assert {str(len(spoken)), str(len(spoken) // 2)} <= {*re.findall(r"\d+", refusal)}
    if not fact.match.pattern.startswith(b"^") and b".*" not in fact.match.pattern:
        glued = b"".join(line.rstrip(b"\n") for line in spoken) + b"\n"
        assert not read_refusal(recipe, tmp_path, glued + text, settings)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("silent", [b"", b" n_gpu: 8,"], ids=["stated", "only-told"])
def test_torn_lines_do_not_refuse_a_run_whose_number_does_not_need_them(count, silent, tmp_path):
    """Ranks that write at once tear each other's lines: five of eight, of a whole run."""

    def tear_lines(recipe, count):
        """Return a sample in which some of the lines that every rank prints are torn apart."""
        fact, data = COUNTING[recipe], printed(recipe)
        for line in [line for line in data.splitlines(True) if fact.match.search(line)][:count]:
            data = data.replace(line, line.replace(fact.contains, fact.contains[:4] + b"\n:::"), 1)
        return data

    data = tear_lines("mlperf-bert", count)
    data = data.replace(silent, b"") if silent else data
    for rule in grammar("mlperf-bert").rules:
        reading = read("mlperf-bert", tmp_path, data, rule.name)
        untorn = read("mlperf-bert", tmp_path, sample("mlperf-bert"), rule.name)
        assert reading.throughput == untorn.throughput, rule.name
        assert reading.setting.gpus == 8
    line = next(line for line in data.splitlines(True) if b"init_start" in line)
    more = line + sample("mlperf-bert")
    assert "9 lines say" in read_refusal("mlperf-bert", tmp_path, more, setting("mlperf-bert"))
    # Where only they state the GPUs, seven of eight may be a run on seven.
    for recipe in ("ngc-tf1", "ngc-pytorch", "oneflow-models"):
        fact = COUNTING[recipe]
        ranks = len(fact.match.findall(printed(recipe)))
        reading = read(recipe, tmp_path, tear_lines(recipe, 1))
        assert reading.throughput is None or ranks - 1 < fact.least, recipe

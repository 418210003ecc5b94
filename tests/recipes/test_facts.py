"""What a recipe's program prints of its own run is read, checked, and listed in the recipe's README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import tomli

from hpcbert.logs.grammar import FACTS, Fact
from hpcbert.logs.lines import Line
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import HERE, NAMES, Reader, grammar, printed, sample, setting

# Lines of facts that a sample's run had no reason to print, each with what it states.
OTHERS: dict[str, dict[str, dict[str, int | str]]]
OTHERS = tomli.loads((HERE / "facts.toml").read_text())


class Statement(NamedTuple):
    line: bytes
    fact: Fact
    name: str
    value: int | str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def list_statements(name: str) -> list[Statement]:
    """Return what the lines of a recipe's sample state, and those that it lacks."""
    lines = [*OTHERS.get(name, {}), *sample(name).decode(errors="replace").splitlines()]
    statements: dict[tuple[Fact, str], Statement] = {}
    for text in lines:
        line = text.encode()
        for fact in grammar(name).facts:
            match = fact.match.search(line) if fact.contains in line else None
            for group, value in _read_values(fact, line).items() if match else ():
                statements.setdefault((fact, group), Statement(line, fact, group, value))
    return list(statements.values())


def _read_values(fact: Fact, line: bytes) -> dict[str, int | str]:

    from hpcbert.logs.fields import LogFacts

    stated = LogFacts()
    stated.add(fact, Line(line))
    return stated.values | stated.suggested.get(fact, {})


def read_refusal(name: str, tmp_path: Path, data: bytes, settings: Setting) -> str:
    """Return what a reading by the default rule says against the configuration; empty if nothing."""
    reading: Reading = Reader(name, tmp_path).read(data, settings=settings)
    assert reading.throughput is None or not reading.reasons
    return "; ".join(reason.detail for reason in reading.reasons if reason.code == "config")


# --- The README ---------------------------------------------------------------------------------


def read_rows(name: str) -> dict[str, str]:
    text = (TEMPLATES / name / "README.md").read_text()
    _, _, table = text.partition("\n## Facts in a log\n")
    rows: dict[str, str] = {}
    for fact, line in re.findall(
        r"^\| `(\w+)` \| (.*) \|$", table.partition("\n## ")[0], re.MULTILINE
    ):
        assert fact not in rows, f"{fact} is listed twice"
        rows[fact] = line
    return rows


def test_the_table_of_a_readme_is_what_the_grammar_reads(name: str) -> None:
    read: dict[str, list[str]] = {}
    for fact in grammar(name).facts:
        text = fact.contains.decode().strip().replace("|", r"\|")
        for group in fact.match.groupindex:
            read.setdefault(group, []).append(f"`{text}`")
        if fact.counts:
            read.setdefault(fact.counts, []).append(f"`{text}` from every rank")
    rows = read_rows(name)
    printed_rows = {fact: line for fact, line in rows.items() if not line.startswith("not printed")}
    assert printed_rows == {fact: ", ".join(dict.fromkeys(lines)) for fact, lines in read.items()}
    assert list(rows) == [fact for fact in FACTS if fact in rows], "in the order of the facts"


def test_a_readme_says_of_each_label_whether_the_program_prints_it(name: str) -> None:
    # What a README must say of every program: that it is read, or that it is not printed.
    needed = {
        "nodes",
        "gpus",
        "batch_size_per_device",
        "global_batch_size",
        "precision",
        "sequence_length",
        "model",
        "version",
    }
    assert needed <= set(read_rows(name))


# --- Contradictions -----------------------------------------------------------------------------


def test_lines_state_what_they_are_read_as(name: str) -> None:
    for text, values in OTHERS.get(name, {}).items():
        line = text.encode()
        facts = [fact for fact in grammar(name).facts if fact.contains in line]
        assert {k: v for fact in facts for k, v in _read_values(fact, line).items()} == values


def test_a_line_is_known_for_every_fact(name: str) -> None:
    stated = {(statement.fact, statement.name) for statement in list_statements(name)}
    missing = [
        (fact.contains, group)
        for fact in grammar(name).facts
        for group in fact.match.groupindex
        if (fact, group) not in stated
    ]
    assert not missing


# Of texts, the first one in a log stands: runs that differ in them are told apart by `collect`.
@pytest.mark.parametrize(
    ("recipe", "statement"),
    [
        pytest.param(recipe, statement, id=f"{recipe}-{number}-{statement}")
        for recipe in NAMES
        for number, statement in enumerate(list_statements(recipe))
        if statement.name not in ("version", "device")
    ],
)
def test_a_line_that_says_otherwise_refuses_the_run(
    recipe: str, statement: Statement, tmp_path: Path
) -> None:
    """A log with the line is no run with another value, and both are named."""
    wrong = "tf32" if isinstance(statement.value, str) else statement.value * 2 + 1
    settings = setting(recipe)._replace(**{statement.name: wrong})  # type: ignore[arg-type]
    detail = read_refusal(recipe, tmp_path, statement.line + b"\n" + printed(recipe), settings)
    if statement.line in printed(recipe):
        assert str(statement.value) in detail
        assert str(wrong) in detail
    else:
        # The user's word outweighs a line that only suggests its fact.
        assert detail or any(
            fact.assumed and statement.name in fact.match.groupindex
            for fact in grammar(recipe).facts
            if fact.match.search(statement.line)
        )


@pytest.mark.parametrize(
    ("recipe", "fact"),
    [
        pytest.param(recipe, fact, id=f"{recipe}-{fact.contains.decode().strip()}")
        for recipe in NAMES
        for fact in grammar(recipe).facts
        if fact.counts
    ],
)
def test_ranks_that_speak_are_counted(recipe: str, fact: Fact, tmp_path: Path) -> None:
    """A log with half or twice the ranks is not the run that was asked for."""
    lines = printed(recipe).splitlines(keepends=True)
    rank_lines = [line for line in lines if fact.contains in line and fact.match.search(line)]
    settings = setting(recipe)
    assert len(rank_lines) == (settings.gpus or len(rank_lines)) > 1
    text = b"".join(line for line in lines if line not in rank_lines)
    twice = _refuse_count(recipe, tmp_path, b"".join(rank_lines * 2) + text)
    assert {str(len(rank_lines)), str(2 * len(rank_lines))} <= {*re.findall(r"\d+", twice)}
    if len(rank_lines) // 2 >= fact.least:
        # Where a line states the number, fewer ranks have only torn lines.
        stating = [
            other for other in grammar(recipe).facts if fact.counts in other.match.groupindex
        ]
        silent = b"".join(
            line for line in lines
            if line not in rank_lines and not any(other.match.search(line) for other in stating)
        )  # fmt: skip
        half = _refuse_count(recipe, tmp_path, b"".join(rank_lines[::2]) + silent)
        assert {str(len(rank_lines)), str(len(rank_lines) // 2)} <= {*re.findall(r"\d+", half)}
    if not fact.match.pattern.startswith(b"^") and b".*" not in fact.match.pattern:
        glued = b"".join(line.rstrip(b"\n") for line in rank_lines) + b"\n"
        assert not _refuse_count(recipe, tmp_path, glued + text)


def tear_lines(recipe: str, count: int) -> bytes:
    """Return a sample in which some of the lines that every rank prints are torn apart."""
    (fact,) = (fact for fact in grammar(recipe).facts if fact.counts)
    lines = [line for line in printed(recipe).splitlines(True) if fact.match.search(line)]
    data = printed(recipe)
    for line in lines[:count]:
        data = data.replace(line, line.replace(fact.contains, fact.contains[:4] + b"\n:::"), 1)
    return data


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("silent", [b"", b" n_gpu: 8,"], ids=["stated", "only-told"])
def test_torn_lines_do_not_refuse_a_run_whose_number_does_not_need_them(
    count: int, silent: bytes, tmp_path: Path
) -> None:
    """Ranks that write at once tear each other's lines: five of eight, of a whole run."""
    data = tear_lines("mlperf-bert", count)
    data = data.replace(silent, b"") if silent else data
    for rule in grammar("mlperf-bert").rules:
        intact = Reader("mlperf-bert", tmp_path).read(sample("mlperf-bert"), rule.name)
        reading = Reader("mlperf-bert", tmp_path).read(data, rule.name)
        assert reading.throughput == intact.throughput, rule.name
        assert reading.setting.gpus == 8


def test_torn_lines_refuse_a_run_whose_number_needs_them(tmp_path: Path) -> None:
    """Where only they state the GPUs, seven of eight may be a run on seven."""
    for recipe in ("ngc-tf1", "ngc-pytorch", "oneflow-models"):
        (fact,) = (fact for fact in grammar(recipe).facts if fact.counts)
        count = len(fact.match.findall(printed(recipe)))
        reading = Reader(recipe, tmp_path).read(tear_lines(recipe, 1))
        assert reading.throughput is None or count - 1 < fact.least, recipe


def test_more_lines_than_ranks_refuse_a_run(tmp_path: Path) -> None:
    data = sample("mlperf-bert")
    line = next(line for line in data.splitlines(True) if b"init_start" in line)
    assert "9 lines say" in read_refusal(
        "mlperf-bert", tmp_path, line + data, setting("mlperf-bert")
    )


def _refuse_count(recipe: str, tmp_path: Path, data: bytes) -> str:
    settings = setting(recipe)
    count = sum(1 for fact in grammar(recipe).facts if fact.counts)
    assert count == 1
    if settings.gpus is None:
        ranks = len([line for line in printed(recipe).splitlines() if line.startswith(b"#  Rank ")])
        settings = settings._replace(gpus=ranks)
    return read_refusal(recipe, tmp_path, data, settings)


def test_versions_and_devices_tell_experiments_apart(tmp_path: Path) -> None:
    reading = Reader("pytorch", tmp_path).read(sample("pytorch"))
    assert (reading.setting.version, reading.setting.device) == ("2.13.0+cpu", "AMD EPYC")
    twice = sample("nccl-tests").replace(b"NVIDIA A100-SXM4-40GB", b"NVIDIA H200", 1)
    mixed = Reader("nccl-tests", tmp_path).read(twice)
    assert mixed.setting.device == "NVIDIA H200"
    assert {reason.code for reason in mixed.reasons} == {"rule"}


def test_a_campaign_expects_the_sequence_length_of_its_script(name: str) -> None:
    """Where a rank script has the length written into it, the grammar has the same."""
    script = (TEMPLATES / name / "run.sh.j2").read_text()
    fixed = re.search(r"--(?:max_)?seq(?:_length|_len|-length)=(\d+)", script)
    assert grammar(name).sequence_length == int(fixed[1] if fixed else 0)

"""Every word of a report stands in one catalogue, in each language."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from hpcbert.model import UNFINISHED, Group, Measured, Reason, Run, Shape
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.formats import PUBLISHED_COLUMNS
from hpcbert.results.reduce import tabulate
from hpcbert.results.report import sections
from hpcbert.results.report.model import LANGUAGES, ReportInput, Words
from hpcbert.results.wording import catalogue
from tests.docs.test_documents import codes, rows
from tests.kit.cases import cases
from tests.kit.paths import REPOSITORY
from tests.results.report.test_formats import MADE

ROOM = REPOSITORY / "hpcbert" / "results" / "report"
# Ends of keys that come from data.
BY_DATA = ("flag.*", "reason.*", "unit.*", *(f"column.{name}" for name in PUBLISHED_COLUMNS))


def list_patterns() -> set[str]:
    """Return the keys in the code and the page; `*` stands for what is only known at run time."""
    paths = [*ROOM.glob("*.py"), ROOM / "page.html.j2"]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    words = re.findall(r'"([\w.{}\[\]\'-]+)(?::[^"\s]*)?"', text)
    return {re.sub(r"\{[^}]*\}", "*", word) for word in words}


def test_every_text_is_there_in_each_language_with_the_same_places() -> None:
    for key, texts in catalogue().items():
        assert set(texts) == set(LANGUAGES), key
        assert all(text.strip() for text in texts.values()), key
        assert len({frozenset(re.findall(r"\{\w+\}", text)) for text in texts.values()}) == 1, key


def test_every_key_is_used() -> None:
    """One that is missing is an error of the report that needs it."""
    patterns = {*BY_DATA, *list_patterns()} - {"*", "**", "column.*"}
    patterns |= {f"column.{pattern}" for pattern in patterns}
    for key in catalogue():
        assert any(fnmatchcase(key, pattern) for pattern in patterns), key


def test_no_word_stands_in_the_template() -> None:
    text = (ROOM / "page.html.j2").read_text(encoding="utf-8")
    plain = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", "", text, flags=re.DOTALL)
    assert re.findall(r"[^\W\d_]+", plain) == []


@pytest.mark.parametrize("module", ["model", "sections"])
def test_no_sentence_stands_in_the_code(module: str) -> None:
    """Texts with a blank between letters are documentation or names of facts."""
    tree = ast.parse((ROOM / f"{module}.py").read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
    ]
    facts = r"(GPU|CPU|memory,|library|package|variable|system|GPU clock|GPU memory|nic) .*"
    sentences = [
        text
        for text in texts
        if re.search(r"[a-z]{2,} [a-z]{2,}", text) and not re.fullmatch(facts, text)
    ]
    assert sentences == []


def test_reasons_are_explained_in_each_language() -> None:
    numbers = (REPOSITORY / "docs" / "explanation" / "numbers.md").read_text(encoding="utf-8")
    reasons = {code for row in rows(numbers, "reason") for code in codes(row[0])}
    assert {
        key.removeprefix("reason.") for key in catalogue() if key.startswith("reason.")
    } == reasons


# --- Summary --------------------------------------------------------------------------------------


GPU = (("GPU", ("NVIDIA H100 80GB HBM3",)),)


def summarize(points: list[Measured], *created: str) -> tuple[str, str]:
    """Return title and paragraph of a report on points of campaigns created at these times."""
    sources = tuple(Source("campaign", time, created=time) for time in created)
    inputs = ReportInput("", MADE, ResultSet(tabulate(points), sources=sources))
    words = Words("en")
    return sections.make_title(inputs, words), sections.summarize(inputs, words)


def measure(framework: str, gpus: int, *reasons: str, model: str = "bert-base") -> Measured:
    """Return a point of one run, 10 samples/s for each GPU, or invalid for a reason."""
    run = Run(
        *(1, 0, None if reasons else 10.0 * gpus, not reasons),
        *(tuple(Reason(code, "") for code in reasons), "-", "none", ""),
    )
    group = Group(framework, model, "bf16", 32, "rate")
    return Measured(group, Shape(1, gpus), 1, (run,), facts=GPU)


@cases
def test_titles_say_what_where_and_when(created: tuple[str, ...], date: str) -> None:
    title, _ = summarize([measure("a", 1), measure("b", 8)], *created)
    assert title == f"bert-base bf16 with a, b on 1 to 8 GPUs (NVIDIA H100 80GB HBM3){date}"


def test_the_best_point_is_named_with_its_variant() -> None:
    ring, tree = (
        replace(point, group=replace(point.group, variant=f"NCCL_ALGO={name}"))
        for point, name in ((measure("a", 8), "Ring"), (measure("a", 4), "Tree"))
    )
    _, text = summarize([ring, tree])
    assert "by a bert-base bf16 bs32 NCCL_ALGO=Ring on 8" in text


def test_models_are_not_compared() -> None:
    _, text = summarize([measure("a", 8), measure("b", 4, model="bert-large")])
    assert "80.00 samples/s, by a bert-base" in text
    assert "40.00 samples/s, by b bert-large" in text


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (UNFINISHED, "have not ended yet: 1."),
        ("device-oom", "Invalid runs by reason: device-oom (1)."),
    ],
)
def test_what_is_wrong_is_said(reason: str, sentence: str) -> None:
    _, text = summarize([measure("a", 1), measure("a", 8, reason)])
    assert sentence in text
    assert "Valid runs: 1 of 2." in text
    assert ("Invalid runs" in text) is (reason != UNFINISHED)
    assert "No run is valid" in summarize([measure("a", 8, reason)])[1]

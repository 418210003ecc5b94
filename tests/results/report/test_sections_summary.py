"""A report's title and first paragraph: what was measured, on what and when, and what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcbert.model import UNFINISHED, Group, Measured, Reason, Run, Shape
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.reduce import tabulate
from hpcbert.results.report import sections
from hpcbert.results.report.model import ReportInput, Words
from tests.kit.cases import cases
from tests.results.report.test_formats import MADE

GPU = (("GPU", ("NVIDIA H100 80GB HBM3",)),)


def summarize(points: list[Measured], *created: str) -> tuple[str, str]:
    """Return title and paragraph of a report on points of campaigns created at these times."""
    sources = tuple(Source("campaign", time, created=time) for time in created)
    inputs = ReportInput("", MADE, ResultSet(tabulate(points), sources=sources))
    words = Words("en")
    return sections.make_title(inputs, words), sections.describe_results(inputs, words)


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


def test_many_efficiencies_are_a_range() -> None:
    points = [
        replace(measure(name, gpus), runs=(replace(measure(name, gpus).runs[0], throughput=rate),))
        for number, name in enumerate("abcdefg")
        for gpus, rate in ((1, 10.0), (8, 40.0 + number))
    ]
    assert "from a 50.0% (1n8g) to g 57.5% (1n8g)." in summarize(points)[1]


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

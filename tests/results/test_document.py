"""Results written down are read back as they were, and nothing that was changed is believed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.errors import UsageError
from hpcbert.model import (
    Attempt,
    Counted,
    Difference,
    Group,
    Material,
    Measured,
    Note,
    Origin,
    Protocol,
    Provenance,
    Reason,
    Run,
    Shape,
)
from hpcbert.results.document import (
    NodeFacts,
    ResultSet,
    Source,
    parse_results,
    read_results,
    render_results,
    tables_data,
)
from hpcbert.results.formats import FORMATS
from hpcbert.results.reduce import tabulate
from tests.kit.cases import cases

MADE = Provenance("1.2.3", "2026-01-02T03:04:05Z", "hpcbert collect")
# What JSON can hold: no lone halves of characters beyond its first plane.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=8)
speeds = st.floats(1e-3, 1e7)
small_integers = st.integers(1, 9)
listed = st.lists(texts, max_size=2).map(tuple)
attempts = st.builds(
    Attempt,
    *(st.integers(0, 9), texts, texts, texts, listed),
    *(st.none() | st.floats(0, 1e9), st.none() | st.floats(0, 1e9), texts, texts),
)


@st.composite
def draw_run(draw: st.DrawFn, repeat: int) -> Run:
    speed = draw(st.none() | speeds)
    valid = speed is not None and draw(st.booleans())
    return Run(
        repeat=repeat,
        attempt=draw(st.integers(0, 3)),
        throughput=speed,
        valid=valid,
        reasons=() if valid else (Reason("loss", draw(texts)),),
        state=draw(texts),
        state_source=draw(texts),
        log=draw(texts),
        nodes=draw(listed),
        attempts=tuple(draw(st.lists(attempts, max_size=2))),
        environments=draw(st.lists(st.tuples(texts, texts), max_size=2).map(tuple)),
        flags=draw(listed),
        notes=draw(st.lists(st.builds(Note, texts, texts), max_size=2).map(tuple)),
    )


@st.composite
def draw_point(draw: st.DrawFn, group: Group, shape: Shape) -> Measured:
    count = draw(st.integers(0, 4))
    between = st.builds(
        Difference,
        texts,
        st.sampled_from(("nodes", "repeats", "points")),
        st.lists(st.tuples(texts, listed), max_size=2).map(tuple),
    )
    window = st.builds(Counted, st.integers(0, 9), st.none() | st.integers(10, 99), texts)
    return Measured(
        group=group,
        shape=shape,
        asked=count + draw(st.integers(0, 2)),
        runs=tuple(draw(draw_run(number)) for number in range(1, count + 1)),
        flags=draw(listed),
        differences=draw(st.lists(between, max_size=2).map(tuple)),
        counted=draw(st.none() | window),
        origin=draw(st.none() | st.builds(Origin, st.sampled_from(("campaign", "logs")), texts)),
        facts=tuple(draw(st.dictionaries(texts, listed, max_size=3)).items()),
    )


@st.composite
def draw_results(draw: st.DrawFn) -> ResultSet:
    groups = draw(
        st.lists(
            st.builds(Group, names, names, names, small_integers, names, texts),
            max_size=3,
            unique=True,
        )
    )
    shapes = st.lists(
        st.builds(Shape, small_integers, small_integers), min_size=1, max_size=3, unique=True
    )
    measured = [draw(draw_point(group, shape)) for group in groups for shape in draw(shapes)]
    tables = tabulate(measured, require_all=draw(st.booleans()))
    source = Source(
        "campaign",
        draw(texts),
        command=draw(listed),
        protocol=draw(st.none() | st.just(Protocol())),
        materials=(Material("image", draw(texts), draw(texts), draw(texts)),),
        environments=(NodeFacts(draw(texts), draw(listed), {draw(texts): draw(texts)}),),
    )
    return ResultSet(
        tables=tables,
        made=draw(st.none() | st.builds(Provenance, texts, texts, texts)),
        sources=(source,),
        refused=draw(listed),
        warnings=draw(listed),
        left_out=draw(st.lists(st.tuples(texts, texts), max_size=2).map(tuple)),
    )


@given(draw_results())
def test_results_are_read_back_as_they_were(result_set: ResultSet) -> None:
    assert parse_results(render_results(result_set), file="x.json") == result_set


@given(draw_results())
def test_what_collect_writes_is_read_back(result_set: ResultSet) -> None:
    provenance = result_set.made or MADE
    printed = {
        "version": 1,
        "command": "collect",
        "data": tables_data(result_set.tables, provenance),
    }
    for text in (FORMATS["json"].write(result_set.tables, provenance, 0), json.dumps(printed)):
        assert parse_results(text, file="x.json") == ResultSet(result_set.tables, provenance)


def make_run(repeat: int, speed: float) -> Run:
    return Run(repeat, 0, speed, True, (), "COMPLETED", "sacct", f"{repeat}.log")


def make_document() -> Any:
    group = Group("oneflow", "bert-base", "fp32", 32, "rate")
    measured = [
        Measured(group, Shape(1, 1), 3, tuple(make_run(n, 100.0 + n) for n in (1, 2, 3))),
        Measured(group, Shape(1, 4), 3, tuple(make_run(n, 390.0 + n) for n in (1, 2, 3))),
    ]
    return json.loads(render_results(ResultSet(tabulate(measured), MADE)))


def read_refusal(document: object) -> str:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(UsageError) as caught:
        parse_results(text, file="r.json")
    assert caught.value.where == "r.json"
    assert caught.value.message.count("\n") == 0
    return caught.value.message


@cases
def test_damage_is_named_with_its_place(
    place: str, message: str, value: object, missing: bool | None
) -> None:
    document = make_document()
    *path, last = (int(word) if word.isdecimal() else word for word in place.split("."))
    part = document
    for key in path:
        part = part[key]
    if missing:
        del part[last]
    else:
        part[last] = value
    assert message in read_refusal(document)


def test_a_table_twice_is_refused() -> None:
    document = make_document()
    document["tables"] *= 2
    assert "1n1g is in tables[1] and in tables[2]" in read_refusal(document)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["median", "mean", "cv", "speedup"])
def test_what_is_not_finite_is_refused(key: str, value: float) -> None:
    document = make_document()
    document["tables"][0]["rows"][1][key] = value
    assert f"tables[1].rows[2].{key} must be a finite number" in read_refusal(document)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "null", '"x"', "{}", "[" * 5000, '{"tables": 1e999}', "9" * 5000],
    ids=["empty", "half", "list", "number", "null", "text", "object", "deep", "huge", "digits"],
)
def test_what_is_no_document_of_results_is_refused(text: str) -> None:
    assert read_refusal(text)


def test_a_key_twice_is_refused() -> None:
    assert "the key 'tables' appears twice" in read_refusal('{"tables": [], "tables": []}')


def test_what_another_command_printed_is_named() -> None:
    printed = {"version": 1, "command": "monitor", "data": {"campaigns": []}}
    assert "hpcbert monitor printed" in read_refusal(printed)
    later = {"version": 2, "command": "collect", "data": {"tables": []}}
    assert "version 2; this hpcbert reads 1" in read_refusal(later)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe{\x00", "not UTF-8"), (b"", "not valid JSON"), (None, "No such file")],
    ids=["utf-16", "empty", "absent"],
)
def test_a_file_that_is_something_else(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "results.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_results(path)
    assert caught.value.where == str(path)


def test_keys_of_later_versions_are_ignored_and_whole_numbers_are_numbers() -> None:
    document = make_document()
    row = document["tables"][0]["rows"][1]
    row.update(median=392, min=391)
    for part in (document, document["made"], document["tables"][0], row, row["runs"][0]):
        part["later"] = {"more": 1}
    assert parse_results(json.dumps(document), file="r.json") == parse_results(
        json.dumps(make_document()), file="r.json"
    )


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(make_document()), encoding="utf-8-sig")
    assert read_results(path).made == MADE

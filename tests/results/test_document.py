"""Results written down are read back as they were, and nothing that was changed is believed."""

import json
import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert import model
from hpcbert.errors import UsageError
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
from tests.results.test_reduce import MADE, make_point

# What JSON can hold: no lone halves of characters beyond its first plane.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=8)
speeds, counts, seconds = st.floats(1e-3, 1e7), st.integers(1, 9), st.none() | st.floats(0, 1e9)


def draw_some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=2).map(tuple)


KINDS = {
    "str": texts, "int": counts, "Count": counts, "Whole": counts, "float | None": seconds, "tuple[str, ...]": draw_some(texts),
    "tuple[tuple[str, str], ...]": draw_some(st.tuples(texts, texts)),
}  # fmt: skip


def draw(kind: type, /, **changes: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Build a class: its fields by their annotations, or as these say."""
    types = {field.name: str(field.type) for field in fields(kind)}
    known = {name: KINDS[text] for name, text in types.items() if text in KINDS}
    return st.builds(kind, **{**known, **changes})


RUN = {"attempts": draw_some(draw(model.Attempt)), "notes": draw_some(draw(model.Note))}
reasons = st.tuples(draw(model.Reason, code=st.just("loss")))
runs = draw(model.Run, throughput=speeds, valid=st.just(True), reasons=st.just(()), **RUN) | draw(
    model.Run, throughput=st.none() | speeds, valid=st.just(False), reasons=reasons, **RUN
)
scopes = st.sampled_from(("nodes", "repeats", "points"))
values = draw_some(st.tuples(texts, draw_some(texts)))
facts = st.dictionaries(texts, draw_some(texts), max_size=3).map(lambda facts: tuple(facts.items()))
points = draw(
    model.Measured,
    group=draw(model.Group, framework=names, model=names, precision=names, rule=names),
    shape=st.builds(model.Shape, counts, counts),
    runs=draw_some(runs),
    differences=draw_some(st.builds(model.Difference, texts, scopes, values)),
    counted=st.none() | st.builds(model.Counted, counts, st.none() | st.just(99), texts),
    origin=st.none() | st.builds(model.Origin, st.sampled_from(("campaign", "logs")), texts),
    facts=facts,
)
unique_points = st.lists(points, max_size=6, unique_by=lambda point: (point.group, point.shape))
nodes = st.builds(NodeFacts, texts, draw_some(texts), st.dictionaries(texts, texts, max_size=1))
source = st.builds(
    Source, st.just("campaign"), texts, command=draw_some(texts), environments=draw_some(nodes),
    materials=st.tuples(draw(model.Material, kind=st.just("image"))),
    protocol=st.none() | st.just(model.Protocol()),
)  # fmt: skip
results = draw(
    ResultSet, tables=st.builds(tabulate, unique_points, require_all=st.booleans()),
    made=st.none() | draw(model.Provenance), sources=st.tuples(source),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40)
@given(results)
def test_results_and_what_collect_writes_are_read_back_as_they_were(results):
    assert parse_results(render_results(results), file="x.json") == results
    provenance = results.made or MADE
    data = tables_data(results.tables, provenance)
    printed = json.dumps({"version": 1, "command": "collect", "data": data})
    for text in (FORMATS["json"].write(results.tables, provenance, 0), printed):
        assert parse_results(text, file="x.json") == ResultSet(results.tables, provenance)


def make_document() -> Any:
    points = [make_point("1n1g", [101.0, 102.0, 103.0]), make_point("1n4g", [391.0, 392.0, 393.0])]
    return json.loads(render_results(ResultSet(tabulate(points), MADE)))


def read_refusal(document: object) -> str:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(UsageError) as caught:
        parse_results(text, file="r.json")
    assert caught.value.where == "r.json"
    assert caught.value.message.count("\n") == 0
    return caught.value.message


@cases
def test_damage_is_named_with_its_place(place, message, value, missing):
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


def test_what_is_not_finite_or_no_document_of_results_is_refused():
    for key in ("median", "mean", "cv", "speedup"):
        for value in (math.nan, math.inf, -math.inf):
            document = make_document()
            document["tables"][0]["rows"][1][key] = value
            assert f"tables[1].rows[2].{key} must be a finite number" in read_refusal(document)
    huge = ("[" * 5000, '{"tables": 1e999}', "9" * 5000)
    for text in ("", "{", "[]", "7", "null", '"x"', "{}", *huge):
        assert read_refusal(text)


def test_what_is_there_twice_or_is_of_another_command_is_named():
    document = make_document()
    document["tables"] *= 2
    assert "1n1g is in tables[1] and in tables[2]" in read_refusal(document)
    assert "the key 'tables' appears twice" in read_refusal('{"tables": [], "tables": []}')
    printed = {"version": 1, "command": "monitor", "data": {"campaigns": []}}
    assert "hpcbert monitor printed" in read_refusal(printed)
    later = {"version": 2, "command": "collect", "data": {"tables": []}}
    assert "version 2; this hpcbert reads 1" in read_refusal(later)


def test_a_file_that_is_something_else(tmp_path):
    path = tmp_path / "results.json"
    for content, message in (
        (None, "No such file"), (b"\xff\xfe{\x00", "not UTF-8"), (b"", "not valid JSON"),
    ):  # fmt: skip
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=message) as caught:
            read_results(path)
        assert caught.value.where == str(path)
    # A byte order mark is no damage.
    path.write_text(json.dumps(make_document()), encoding="utf-8-sig")
    assert read_results(path).made == MADE


def test_keys_of_later_versions_are_ignored_and_whole_numbers_are_numbers():
    document = make_document()
    plain = parse_results(json.dumps(document), file="r.json")
    row = document["tables"][0]["rows"][1]
    row.update(median=392, min=391)
    for part in (document, document["made"], document["tables"][0], row, row["runs"][0]):
        part["later"] = {"more": 1}
    assert parse_results(json.dumps(document), file="r.json") == plain

"""Results written down are read back as they were, and nothing that was changed is believed."""

import json
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert import model
from hpcbert.errors import UsageError
from hpcbert.results import document as documents
from hpcbert.results.document import ResultSet, parse_results, render_results
from hpcbert.results.formats import FORMATS
from hpcbert.results.reduce import tabulate
from tests.kit.cases import cases
from tests.results.test_reduce import MADE, make_point


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_results_and_what_collect_writes_are_read_back_as_they_were(data):
    # What JSON can hold: no lone halves of characters beyond its first plane.
    texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
    names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=8)
    speeds, counts = st.floats(1e-3, 1e7), st.integers(1, 9)

    def draw_some(values):
        return st.lists(values, max_size=2).map(tuple)

    kinds = {
        "str": texts, "int": counts, "Count": counts, "Whole": counts,
        "float | None": st.none() | st.floats(0, 1e9), "tuple[str, ...]": draw_some(texts),
        "tuple[tuple[str, str], ...]": draw_some(st.tuples(texts, texts)),
    }  # fmt: skip

    def draw(kind, /, **changes):
        """Build a class: its fields by their annotations, or as these say."""
        types = {field.name: str(field.type) for field in fields(kind)}
        known = {name: kinds[text] for name, text in types.items() if text in kinds}
        return st.builds(kind, **{**known, **changes})

    marks = {"attempts": draw_some(draw(model.Attempt)), "notes": draw_some(draw(model.Note))}
    reasons = {True: st.just(()), False: st.tuples(draw(model.Reason, code=st.just("loss")))}
    rates = {True: speeds, False: st.none() | speeds}
    runs = st.one_of([
        draw(model.Run, throughput=rates[ok], valid=st.just(ok), reasons=reasons[ok], **marks)
        for ok in (True, False)
    ])  # fmt: skip
    scopes = st.sampled_from(("nodes", "repeats", "points"))
    values = draw_some(st.tuples(texts, draw_some(texts)))
    facts = st.dictionaries(texts, draw_some(texts), max_size=3)
    points = draw(
        model.Measured,
        group=draw(model.Group, framework=names, model=names, precision=names, rule=names),
        shape=st.builds(model.Shape, counts, counts),
        runs=draw_some(runs),
        differences=draw_some(st.builds(model.Difference, texts, scopes, values)),
        window=st.none() | st.builds(model.Counted, counts, st.none() | st.just(99), texts),
        origin=st.none() | st.builds(model.Origin, st.sampled_from(("campaign", "logs")), texts),
        facts=facts.map(lambda facts: tuple(facts.items())),
    )
    unique = st.lists(points, max_size=6, unique_by=lambda point: (point.group, point.shape))
    nodes = st.builds(
        documents.NodeFacts, texts, draw_some(texts), st.dictionaries(texts, texts, max_size=1)
    )
    source = st.builds(
        documents.Source, st.just("campaign"), texts, command=draw_some(texts),
        materials=st.tuples(draw(model.Material, kind=st.just("image"))),
        environments=draw_some(nodes), protocol=st.none() | st.just(model.Protocol()),
    )  # fmt: skip
    tables = st.builds(tabulate, unique, require_all=st.booleans())
    made = st.none() | draw(model.Provenance)
    results = data.draw(draw(ResultSet, tables=tables, made=made, sources=st.tuples(source)))
    assert parse_results(render_results(results), file="x.json") == results
    provenance = results.made or MADE
    content = documents.tables_data(results.tables, provenance)
    printed = json.dumps({"version": 1, "command": "collect", "data": content})
    for text in (FORMATS["json"].write(results.tables, provenance, 0), printed):
        assert parse_results(text, file="x.json") == ResultSet(results.tables, provenance)


def make_document():
    points = [make_point("1n1g", [101.0, 102.0, 103.0]), make_point("1n4g", [391.0, 392.0, 393.0])]
    return json.loads(render_results(ResultSet(tabulate(points), MADE)))


def read_refusal(document):
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


def test_what_is_there_twice_or_no_document_of_results_is_refused():
    huge = ("[" * 5000, '{"tables": 1e999}', "9" * 5000)
    for text in ("", "{", "[]", "7", "null", '"x"', "{}", *huge):
        assert read_refusal(text)
    # What is there twice, or is of another command, is named.
    document = make_document()
    document["tables"] *= 2
    assert "1n1g is there 2 times" in read_refusal(document)
    assert "the key 'tables' appears twice" in read_refusal('{"tables": [], "tables": []}')
    printed = {"version": 1, "command": "monitor", "data": {"campaigns": []}}
    assert "there are no tables" in read_refusal(printed)
    later = {"version": 2, "command": "collect", "data": {"tables": []}}
    assert "version 2; this hpcbert reads 1" in read_refusal(later)


def test_a_file_that_is_something_else_is_refused_and_keys_of_later_versions_are_ignored(tmp_path):
    path = tmp_path / "results.json"
    for content, message in (
        (None, "No such file"), (b"\xff\xfe{\x00", "can't be read"), (b"", "not valid JSON"),
    ):  # fmt: skip
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=message) as caught:
            documents.read_results(path)
        assert caught.value.where == str(path)
    # A byte order mark is no damage.
    path.write_text(json.dumps(make_document()), encoding="utf-8-sig")
    assert documents.read_results(path).made == MADE
    # Keys of later versions are ignored, and whole numbers are numbers.
    document = make_document()
    plain = parse_results(json.dumps(document), file="r.json")
    row = document["tables"][0]["rows"][1]
    row.update(median=392, min=391)
    for part in (document, document["made"], document["tables"][0], row, row["runs"][0]):
        part["later"] = {"more": 1}
    assert parse_results(json.dumps(document), file="r.json") == plain

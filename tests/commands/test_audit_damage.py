"""A record that anybody may have written into: an answer, never a crash, and never a false peace."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbert.campaign import evidence
from tests.kit.campaigns import collect_campaigns, node, report_states, write_nodes
from tests.kit.cli import run

pytestmark = pytest.mark.slow


@pytest.fixture
def finished(build: Any) -> Any:
    built = build("1n1g", repeats=2)
    for repeat in (1, 2):
        built.complete("1n1g", repeat, 10.0)
        write_nodes(built.directory, built.array("1n1g"), repeat, node())
    collect_campaigns(built.directory, states=report_states())
    return built


def list_paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    return [path, *(place for key, value in inner for place in list_paths(value, (*path, key)))]


def replace_value(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(data)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


LOG = "logs/pytorch/bert/bz4/1n1g/bert_b4_fp32_1.log"
DAMAGES = {
    "runs": lambda data: data.update(runs=3),
    "a run": lambda data: data.update(runs=[{}]),
    "rule": lambda data: data.update(rule=["x"]),
    "window": lambda data: data["evidence"].update(window=[]),
    "history": lambda data: data["evidence"].update(history=3),
    "manifest": lambda data: data["evidence"].update(manifest=None),
    "a file": lambda data: data["evidence"]["files"].update({LOG: None}),
    "a path": lambda data: data["evidence"]["files"].update({"../../etc/passwd": {"bytes": 1}}),
    "a state": lambda data: data["runs"][0].update(scheduler={"nodes": [1], "x": 2}),
}


@pytest.mark.parametrize("text", [*DAMAGES, "", "[]", "{", '{"evidence": 3}', '{"evidence": {}}'])
def test_a_damaged_record_is_answered(finished: Any, text: str) -> None:
    path = finished.directory / "measurements.json"
    data = json.loads(path.read_text())
    if text in DAMAGES:
        DAMAGES[text](data)
    path.write_text(json.dumps(data) if text in DAMAGES else text)
    assert run("audit", finished.directory).returncode in ({5} if text in DAMAGES else {2, 4})


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), sealed=st.booleans())
def test_any_change_of_the_record_is_answered(finished: Any, data: Any, sealed: bool) -> None:
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
        max_leaves=6,
    )
    path: Path = finished.directory / "measurements.json"
    directory = finished.directory / "kept"
    if not directory.exists():
        directory.write_text(path.read_text())
    before = json.loads(directory.read_text())
    place = data.draw(st.sampled_from(list_paths(before)[1:]))
    after = replace_value(before, place, data.draw(values))
    if sealed and isinstance(after, dict):
        after["seal"] = evidence.compute_seal(after)
    path.write_text(json.dumps(after))
    result = run("audit", finished.directory)
    same = evidence.encode_canonical(after) == evidence.encode_canonical(before)
    assert result.returncode in ({0} if same else {0, 4, 5} if sealed else {4, 5})
    assert result.returncode == 0 or "error: " in result.stderr

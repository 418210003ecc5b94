"""Every key known, every value of its type, every error with its place: for TOML and for JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbert.errors import ConfigError
from hpcbert.model import Shape
from hpcbert.system.decode import GIVEN, Count, Invalid, Range, TableKeys, decode, did_you_mean
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases


@dataclass(frozen=True)
class Inner:
    name: Annotated[str, GIVEN]
    rate: float = 1.0


@dataclass(frozen=True)
class Rule:
    kind: Literal["clock", "rate"]
    factor: float = 1.0

    @classmethod
    def narrowed(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"factor": int} if values.get("kind") == "clock" else {}


@dataclass(frozen=True)
class Outer:
    where: Annotated[str, GIVEN]
    needed: str
    nodes: Count = 4
    exclusive: bool = True
    floor: Annotated[float, Range(0.1, 3600)] = 10.0
    runtime: Literal["none", "pyxis"] = "none"
    words: tuple[str, ...] = ()
    pair: tuple[str, int] = ("a", 1)
    value: str | int | float | bool = ""
    uid: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[Literal["fp32", "fp16"], Count] = field(default_factory=dict)
    named: Mapping[str, Inner] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    limit: TimeLimit | None = None
    shape: Shape | None = None
    folder: Path = Path("/")
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.needed == self.where:
            raise Invalid("is where it came from", "Name another.", key="needed")


def outer(**values: Any) -> Outer:
    return decode(Outer, {"needed": "x", **values}, file="a.toml", where="a.toml")


def test_values_have_the_types_of_their_fields() -> None:
    decoded = outer(
        nodes=8, floor=2, words=["--x"], pair=["b", 2], uid=0, env={"A": "1"}, folder="/x",
        sizes={"fp32": 4}, named={"one": {"rate": 3}}, rules=[{"kind": "rate"}], limit=None,
        extra={"any": [1]},
    )  # fmt: skip
    assert (decoded.where, decoded.nodes, decoded.floor, decoded.words) == (
        "a.toml",
        8,
        2.0,
        ("--x",),
    )
    assert (decoded.pair, decoded.uid, decoded.env, decoded.folder) == (
        ("b", 2),
        0,
        {"A": "1"},
        Path("/x"),
    )
    assert (decoded.sizes, decoded.named) == ({"fp32": 4}, {"one": Inner("one", 3.0)})
    assert (decoded.rules, decoded.extra) == ((Rule("rate"),), {"any": [1]})
    assert outer() == Outer("a.toml", "x")


@cases
def test_an_error_names_file_key_and_value(values: dict[str, Any], says: str, hint: str) -> None:
    document = json.loads(json.dumps(values))  # arrays as lists
    with pytest.raises(ConfigError) as caught:
        outer(**document)
    assert str(caught.value) == f"a.toml: {says}"
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


def test_a_missing_key_is_named_and_what_is_given_is_no_key() -> None:
    with pytest.raises(ConfigError, match=r"a\.toml: needed is missing\."):
        decode(Outer, {}, file="a.toml", where="")
    with pytest.raises(ConfigError, match="where is not known"):
        outer(where="b")
    with pytest.raises(ConfigError, match=r"x: log\.needed is missing\."):
        decode(Outer, {}, file="x", path="log", where="")


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.dictionaries(
        (st.sampled_from([name for name in Outer.__dataclass_fields__ if name != "where"])),
        (
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
                lambda inner: (
                    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
                ),
                max_leaves=5,
            )
        ),
        max_size=4,
    )
)
def test_any_document_is_read_or_refused_with_its_place(values: dict[str, Any]) -> None:
    message = ""
    try:
        outer(**values)
    except ConfigError as error:
        message = error.message
    assert not message or message.startswith((*values, "needed"))


def test_did_you_mean_lists_all_where_nothing_is_near() -> None:
    assert did_you_mean("zzz", ["oneflow", "pytorch"]) == "Known here: oneflow, pytorch."
    assert did_you_mean("zzz", [""]) == ""


@dataclass(frozen=True)
class Placed:
    pairs: tuple[Annotated[tuple[str, int], TableKeys("node", "gpus")], ...]


def test_a_keyed_tuple_is_a_table() -> None:
    document = {"pairs": [{"node": "n1", "gpus": 8, "later": 1}]}
    assert decode(Placed, document, file="f") == Placed((("n1", 8),))


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ({"node": "n1"}, "pairs[1].gpus is missing"),
        ({"node": "n1", "gpus": "8"}, "pairs[1].gpus must be a whole number"),
        (["n1", 8], "pairs[1] must be a table"),
    ],
    ids=["missing key", "wrong type", "array"],
)
def test_a_keyed_tuple_names_the_wrong_key(pair: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(Placed, {"pairs": [pair]}, file="f")
    assert message in caught.value.message

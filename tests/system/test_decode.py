"""Every key known, every value of its type, every error with its place: for TOML and for JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.errors import ConfigError
from hpcbert.model import Shape
from hpcbert.system.decode import GIVEN, Count, Invalid, Range, TableKeys, decode, did_you_mean
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import ANY_JSON, cases, read_constant


@dataclass(frozen=True)
class Rule:
    kind: Literal["clock", "rate"]
    factor: float = 1.0
    name: Annotated[str, GIVEN] = ""

    @classmethod
    def narrowed(cls, values):
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
    placed: tuple[Annotated[tuple[str, int], TableKeys("node", "gpus")], ...] = ()
    value: str | int | float | bool = ""
    uid: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[Literal["fp32", "fp16"], Count] = field(default_factory=dict)
    named: Mapping[str, Rule] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    limit: TimeLimit | None = None
    shape: Shape | None = None
    folder: Path = Path("/")
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.needed == self.where:
            raise Invalid("is where it came from", "Name another.", key="needed")


def outer(**values):
    return decode(Outer, {"needed": "x", **values}, file="a.toml", where="a.toml")


def test_values_have_the_types_of_their_fields():
    values = json.loads(json.dumps(read_constant(__file__, "VALUES")))  # arrays as lists
    assert outer(**values, limit=None) == Outer(
        "a.toml", "x", nodes=8, floor=2.0, words=("--x",), pair=("b", 2), placed=(("n1", 8),), uid=0,
        env={"A": "1"}, sizes={"fp32": 4}, named={"one": Rule("rate", 3.0, "one")}, rules=(Rule("rate"),),
        folder=Path("/x"), extra={"any": [1]},
    )  # fmt: skip
    assert outer() == Outer("a.toml", "x")
    # A missing key is named, and what the reader sets is none.
    with pytest.raises(ConfigError, match=r"a\.toml: needed is missing\."):
        decode(Outer, {}, file="a.toml", where="")
    with pytest.raises(ConfigError, match="where is not known"):
        outer(where="b")
    with pytest.raises(ConfigError, match=r"x: log\.needed is missing\."):
        decode(Outer, {}, file="x", path="log", where="")
    assert did_you_mean("zzz", ["oneflow", "pytorch"]) == "Known here: oneflow, pytorch."
    assert did_you_mean("zzz", [""]) == ""


@cases
def test_an_error_names_file_key_and_value(values, says, hint):
    with pytest.raises(ConfigError) as refusal:
        outer(**json.loads(json.dumps(values)))
    assert str(refusal.value) == f"a.toml: {says}"
    assert hint in refusal.value.hint
    assert refusal.value.exit_code == 2


@given(st.data())
def test_any_document_is_read_or_refused_with_its_place(data):
    keys = st.sampled_from([*Outer.__dataclass_fields__][1:])
    values = data.draw(st.dictionaries(keys, ANY_JSON, max_size=4))
    try:
        outer(**values)
    except ConfigError as error:
        assert error.message.startswith((*values, "needed"))  # noqa: PT017

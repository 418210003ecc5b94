"""Data classes and patterns that are made ready when they are used: nobody sees a difference."""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, replace
from typing import Any

import pytest

from hpcbert.system import lazy


@lazy.dataclass(frozen=True)
class Kept:
    one: int
    more: tuple[str, ...] = ()


def classes() -> tuple[type, type]:
    """Return a data class and one made of it, both new."""

    @lazy.dataclass(frozen=True)
    class Base:
        one: int
        names: list[str] = field(default_factory=list)

    @lazy.dataclass(frozen=True)
    class Derived(Base):
        two: str = "b"

        def __repr__(self) -> str:
            return "its own"

    return Base, Derived


def ready(made: type) -> bool:
    return made not in lazy._waiting


USES: dict[str, Callable[[type], Any]] = {
    "made": lambda made: made(1),
    "fields": dataclasses.fields,
    "known": dataclasses.is_dataclass,
    "a data class of it": lambda made: dataclasses.make_dataclass("New", [], bases=(made,), frozen=True),
}  # fmt: skip


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_class_is_ready_once_it_is_used(use: Callable[[type], Any]) -> None:
    base, derived = classes()
    assert not ready(base)
    use(base)
    assert ready(base)
    assert not ready(derived)
    use(derived)
    assert ready(derived)


def test_what_is_used_first_may_be_the_derived_one() -> None:
    base, derived = classes()
    one = derived(1, ["x"], "c")
    assert ready(base)
    assert (one.one, one.names, one.two) == (1, ["x"], "c")
    assert repr(one) == "its own"
    assert [each.name for each in dataclasses.fields(derived)] == ["one", "names", "two"]


def test_it_is_a_frozen_data_class() -> None:
    base, _ = classes()
    one = base(1)
    assert one == base(1) != base(2)
    assert replace(one, one=2) == base(2)
    assert dataclasses.asdict(one) == {"one": 1, "names": []}
    assert "Base(one=1" in repr(one)
    with pytest.raises(FrozenInstanceError):
        one.one = 3
    with pytest.raises(FrozenInstanceError):
        del one.one
    with pytest.raises(TypeError, match="missing 1 required"):
        base()


@pytest.mark.parametrize("name", ["__eq__", "__hash__", "__repr__", "__setattr__"])
def test_one_that_came_without_being_made_is_as_good(name: str) -> None:
    """As pickle makes it in another process."""
    base, _ = classes()
    one: Any = object.__new__(base)
    one.__dict__.update(one=1, names=())
    if name == "__setattr__":
        with pytest.raises(FrozenInstanceError):
            one.one = 3
    else:
        done = {"__eq__": lambda: one == one, "__hash__": lambda: hash(one), "__repr__": lambda: repr(one)}  # fmt: skip  # noqa: PLR0124
        assert done[name]()
        assert ready(base)
    assert one == base(1, ())


@pytest.mark.parametrize(
    ("values", "named", "said"),
    [
        ((), {}, "missing 1 required positional argument: 'one'"),
        ((1, [], 3), {}, "takes from 1 to 2 positional arguments but 3 were given"),
        ((1,), {"one": 1}, "got multiple values for argument 'one'"),
        ((1,), {"two": 1}, "got an unexpected keyword argument 'two'"),
    ],
    ids=["missing", "too many", "twice", "unknown"],
)
def test_wrong_arguments_are_refused(
    values: tuple[object, ...], named: dict[str, object], said: str
) -> None:
    base, _ = classes()
    with pytest.raises(TypeError, match=rf"Base\.__init__\(\) {said}"):
        base(*values, **named)


def test_defaults_are_each_objects_own() -> None:
    base, derived = classes()
    one, two = base(1), base(2)
    assert list(vars(one)) == ["one", "names"]
    assert one.names == two.names == []
    assert one.names is not two.names
    assert derived(1).two == "b"


def test_no_code_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    base, derived = classes()
    generated: list[str] = []

    def note(text: str, *words: Any) -> None:
        if "\n def " in text:  # Python 3.13 and later also run a text without a function in it.
            generated.append(text)
        exec(text, *words)

    monkeypatch.setattr(dataclasses, "exec", note, raising=False)
    assert base(1) == base(1)
    assert not generated
    derived(1)
    assert generated
    assert not any("def __init__" in text or "def __eq__" in text for text in generated)


def test_other_kinds_are_made_at_once() -> None:
    @lazy.dataclass
    class Open:
        one: int = 0

    @lazy.dataclass(frozen=True, order=True)
    class Ordered:
        one: int

    assert ready(Open)
    assert Open(1) == Open(1)
    assert Ordered(1) < Ordered(2)


def test_it_can_be_pickled_and_hashed() -> None:
    one = Kept(1, ("a",))
    assert pickle.loads(pickle.dumps(one)) == one
    assert {one: 1}[Kept(1, ("a",))] == 1


def test_where_there_are_threads_nothing_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    base, derived = classes()
    monkeypatch.setattr(lazy, "_at_once", False)
    lazy.make_all_ready()
    assert ready(base)
    assert ready(derived)
    later, _ = classes()
    assert ready(later)


def test_a_pattern_is_compiled_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = re.compile

    def note(text: str, flags: int = 0) -> re.Pattern[str]:
        compiled.append(text)
        return real(text, flags)

    monkeypatch.setattr(re, "compile", note)
    digits = lazy.regex(r"(\d+)x", re.IGNORECASE)
    assert compiled == []
    assert [one[1] for one in digits.finditer("1x 23X")] == ["1", "23"]
    assert digits.sub("y", "4x") == "y"
    assert digits.fullmatch("5X")
    assert digits.pattern == r"(\d+)x"
    assert set(compiled) == {r"(\d+)x"}

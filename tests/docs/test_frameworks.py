"""The page of real runs is what the rows on record give, and speaks of every recipe."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.kit.paths import REPOSITORY
from tests.kit.recipes import NAMES


@pytest.fixture(scope="module")
def real() -> ModuleType:
    spec = importlib.util.spec_from_file_location("real", REPOSITORY / "benchmarks" / "real.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["real"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_rows_give(real: Any) -> None:
    text = real.PAGE.read_text(encoding="utf-8")
    assert text == real.page(real.read(), real.known(), text)
    assert [framework.name for framework in real.known() if framework.has_script] == list(NAMES)
    for framework in real.known():
        assert f"\n| {framework.name} | " in text


def test_rows_are_of_recipes_that_can(real: Any) -> None:
    able = {framework.name for framework in real.known() if "cpu" in framework.devices}
    rows = real.read()
    assert {row.framework for row in rows} <= able
    places = [(row.framework, row.ranks) for row in rows]
    assert len(set(places)) == len(places)
    assert all(row.samples_per_second or row.result for row in rows)


@pytest.mark.torch
def test_what_was_prepared_is_named(real: Any, tmp_path: Path) -> None:
    (pytorch,) = (framework for framework in real.known() if framework.name == "pytorch")
    program, packages, _ = real.described(pytorch, [])
    assert program == "hpcbert's own"
    assert packages.startswith("torch==")

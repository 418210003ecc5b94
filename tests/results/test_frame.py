from __future__ import annotations

import math
from typing import Any

import pytest

from hpcbert.model import Group, Measured, Reason, Run, Shape
from hpcbert.results.reduce import tabulate


@pytest.fixture(scope="module")
def frame() -> Any:
    return pytest.importorskip("hpcbert.results.frame", reason="needs pandas", exc_type=ImportError)


def test_tables_become_data_frames(frame: Any) -> None:
    group = Group("oneflow", "bert-base", "fp32", 32, "rate")
    bad = Run(2, 0, None, False, (Reason("loss", "nan"),), "FAILED", "sacct", "b.log")
    good = Run(1, 0, 140.5, True, (), "COMPLETED", "sacct", "a.log")
    eight = Measured(group, Shape(1, 8), 1, (bad,))
    tables = tabulate([Measured(group, Shape(1, 1), 2, (good, bad)), eight])
    rows, runs = frame.rows_frame(tables), frame.runs_frame(tables)
    assert rows["gpus"].tolist() == [1, 8]
    assert rows["median"].tolist()[0] == 140.5
    assert math.isnan(rows["median"].tolist()[1])
    assert rows["flags"].tolist() == ["single-run incomplete", "incomplete"]
    assert runs["valid"].tolist() == [True, False, False]
    assert runs["reasons"].tolist() == ["", "loss: nan", "loss: nan"]
    assert str(runs["throughput"].dtype) == "float64"


def test_no_tables_become_empty_frames(frame: Any) -> None:
    assert frame.rows_frame(()).empty
    assert "throughput" in frame.runs_frame(()).columns

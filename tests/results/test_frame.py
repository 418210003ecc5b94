from __future__ import annotations

import math

from hpcbert.results import frame
from hpcbert.results.reduce import tabulate
from tests.results.test_formats import GROUP, make_point


def test_tables_become_data_frames() -> None:
    points = [make_point(GROUP, "1n1g", [140.5, None]), make_point(GROUP, "1n8g", [None])]
    rows, runs = frame.rows_frame(tabulate(points)), frame.runs_frame(tabulate(points))
    assert rows["gpus"].tolist() == [1, 8]
    assert rows["median"].tolist()[0] == 140.5
    assert math.isnan(rows["median"].tolist()[1])
    assert rows["flags"].tolist() == ["single-run incomplete", "incomplete"]
    assert runs["valid"].tolist() == [True, False, False]
    assert runs["reasons"].tolist() == ["", *["loss: the loss is nan at iteration 7"] * 2]
    assert str(runs["throughput"].dtype) == "float64"
    assert frame.rows_frame(()).empty
    assert "throughput" in frame.runs_frame(()).columns

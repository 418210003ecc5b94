"""`hpcbert.load`: data frames with types, units and where they come from."""

import math
import sys
from pathlib import Path

import pytest

import hpcbert
from hpcbert.errors import UsageError
from hpcbert.results.words import Words
from tests.kit import cli
from tests.kit.campaigns import node, write_nodes
from tests.kit.logs import log, write_file

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_directory")]


@pytest.fixture
def campaign(build):
    """A campaign of two points, of which one repeat of six failed."""
    built = build("1n1g", "1n2g", repeats=3, scheduler="local").finish()
    built.ended("1n2g", 3, code=1)
    for array in built.campaign.arrays:
        write_nodes(built.directory, array, 1, node("n1"))
    return built.directory


def test_frames_hold_what_collect_holds_and_the_steps_of_the_window(campaign):
    result = hpcbert.load(campaign)
    (table,) = cli.run("collect", campaign, "--json").data["tables"]
    for row, line in zip(table["rows"], result.rows.to_dict("records"), strict=True):
        for name in ("median", "mean", "min", "max", "cv", "speedup", "nodes", "gpus"):
            assert line[name] == row[name]
        assert line["flags"].split() == row["flags"]
    runs = [run for row in table["rows"] for run in row["runs"]]
    assert result.runs["valid"].tolist() == [run["valid"] for run in runs]
    assert math.isnan(result.runs["throughput"].tolist()[-1])
    assert result.runs["reasons"].tolist()[-1].startswith("state:")
    # 10 of 12 iterations, of five runs that count; a clock tells nothing of the first.
    assert len(result.steps) == 5 * 11
    assert result.steps["measured"].sum() == 5 * 10
    first = result.steps[(result.steps["gpus"] == 1) & (result.steps["repeat"] == 1)]
    assert first["seconds"].median() == pytest.approx(4 / 10.0, rel=1e-4)
    facts = result.environment.set_index("fact")["value"]
    assert facts["GPU"] == "NVIDIA A100-SXM4-80GB"
    assert set(result.environment["node"]) == {"n1"}


def test_columns_have_their_types_where_no_run_counts(campaign, tmp_path):
    write_file(tmp_path, "a/pytorch/1n2g/bert_b4_fp32_1.log", log("1n2g", 20.0, iters=120, last=9))
    result, nothing = hpcbert.load(campaign), hpcbert.load(tmp_path / "a")
    for name in ("rows", "runs", "steps", "environment"):
        assert getattr(nothing, name).dtypes.to_dict() == getattr(result, name).dtypes.to_dict()
    assert nothing.steps.empty
    assert nothing.rows["median"].isna().all()
    assert {str(dtype) for dtype in result.rows.dtypes} <= {"string", "int64", "float64"}
    write_file(tmp_path, "b/pytorch/1n1g/bert_b4_fp32_1.log", log("1n1g", 20.0, iters=120))
    environment = hpcbert.load(tmp_path / "b").environment  # of what logs state
    assert set(environment["node"]) == {""}
    assert "precision" in set(environment["fact"])


def test_frames_survive_parquet_and_saved_results_have_no_steps(campaign, tmp_path, monkeypatch):
    pd, result = pytest.importorskip("pandas"), hpcbert.load(campaign)
    for file in result.to_parquet(tmp_path / "new" / "frames"):
        back, original = pd.read_parquet(file), getattr(result, file.stem)
        assert back.attrs == original.attrs
        assert back.attrs["hpcbert"] == hpcbert.__version__
        assert [source["name"] for source in back.attrs["sources"]] == [campaign.name]
        pd.testing.assert_frame_equal(back, original)
    cli.run("report", campaign, "--output", "out", status=4)
    again = hpcbert.load(Path("out/results.json"))
    pd.testing.assert_frame_equal(again.rows, result.rows)
    pd.testing.assert_frame_equal(again.runs, result.runs)
    assert again.steps.empty
    assert "--output FILE" in cli.run("collect", campaign, "--format", "parquet", status=2).stderr
    cli.run("collect", campaign, "--output", "rows.parquet", status=4)
    frame = pd.read_parquet("rows.parquet")
    assert frame["gpus"].tolist() == [1, 2]
    assert frame.attrs["command"].startswith("hpcbert")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow"):
        result.to_parquet(campaign)


def test_figures_are_those_of_a_report_and_what_is_absent_is_refused(campaign, build):
    result = hpcbert.load(campaign)
    assert [axes.get_ylabel() for axes in result.plot().axes] == ["samples/s", "efficiency"]
    assert result.plot("runs-1", language="zh").axes[0].get_ylabel() == Words("zh")("axis.distance")
    with pytest.raises(UsageError) as caught:
        result.plot("nothing")
    assert "scaling-1" in caught.value.hint
    rehearsal = build("1n1g", name="20261122-pytorch-rehearsal", rehearse=True).finish()
    with pytest.raises(UsageError, match="no figure"):
        hpcbert.load(rehearsal.directory).plot()
    with pytest.raises(UsageError, match="no such file"):
        hpcbert.load("absent/logs")
    with pytest.raises(AttributeError):
        _ = hpcbert.nothing

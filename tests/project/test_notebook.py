"""`hpcbert.load`: data frames with types, units and where they come from."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hpcbert
from hpcbert.errors import UsageError
from hpcbert.results.report.model import Words
from tests.kit import cli
from tests.kit.campaigns import node, write_nodes
from tests.kit.cli import UNCOUNTED, Cli
from tests.kit.logs import log, write_file

if TYPE_CHECKING:  # With pandas: all workers collect these tests, and one runs them.
    from hpcbert.notebook import LoadedResult

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pd() -> Any:
    return pytest.importorskip("pandas")


@pytest.fixture
def campaign(build: Callable[..., Any], empty_directory: None) -> Path:
    built = build("1n1g", "1n2g", repeats=3, scheduler="local")
    for shape, gpus in (("1n1g", 1), ("1n2g", 2)):
        for repeat in (1, 2):
            built.complete(shape, repeat, gpus * (9.0 + repeat))
            write_nodes(built.directory, built.array(shape), repeat, node("n1"))
    built.complete("1n1g", 3, 12.0)
    built.log("1n2g", 3, built.text("1n2g", 24.0, last=5))
    built.started("1n2g", 3)
    built.ended("1n2g", 3, code=1)
    directory: Path = built.directory
    return directory


@pytest.fixture
def result(campaign: Path) -> LoadedResult:
    return hpcbert.load(campaign)


def test_frames_hold_what_collect_holds(campaign: Path, result: LoadedResult) -> None:
    (table,) = cli.run("collect", campaign, "--json").data["tables"]
    for row, line in zip(table["rows"], result.rows.to_dict("records"), strict=True):
        for name in ("median", "mean", "min", "max", "cv", "speedup", "nodes", "gpus"):
            assert line[name] == row[name]
        assert line["flags"].split() == row["flags"]
    runs = [run for row in table["rows"] for run in row["runs"]]
    assert result.runs["valid"].tolist() == [run["valid"] for run in runs]
    assert math.isnan(result.runs["throughput"].tolist()[-1])
    assert result.runs["reasons"].tolist()[-1].startswith("state:")


def test_columns_have_types_whatever_is_in_them(result: LoadedResult, tmp_path: Path) -> None:
    write_file(tmp_path, "pytorch/1n2g/bert_b4_fp32_1.log", log("1n2g", 20.0, iters=120, last=9))
    nothing = hpcbert.load(tmp_path / "pytorch")
    for name in ("rows", "runs", "steps", "environment"):
        assert getattr(nothing, name).dtypes.to_dict() == getattr(result, name).dtypes.to_dict()
    assert nothing.steps.empty
    assert nothing.rows["median"].isna().all()
    assert {str(dtype) for dtype in result.rows.dtypes} <= {"string", "int64", "float64"}


def test_steps_are_those_of_the_window(result: LoadedResult) -> None:
    # 10 of 12 iterations, of five runs that count; a clock tells nothing of the first.
    assert len(result.steps) == 5 * 11
    assert result.steps["measured"].sum() == 5 * 10
    first = result.steps[(result.steps["gpus"] == 1) & (result.steps["repeat"] == 1)]
    assert first["seconds"].median() == pytest.approx(4 / 10.0, rel=1e-4)


def test_the_environment_is_of_nodes_or_of_what_logs_state(
    result: LoadedResult, tmp_path: Path
) -> None:
    facts = result.environment.set_index("fact")["value"]
    assert facts["GPU"] == "NVIDIA A100-SXM4-80GB"
    assert set(result.environment["node"]) == {"n1"}
    write_file(tmp_path, "pytorch/1n1g/bert_b4_fp32_1.log", log("1n1g", 20.0, iters=120))
    logs = hpcbert.load(tmp_path / "pytorch").environment
    assert set(logs["node"]) == {""}
    assert "precision" in set(logs["fact"])


def test_attributes_say_where_numbers_come_from(
    campaign: Path, result: LoadedResult, tmp_path: Path, pd: Any
) -> None:
    for frame in (result.rows, result.runs, result.steps, result.environment):
        assert frame.attrs["hpcbert"] == hpcbert.__version__
        assert [source["name"] for source in frame.attrs["sources"]] == [campaign.name]
    for file in result.to_parquet(tmp_path / "new" / "frames"):
        back = pd.read_parquet(file)
        original = getattr(result, file.stem)
        assert back.attrs == original.attrs
        pd.testing.assert_frame_equal(back, original)


def test_saved_results_load_without_steps(campaign: Path, result: LoadedResult, pd: Any) -> None:
    assert cli.run("report", campaign, "--output", "out").returncode == 4
    again = hpcbert.load(Path("out/results.json"))
    pd.testing.assert_frame_equal(again.rows, result.rows)
    pd.testing.assert_frame_equal(again.runs, result.runs)
    assert again.steps.empty


def test_figures_are_those_of_a_report(result: LoadedResult) -> None:
    assert [axes.get_ylabel() for axes in result.plot().axes] == ["samples/s", "efficiency"]
    assert result.plot("runs-1", language="zh").axes[0].get_ylabel() == Words("zh")("axis.distance")
    with pytest.raises(UsageError) as exception_info:
        result.plot("nothing")
    assert "scaling-1" in exception_info.value.hint


def test_what_can_not_be_loaded_says_why(empty_directory: None) -> None:
    with pytest.raises(UsageError, match="no such file"):
        hpcbert.load("absent/logs")
    with pytest.raises(AttributeError):
        _ = hpcbert.nothing


def test_parquet_goes_into_a_file_and_needs_its_extra(
    campaign: Path, result: LoadedResult, monkeypatch: pytest.MonkeyPatch, pd: Any
) -> None:
    refused = cli.run("collect", campaign, "--format", "parquet")
    assert (refused.returncode, "--output FILE" in refused.output) == (2, True)
    assert cli.run("collect", campaign, "--output", "rows.parquet").returncode == 4
    frame = pd.read_parquet("rows.parquet")
    assert frame["gpus"].tolist() == [1, 2]
    assert frame.attrs["command"].startswith("hpcbert")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow"):
        result.to_parquet(campaign)


def test_hpcbert_itself_imports_nothing_heavy(tmp_path: Path) -> None:
    env = {**UNCOUNTED, "PYTHONPROFILEIMPORTTIME": "1"}
    modules = Cli(tmp_path, env)("--version").modules
    assert "hpcbert" in modules
    assert not modules & {"pandas", "numpy", "hpcbert.notebook", "hpcbert.commands"}

"""The one way to results: campaigns, logs and saved results, by whatever word they are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbert.campaign.foreign import Recipes
from hpcbert.commands.collect import CollectRequest, Places, load_result_set
from hpcbert.errors import UsageError
from hpcbert.results.document import ResultSet, read_results, render_results
from tests.kit import logs
from tests.kit.campaigns import Built, report_states
from tests.kit.paths import TEMPLATES

Build = Callable[..., Built]
AT = Places(Recipes((TEMPLATES,)))


def load_results(*words: object, request: CollectRequest | None = None) -> ResultSet:
    return load_result_set([str(word) for word in words], AT, request, states=report_states())


def put_logs(root: Path, shape: str = "1n1g", rate: float = 64.5) -> Path:
    """Write three logs of the PyTorch reference as DLPerf keeps them."""
    for number in (1, 2, 3):
        name = f"pytorch/bert/bz4/{shape}/bert_b4_fp32_{number}.log"
        text = logs.log(shape, rate + number, iters=120, start=1.7e9 + 1e4 * number)
        logs.write_file(root, name, text)
    return root


def medians(result_set: ResultSet) -> dict[str, float | None]:
    return {str(row.shape): row.median for table in result_set.tables for row in table.rows}


def test_a_campaign_says_where_its_rows_come_from(tmp_path: Path, build: Build) -> None:
    built = build("1n1g", "1n2g")
    built.finish()
    result_set = load_results(built.directory)
    (table,) = result_set.tables
    assert {row.origin.path for row in table.rows if row.origin} == {str(built.directory)}
    (source,) = result_set.sources
    assert (source.kind, source.name) == ("campaign", built.campaign.id)
    assert source.protocol == built.campaign.protocol
    assert source.command == built.campaign.command


def test_logs_say_what_they_are_and_where_they_lie(tmp_path: Path) -> None:
    root = put_logs(tmp_path / "logs")
    result_set = load_results(root)
    (row,) = result_set.tables[0].rows
    assert row.origin
    assert (row.origin.kind, row.origin.path) == ("logs", str(root))
    assert dict(row.facts)["precision"] == ("fp32",)


def test_several_paths_become_one(tmp_path: Path, build: Build) -> None:
    built = build("1n2g")
    built.finish()
    path, other = put_logs(tmp_path / "one"), put_logs(tmp_path / "other", "1n4g")
    saved = tmp_path / "results.json"
    saved.write_text(render_results(load_results(other)))
    result_set = load_results(built.directory, path, saved)
    assert sorted(medians(result_set)) == ["1n1g", "1n2g", "1n4g"]
    assert [source.kind for source in result_set.sources] == ["campaign", "logs", "logs"]


def test_what_was_saved_is_what_was_collected(tmp_path: Path, build: Build) -> None:
    built = build("1n1g", "1n2g")
    built.finish()
    result_set = load_results(built.directory)
    path = tmp_path / "kept.JSON"
    path.write_text(render_results(result_set))
    assert load_results(path) == read_results(path) == result_set


@pytest.mark.parametrize("again", ["logs", "saved"])
def test_a_point_from_two_places_is_refused(tmp_path: Path, again: str) -> None:
    root = put_logs(tmp_path / "logs")
    saved = tmp_path / "results.json"
    saved.write_text(render_results(load_results(root)))
    twice = tmp_path / "again.json"
    twice.write_text(saved.read_text())
    with pytest.raises(UsageError, match="1n1g fp32 b4 is in"):
        load_results(saved, root if again == "logs" else twice)


def test_saved_results_stay_as_they_were_collected(tmp_path: Path) -> None:
    root = put_logs(tmp_path / "logs")
    saved = tmp_path / "results.json"
    saved.write_text(render_results(load_results(root)))
    with pytest.raises(UsageError, match="do not apply to saved results"):
        load_results(saved, request=CollectRequest(rule="rate"))


@pytest.mark.parametrize("word", ["nowhere/at-all", "results.json"])
def test_what_is_not_there_is_named(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_results(word)
    assert caught.value.where == word


def test_a_log_that_is_called_json_is_no_result(tmp_path: Path) -> None:
    path = logs.write_file(tmp_path, "run.json", logs.log("1n1g", 64.5))
    with pytest.raises(UsageError, match="not valid JSON"):
        load_results(path)

"""The one way to results: campaigns, logs and saved results, by whatever word they are named."""

import pytest

from hpcbert.campaign.foreign import Recipes
from hpcbert.commands.collect import CollectRequest, Places, load_result_set
from hpcbert.errors import UsageError
from hpcbert.results.document import read_results, render_results
from tests.kit import logs
from tests.kit.campaigns import report_states
from tests.kit.paths import TEMPLATES


def load_results(*words, request=None):
    user_places = Places(Recipes((TEMPLATES,)))
    return load_result_set(list(map(str, words)), user_places, request, states=report_states())


def put_logs(root, shape="1n1g"):
    """Write three logs of the PyTorch reference as DLPerf keeps them."""
    for number in (1, 2, 3):
        name = f"pytorch/bert/bz4/{shape}/bert_b4_fp32_{number}.log"
        text = logs.log(shape, 64.5 + number, iters=120, start=1.7e9 + 1e4 * number)
        logs.write_file(root, name, text)
    return root


def test_several_places_become_one_table_whose_rows_say_where_they_come_from(tmp_path, build):
    built = build("1n2g", "2n2g")
    built.finish()
    own, directory = load_results(built.directory), put_logs(tmp_path / "logs")
    assert {row.origin.path for row in own.tables[0].rows if row.origin} == {str(built.directory)}
    (row,) = load_results(directory).tables[0].rows
    assert row.origin
    assert (row.origin.kind, row.origin.path) == ("logs", str(directory))
    assert dict(row.facts)["precision"] == ("fp32",)
    # What was saved is what was collected.
    path = logs.write_file(tmp_path, "kept.JSON", render_results(own))
    assert load_results(path) == read_results(path) == own
    fourth = render_results(load_results(put_logs(tmp_path / "more", "1n4g")))
    more = logs.write_file(tmp_path, "more.json", fourth)
    results = load_results(built.directory, directory, more)
    shapes = [str(row.shape) for table in results.tables for row in table.rows]
    assert sorted(shapes) == ["1n1g", "1n2g", "1n4g", "2n2g"]
    assert [source.kind for source in results.sources] == ["campaign", "logs", "logs"]
    source = results.sources[0]
    assert (source.name, source.protocol, source.command) == (
        built.campaign.id,
        built.campaign.protocol,
        built.campaign.command,
    )


def test_a_point_from_two_places_and_saved_results_read_otherwise_are_refused(tmp_path):
    directory = put_logs(tmp_path / "logs")
    text = render_results(load_results(directory))
    saved, again = (logs.write_file(tmp_path, name, text) for name in ("a.json", "b.json"))
    for path in (directory, again):
        with pytest.raises(UsageError, match="1n1g fp32 b4 is in"):
            load_results(saved, path)
    with pytest.raises(UsageError, match="do not apply to saved results"):
        load_results(saved, request=CollectRequest(rule="rate"))
    log = logs.write_file(tmp_path, "run.json", logs.log("1n1g", 64.5))
    with pytest.raises(UsageError, match="not valid JSON"):
        load_results(log)
    for word in ("nowhere/at-all", "results.json"):
        with pytest.raises(UsageError) as refused:
            load_results(word)
        assert refused.value.where == word

"""The one way to results: campaigns, logs and saved results, by whatever word they are named."""

import pytest

from hpcbert.campaign.foreign import Recipes
from hpcbert.commands.collect import CollectRequest, Places, load_result_set
from hpcbert.errors import UsageError
from hpcbert.results.document import read_results, render_results
from tests.kit.campaigns import report_states
from tests.kit.logs import log, write_file
from tests.kit.paths import TEMPLATES


def load_results(*words, request=None):
    user_places = Places(Recipes((TEMPLATES,)))
    return load_result_set(list(map(str, words)), user_places, request, states=report_states())


def test_several_places_become_one_table_whose_rows_say_where_they_come_from(tmp_path, build, logs):
    built = build("1n2g", "2n2g").finish()
    other = build("1n4g", name="20261122-pytorch-def", jobs=("90",)).finish()
    results, saved = load_results(built.directory), load_results(other.directory)
    paths = {row.origin.path for row in results.tables[0].rows if row.origin}
    assert paths == {str(built.directory)}
    (row,) = load_results(logs).tables[0].rows
    assert (row.origin.kind, row.origin.path) == ("logs", str(logs))
    assert dict(row.facts)["precision"] == ("fp32",)
    # What was saved is what was collected.
    path = write_file(tmp_path, "saved.JSON", render_results(saved))
    assert load_results(path) == read_results(path) == saved
    results = load_results(built.directory, logs, path)
    shapes = [str(row.shape) for table in results.tables for row in table.rows]
    assert sorted(shapes) == ["1n1g", "1n2g", "1n4g", "2n2g"]
    assert [source.kind for source in results.sources] == ["campaign", "logs", "campaign"]
    source, campaign = results.sources[0], built.campaign
    assert (source.name, source.protocol) == (campaign.id, campaign.protocol)
    assert source.command == campaign.command


def test_a_point_from_two_places_and_saved_results_read_otherwise_are_refused(tmp_path, logs):
    text = render_results(load_results(logs))
    saved, again = (write_file(tmp_path, name, text) for name in ("a.json", "b.json"))
    for path in (logs, again):
        with pytest.raises(UsageError, match="1n1g fp32 b4 is in"):
            load_results(saved, path)
    with pytest.raises(UsageError, match="do not apply to saved results"):
        load_results(saved, request=CollectRequest(rule="rate"))
    log_file = write_file(tmp_path, "run.json", log("1n1g", 64.5))
    with pytest.raises(UsageError, match="not valid JSON"):
        load_results(log_file)
    for word in ("nowhere/at-all", "results.json"):
        with pytest.raises(UsageError) as refused:
            load_results(word)
        assert refused.value.where == word

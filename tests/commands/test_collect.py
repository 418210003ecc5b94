"""The one way to results: campaigns, logs and saved results, by whatever word they are named."""

import pytest

from hpcbert.campaign.foreign import CollectRequest, Recipes
from hpcbert.commands.collect import Places, load_result_set
from hpcbert.errors import UsageError
from hpcbert.results.document import render_results
from tests.kit.logs import log, write_file
from tests.kit.paths import TEMPLATES


def test_a_point_from_two_places_and_saved_results_read_otherwise_are_refused(tmp_path, logs):
    def load_results(*words, request=None):
        user_places = Places(Recipes((TEMPLATES,)))
        return load_result_set(list(map(str, words)), user_places, request)

    text = render_results(load_results(logs))
    saved, again = (write_file(tmp_path, name, text) for name in ("a.json", "b.JSON"))
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

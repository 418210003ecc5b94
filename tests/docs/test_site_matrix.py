"""The site matrix is what runs of the tests wrote down, of tests that there are."""

from __future__ import annotations

import re

from tests.kit import matrix
from tests.kit.paths import REPOSITORY


def test_the_page_is_what_the_runs_on_record_give() -> None:
    runs = matrix.read()
    assert runs == sorted(runs, key=lambda run: run.key)
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.page(runs)
    assert {entry.system for entry in runs} >= {"Debian 12", "Debian 13"}


def test_every_test_that_the_page_names_is_there_and_says_what_it_tries() -> None:
    rows = {
        (name, test)
        for run in matrix.read()
        for name, tried in run.configurations.items()
        for test in tried.tests
    }
    assert rows
    for name, test in rows:
        file, _, function = test.partition("::")
        text = (REPOSITORY / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(", text, re.MULTILINE), test
        if not name.startswith(("containers of ", "no container")):
            assert f'"{name}"' in text, test

"""The site matrix is what runs of the tests wrote down, of tests that there are."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit import matrix
from tests.kit.matrix import Configuration, Recorder, Run
from tests.kit.paths import REPOSITORY

ONE = Run("Debian 13", "24.11.5", "3.13.5", "newest", "", "2026-11-22", "v2", ("none", "pmix"))
LAB, UNIT = "tests/lab/test_a.py::test_one", "tests/docs/test_b.py::test_two"


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


def reported(test: str, outcome: str, *tried: str, when: str = "call") -> Any:
    properties = [(matrix.SITE, configuration) for configuration in tried]
    return SimpleNamespace(nodeid=test, outcome=outcome, when=when, user_properties=properties)


def record(path: Path, *reports: Any, args: list[str], keyword: str = "", status: int = 0) -> None:
    option = SimpleNamespace(keyword=keyword, markexpr="")
    config: Any = SimpleNamespace(args=args, option=option)
    recorder = Recorder(path, config)
    for report in reports:
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish(status)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(matrix, "describe_machine", lambda selected: ONE)
    return tmp_path / "matrix.json"


def test_a_run_of_everything_counts_by_room_and_by_configuration(data: Path) -> None:
    record(
        data,
        *(reported(LAB, "passed", "PrivateData", when=when) for when in ("setup", "call")),
        reported(LAB, "failed", "PrivateData", when="teardown"),
        reported(f"{LAB}[a]", "skipped", "PrivateData", when="setup"),
        reported(UNIT, "passed"),
        args=[str(REPOSITORY / "tests")],
    )
    (run,) = matrix.read(data)
    assert run.rooms == {"lab": {"failed": 1, "skipped": 1}, "docs": {"passed": 1}}
    tried = Configuration((LAB,), {"failed": 1, "skipped": 1})
    assert run.configurations == {"PrivateData": tried}
    text = matrix.page([run])
    assert "| PrivateData | `tests/lab/test_a.py::test_one` | 1 failed, 1 skipped |" in text
    assert "| `docs` | 1 passed |" in text
    assert "| Debian 13 | 24.11.5 | 3.13.5 | newest | - | v2 | none, pmix |" in text


def test_a_room_that_runs_alone_replaces_its_own_counts(data: Path) -> None:
    everything = [str(REPOSITORY / "tests")]
    record(data, reported(LAB, "failed", "a"), reported(UNIT, "passed"), args=everything)
    record(data, reported(LAB, "passed", "a"), args=[str(REPOSITORY / "tests" / "lab")])
    (run,) = matrix.read(data)
    assert run.rooms == {"lab": {"passed": 1}, "docs": {"passed": 1}}
    assert run.configurations["a"].counts == {"passed": 1}


@pytest.mark.parametrize(
    "broken",
    [
        {"args": [str(REPOSITORY / "tests")], "keyword": "one"},
        {"args": [str(REPOSITORY / "tests")], "status": 2},
        {"args": [str(REPOSITORY / "tests" / "lab" / "test_lab.py")]},
    ],
    ids=["-k", "interrupted", "a file"],
)
def test_a_part_of_a_room_does_not_speak_for_it(data: Path, broken: dict[str, Any]) -> None:
    record(data, reported(LAB, "passed"), **broken)
    assert not data.exists()

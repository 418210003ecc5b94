"""What enroot and pyxis print, and what hpcbert makes of it."""

from __future__ import annotations

import pytest

from hpcbert.container.runtimes import SYMPTOMS, find_symptom
from tests.kit.cases import cases, read_constant

PRINTED = read_constant(__file__, "PRINTED")


def test_every_row_has_its_words() -> None:
    assert [symptom.name for symptom in SYMPTOMS] == list(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_a_row_is_known_by_what_is_printed(name: str) -> None:
    symptom = find_symptom(PRINTED[name])
    assert symptom is not None
    assert symptom.name == name
    assert symptom.problem.endswith(".")
    assert symptom.hint


@cases
def test_other_spellings_and_near_misses(printed: str, name: str | None) -> None:
    symptom = find_symptom(printed)
    assert (symptom.name if symptom else None) == name


def test_the_remedies_name_what_to_type() -> None:
    hints = {symptom.name: symptom.hint for symptom in SYMPTOMS}
    assert "http1.1" in hints["basic-over-http2"]
    assert "~/.curlrc" in hints["basic-over-http2"]
    assert "cacert" in hints["unknown-authority"]

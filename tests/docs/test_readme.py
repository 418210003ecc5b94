"""The README in both languages: the same commands, figures and links; its picture is drawn here."""

from __future__ import annotations

import re
import runpy

import pytest

from tests.kit.cases import read_constant
from tests.kit.paths import REPOSITORY

ENGLISH = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CHINESE = (REPOSITORY / "README.zh.md").read_text(encoding="utf-8")
_FENCE = r"^```\w*\n.*?^```$"
# What both must have alike, whatever the words around it.
SAME = read_constant(__file__, "SAME")


@pytest.mark.parametrize("form", SAME.values(), ids=SAME.keys())
def test_both_languages_have_the_same(form: str) -> None:
    flags = re.MULTILINE | re.DOTALL if form == _FENCE else re.MULTILINE
    plain = [
        text if form == _FENCE else re.sub(_FENCE, "", text, flags=re.MULTILINE | re.DOTALL)
        for text in (ENGLISH, CHINESE)
    ]
    english, chinese = (sorted(re.findall(form, text, flags)) for text in plain)
    assert english
    assert english == chinese


def test_each_language_leads_to_the_other() -> None:
    assert "](README.zh.md)" in ENGLISH
    assert "](README.md)" in CHINESE


@pytest.mark.slow
def test_the_picture_is_of_the_published_tables_that_the_command_names() -> None:
    script = runpy.run_path(str(REPOSITORY / "benchmarks" / "picture.py"))
    (command,) = re.findall(r"^hpcbert report (.*?)\n```", ENGLISH, re.MULTILINE | re.DOTALL)
    assert sorted(re.findall(r"dlperf:\S+", command)) == sorted(script["TABLES"])
    committed = (REPOSITORY / "docs" / "pictures" / "published.svg").read_text(encoding="utf-8")
    # Another matplotlib draws with other bytes; what is written in it stays.
    texts = re.compile(r"<text[^>]*>(.*?)</text>")
    assert texts.findall(committed) == texts.findall(script["picture"](script["published"]()))


def test_the_table_is_the_tutorial_s() -> None:
    page = (REPOSITORY / "docs" / "tutorial" / "first-table.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"```text\npytorch.*?```", ENGLISH, re.DOTALL)
    assert table in page

"""What a visitor sees first: the README in both languages, the site's navigation, the pictures."""

import os
import re
import runpy
from pathlib import Path
from typing import get_args

import pytest

from hpcbert.cli.main import COMMANDS
from hpcbert.config.options import Runtime
from hpcbert.slurm.states import Kind, Source
from tests.kit.cases import read_constant
from tests.kit.paths import REPOSITORY

FENCE = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)
# Another matplotlib draws with other bytes; what is written in a picture stays.
TEXTS = re.compile(r"<text[^>]*>(.*?)</text>")
# What both READMEs must have alike outside of blocks, whatever the words around it.
SAME = read_constant(__file__, "SAME")


def read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def test_the_readme_says_the_same_in_both_languages():
    english, chinese = read("README.md"), read("README.zh.md")
    assert FENCE.findall(english) == FENCE.findall(chinese) != []
    for name, form in SAME.items():
        alike = [
            sorted(re.findall(form, FENCE.sub("", text), re.MULTILINE))
            for text in (english, chinese)
        ]
        assert alike[0] == alike[1] != [], name
    assert "](README.zh.md)" in english
    assert "](README.md)" in chinese
    (table,) = re.findall(r"```text\npytorch.*?```", english, re.DOTALL)
    assert table in read("docs/tutorial/first-table.md")


@pytest.mark.slow
def test_figures_of_results_are_of_the_tables_that_their_pages_show():
    script = runpy.run_path(str(REPOSITORY / "benchmarks" / "picture.py"))
    (command,) = re.findall(
        r"^hpcbert report (.*?)\n```", read("README.md"), re.MULTILINE | re.DOTALL
    )
    assert sorted(re.findall(r"dlperf:\S+", command)) == sorted(script["TABLES"])
    published = script["picture"](script["published"]())
    assert TEXTS.findall(read("docs/pictures/published.svg")) == TEXTS.findall(published)
    rows = script["table"]().rows
    assert [row.median for row in rows] == [77.30, 96.55]
    text = f"{rows[0].median:.2f} samples/s on one rank, {rows[1].median:.2f} on two"
    assert text in read("docs/tutorial/first-table.md")
    committed = read("docs/tutorial/first-table.svg")
    assert TEXTS.findall(committed) == TEXTS.findall(script["picture"]())


def test_drawings_are_as_drawn_and_use_the_program_s_words():
    draw = runpy.run_path(str(REPOSITORY / "docs" / "pictures" / "draw.py"))
    texts = {name: read(f"docs/pictures/{name}") for name in draw["drawn"]()}
    assert texts == draw["drawn"](), "run: make pages"
    life = [part for part in draw["campaign"]() if isinstance(part, draw["Box"])]
    assert {box.title for box in life if box.code} <= set(COMMANDS)
    assert {box.title.split()[-1] for box in life} >= {*Kind} - {Kind.UNKNOWN, Kind.UNNEEDED}
    assert {*draw["SOURCES"], "none"} == {*get_args(Source)}
    assert {*draw["RUNTIMES"]} == {*get_args(Runtime)}
    parts = ("job", "watch", "pyxis", "enough")
    library = "\n".join(read(f"hpcbert/shell/{part}.bash") for part in parts)
    events = {event for *_, event in draw["PHASES"]} - {""} | dict(draw["OTHERS"]).keys()
    assert events == set(re.findall(r"\bmark ([a-z-]+)", library))


def test_the_navigation_is_that_of_the_index_and_leads_to_every_page():
    """`make docs` builds the site, and fails at any warning."""
    conf = runpy.run_path(str(REPOSITORY / "docs" / "conf.py"))
    reached: set[str] = set()
    todo = [str(conf["root_doc"])]
    while todo:
        name = todo.pop()
        reached.add(name)
        contents = conf["navigation"](name, read(f"{name}.md"))
        for pair in re.findall(r"^(?:.*<(.+)>|(\S+))$", contents, re.MULTILINE):
            path = "".join(pair)
            if path[:1] not in ":`":
                below = path[1:] if path[0] == "/" else os.path.normpath(Path(name).parent / path)
                pages = [*REPOSITORY.glob(f"{below}.md")]
                assert pages, f"{name} leads to {path}, which is not there"
                names = {str(page.relative_to(REPOSITORY)).removesuffix(".md") for page in pages}
                todo += names - reached
    assert reached == {
        str(page.relative_to(REPOSITORY)).removesuffix(".md")
        for form in conf["include_patterns"]
        for page in REPOSITORY.glob(form.replace("/**", "/**/*"))
    }
    decisions = sorted(path.name for path in (REPOSITORY / "docs/decisions").glob("[0-9]*.md"))
    assert [int(name[:4]) for name in decisions] == list(range(1, len(decisions) + 1))
    index = read("docs/index.md")
    captions = re.findall(r"(?m)^:caption: (.+)$", conf["navigation"](conf["root_doc"], index))
    assert captions == re.findall(r"(?m)^## (.+)$", index)

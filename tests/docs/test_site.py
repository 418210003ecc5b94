"""The navigation of the documentation site; `make docs` builds it, and fails at any warning."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.kit.paths import REPOSITORY


@pytest.fixture(scope="module")
def conf() -> dict[str, Any]:
    return runpy.run_path(str(REPOSITORY / "docs" / "conf.py"))


def below(conf: dict[str, Any], name: str) -> set[str]:
    """Return the names of the pages that the navigation puts below a page, without suffix."""
    text = (REPOSITORY / f"{name}.md").read_text(encoding="utf-8")
    entries = re.findall(r"^(?:.*<(.+)>|(\S+))$", conf["navigation"](name, text), re.MULTILINE)
    paths = [path for pair in entries for path in pair if path and path[0] not in ":`"]
    folder = Path(name).parent
    names = set()
    for path in paths:
        pattern = path[1:] if path[0] == "/" else os.path.normpath(folder / path)
        pages = [str(page.relative_to(REPOSITORY)) for page in REPOSITORY.glob(f"{pattern}.md")]
        assert pages, f"{name} leads to {path}, which is not there"
        names |= {page.removesuffix(".md") for page in pages}
    return names


def test_the_navigation_leads_to_every_page(conf: dict[str, Any]) -> None:
    reached: set[str] = set()
    todo = {conf["root_doc"]}
    while todo:
        reached |= todo
        todo = {page for name in todo for page in below(conf, name)} - reached
    pages = {
        str(page.relative_to(REPOSITORY)).removesuffix(".md")
        for form in conf["include_patterns"]
        for page in REPOSITORY.glob(form.replace("/**", "/**/*"))
    }
    assert reached == pages


def test_the_navigation_is_that_of_the_index(conf: dict[str, Any]) -> None:
    text = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    contents = conf["navigation"](conf["root_doc"], text)
    assert re.findall(r"^:caption: (.+)$", contents, re.MULTILINE) == sections

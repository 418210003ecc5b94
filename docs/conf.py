"""The documentation site: `make docs` writes it to site/, and fails at any warning.

The pages are the Markdown files as they are read on GitHub. What the site adds is its navigation,
which comes from the lists of docs/index.md: a page that is in no list is a warning.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "hpcbert"
root_doc = "docs/index"
extensions = ["myst_parser"]
include_patterns = [
    *("README.md", "README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("docs/**.md", "templates/*/README.md", "sbatch/README.md", "benchmarks/README.md"),
    *("tests/README.md", "tests/*/README.md"),
]
# The anchors that GitHub makes, down to this level; a link to one that is not there is a warning.
myst_heading_anchors = 4

html_theme = "furo"
html_title = "hpcbert"
html_show_sourcelink = False
html_copy_source = False
html_permalinks_icon = "#"

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ENTRY = re.compile(r"\[([^\]]+)\]\(([\w./-]+)\.md\)")
# Pages below another one that no list names one by one.
_BELOW = {
    "docs/reference/command-line": ["commands/*"],
    "docs/reference/frameworks": ["/templates/*/README", "/sbatch/README"],
    "tests/README": ["*/README"],
}


def navigation(docname: str, text: str) -> str:
    """Return what the site adds to a page: the pages below it, by the links of its lists."""
    if docname == root_doc:
        _, *parts = _SECTION.split(text)
        sections = zip(parts[::2], parts[1::2], strict=True)
        return "".join(_tree(list(_ENTRY.findall(body)), caption) for caption, body in sections)
    if docname == "docs/decisions/README":
        return _tree([("", path) for _, path in _ENTRY.findall(text)])
    return _tree([("", path) for path in _BELOW.get(docname, ())])


def _tree(entries: list[tuple[str, str]], caption: str = "") -> str:
    if not entries:
        return ""
    lines = [f"{title} <{path}>" if title else path for title, path in entries]
    options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "", "```{toctree}", *options, "", *lines, "```", ""])


def _add_navigation(_: Sphinx, docname: str, source: list[str]) -> None:
    source[0] += navigation(docname, source[0])


def _lead_to_the_first_page(app: Sphinx, failure: Exception | None) -> None:
    if failure is None and app.builder.format == "html":
        first = f"{root_doc}.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={first}">'
        text = f'{page}<title>hpcbert</title><a href="{first}">hpcbert</a>\n'
        Path(app.outdir, "index.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Take part in the build."""
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _lead_to_the_first_page)

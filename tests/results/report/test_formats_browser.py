"""A report in a real browser: headless Chromium, where it is installed (`make browser`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from hpcbert.results.report import figures, formats
from hpcbert.results.report.model import LANGUAGES, Words
from hpcbert.results.report.sections import compose_report
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING
from tests.results.report.test_formats import HOSTILE, make_report_input

pytestmark = pytest.mark.slow
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
AXE = Path(
    os.environ.get("HPCBERT_AXE", REPOSITORY / ".setup/axe/node_modules/axe-core/axe.min.js")
)
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="needs extras: Chromium: make browser")
DARK = "--blink-settings=preferredColorScheme=0"


@dataclass(frozen=True)
class Browser:
    """Chromium, which reaches no network.

    Attributes:
        folder: Its profile's, which nobody else uses.
    """

    folder: Path

    def open(self, file: Path, *words: str) -> subprocess.CompletedProcess[str]:
        common = [
            "--headless=new",
            "--disable-gpu",
            "--no-first-run",
            f"--user-data-dir={self.folder}",
        ]
        # No sandbox for root; no address is found; what the console says goes to stderr.
        common += [
            "--no-sandbox",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr",
        ]
        return subprocess.run(
            [CHROMIUM, *common, *words, f"file://{file}"],
            capture_output=True, text=True, timeout=CEILING, check=True, errors="replace",
        )  # fmt: skip

    def measure(self, file: Path, expression: str, *words: str) -> Any:
        """Return what a script says of a page, in a copy that allows scripts."""
        text = re.sub(
            r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", file.read_text("utf-8")
        )
        libraries = [AXE.read_text("utf-8")] if "axe." in expression else []
        tell = "JSON.stringify(found)))"
        script = f"Promise.resolve({expression}).then(found => document.body.setAttribute('data-found', {tell}"
        scripts = "".join(f"<script>{source}</script>" for source in [*libraries, script])
        copy = file.with_name("measured.html")
        copy.write_text(text.replace("</body>", f"{scripts}</body>"), encoding="utf-8")
        result = self.open(copy, "--dump-dom", "--virtual-time-budget=30000", *words)
        match = re.search(r'data-found="([^"]*)"', result.stdout)
        assert match, result.stderr[-2000:]
        return json.loads(unescape(match[1]))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Writes a page with names of a kind in a language."""

    def write(name: str, language: str) -> Path:
        report = compose_report(make_report_input(name), Words(language))
        drawings = {
            picture.name: figures.draw(picture, all_formats=False) for picture in report.pictures
        }
        file = tmp_path_factory.mktemp("page") / "index.html"
        file.write_text(formats.render_page(report, drawings, Words(language)), encoding="utf-8")
        return file

    return write


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path / "profile")


@needs_chromium
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_overflows(width: int, pages: Callable[[str, str], Path], browser: Browser) -> None:
    """In a frame: a window of Chromium is no narrower than 500 pixels."""
    text = pages(" ".join(HOSTILE), "en").read_text("utf-8")
    frame = (
        f'<iframe id="page" style="width:{width}px;height:900px;border:0" srcdoc="{escape(text)}">'
    )
    outer = browser.folder.with_name("outer.html")
    outer.write_text(f"<!DOCTYPE html><body>{frame}</iframe></body>", encoding="utf-8")
    inside = "document.getElementById('page')"
    widths = (
        f"[{inside}.contentWindow.innerWidth, {inside}.contentDocument.documentElement.scrollWidth]"
    )
    loaded = f"new Promise(done => addEventListener('load', done)).then(() => {widths})"
    inner, scroll_width = browser.measure(outer, loaded, "--window-size=1600,1000")
    assert inner == width
    assert scroll_width <= inner


@needs_chromium
def test_the_page_loads_nothing_and_the_console_is_silent(
    pages: Callable[[str, str], Path], browser: Browser
) -> None:
    file = pages(" ".join(HOSTILE), "en")
    result = browser.open(file, "--dump-dom")
    assert "</html>" in result.stdout
    assert [line for line in result.stderr.splitlines() if ":CONSOLE" in line] == []
    loaded = "performance.getEntriesByType('resource').map(one => one.name)"
    assert browser.measure(file, loaded) == []


@needs_chromium
@pytest.mark.skipif(not AXE.is_file(), reason="needs extras: axe-core: make browser")
@pytest.mark.parametrize("theme", [(), (DARK,)], ids=["light", "dark"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_axe_finds_no_violation(
    language: str, theme: tuple[str, ...], pages: Callable[[str, str], Path], browser: Browser
) -> None:
    expression = "axe.run().then(told => told.violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 200))]))"
    assert browser.measure(pages("usual", language), expression, *theme) == []


@needs_chromium
@pytest.mark.needs("pdftotext")
def test_the_page_prints_whole(
    pages: Callable[[str, str], Path], browser: Browser, tmp_path: Path
) -> None:
    printed = tmp_path / "page.pdf"
    browser.open(pages("usual", "en"), f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    text = subprocess.run(
        ["pdftotext", "-layout", printed, "-"], capture_output=True, text=True, check=True
    ).stdout
    for key in ("environment", "results", "figures", "left-out", "digests"):
        assert Words("en")(f"section.{key}") in text
    assert "samples/s" in text

"""A report in a real browser: headless Chromium, where it is installed (`make browser`)."""

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from hpcbert.results.report.model import LANGUAGES, Words
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING
from tests.results.report.test_formats import HOSTILE, compose, render_page

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
AXE = Path(
    os.environ.get("HPCBERT_AXE", REPOSITORY / ".setup/axe/node_modules/axe-core/axe.min.js")
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="needs extras: Chromium: make browser"),
]


def open_page(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Open a page in Chromium, which reaches no network and has a profile of its own."""
    # No sandbox for root; no address is found; what the console says goes to stderr.
    return subprocess.run(
        [
            *(CHROMIUM, "--headless=new", "--disable-gpu", "--no-first-run", "--no-sandbox"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr"),
            *(f"--user-data-dir={file.parent / 'profile'}", *words, f"file://{file}"),
        ],
        capture_output=True, text=True, timeout=CEILING, check=True, errors="replace",
    )  # fmt: skip


def measure_page(file: Path, expression: str, *words: str) -> Any:
    """Return what a script says of a page, in a copy that allows scripts."""
    policy = r'<meta http-equiv="Content-Security-Policy"[^>]*>'
    text = re.sub(policy, "", file.read_text("utf-8"))
    libraries = [AXE.read_text("utf-8")] if "axe." in expression else []
    write = "document.body.setAttribute('data-answer', JSON.stringify(answer))"
    script = f"Promise.resolve({expression}).then(answer => {write})"
    scripts = "".join(f"<script>{source}</script>" for source in [*libraries, script])
    copy = file.with_name("measured.html")
    copy.write_text(text.replace("</body>", f"{scripts}</body>"), encoding="utf-8")
    result = open_page(copy, "--dump-dom", "--virtual-time-budget=30000", *words)
    match = re.search(r'data-answer="([^"]*)"', result.stdout)
    assert match, result.stderr[-2000:]
    return json.loads(unescape(match[1]))


def write_page(folder: Path, name: str, language: str = "en") -> Path:
    file = folder / "index.html"
    file.write_text(render_page(compose(name, language)), encoding="utf-8")
    return file


def test_nothing_overflows_or_is_loaded_and_the_console_is_silent(tmp_path):
    file = write_page(tmp_path, " ".join(HOSTILE))
    result = open_page(file, "--dump-dom")
    assert "</html>" in result.stdout
    assert [line for line in result.stderr.splitlines() if ":CONSOLE" in line] == []
    names = "performance.getEntriesByType('resource').map(entry => entry.name)"
    assert measure_page(file, names) == []
    # In frames: a window of Chromium is no narrower than 500 pixels.
    frames = "".join(
        f'<iframe style="width:{width}px;height:900px;border:0" '
        f'srcdoc="{escape(file.read_text("utf-8"))}"></iframe>'
        for width in (400, 1400)
    )
    outer = tmp_path / "outer.html"
    outer.write_text(f"<!DOCTYPE html><body>{frames}</body>", encoding="utf-8")
    widths = "[f.contentWindow.innerWidth, f.contentDocument.documentElement.scrollWidth]"
    loaded = "new Promise(done => addEventListener('load', done))"
    expression = f"{loaded}.then(() => [...document.querySelectorAll('iframe')].map(f => {widths}))"
    sizes = measure_page(outer, expression, "--window-size=1600,2000")
    assert [inner for inner, _ in sizes] == [400, 1400]
    assert all(scroll <= inner for inner, scroll in sizes)


@pytest.mark.skipif(not AXE.is_file(), reason="needs extras: axe-core: make browser")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_axe_names_no_violation(language, theme, tmp_path):
    expression = (
        "axe.run().then(report => report.violations.map("
        "rule => [rule.id, rule.nodes.map(node => node.html.slice(0, 200))]))"
    )
    dark = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    assert measure_page(write_page(tmp_path, "usual", language), expression, *dark) == []


@pytest.mark.needs("pdftotext")
def test_the_page_prints_whole(tmp_path):
    printed = tmp_path / "page.pdf"
    words = (f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    open_page(write_page(tmp_path, "usual"), *words)
    text = subprocess.run(
        ["pdftotext", "-layout", printed, "-"], capture_output=True, text=True, check=True
    ).stdout
    for key in ("environment", "results", "figures", "left-out", "digests"):
        assert Words("en")(f"section.{key}") in text
    assert "samples/s" in text

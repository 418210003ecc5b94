"""ASCII where the locale has no UTF-8, and nothing lost by it; a bar for long work."""

import io
import json
import os
import subprocess
import sys
from unittest.mock import Mock

import click
import pytest

from hpcbert.cli import streams
from hpcbert.system.workers import listen, track
from tests.kit.cases import cases, read_constant


@pytest.mark.slow
@cases
def test_the_locale_decides(env, plain, tmp_path):
    names = [name for name in os.environ if not name.startswith(("LC_", "LANG", "PYTHON"))]
    inherited = {name: os.environ[name] for name in names}
    argv = [sys.executable, "-m", "hpcbert", "frameworks", "show", "oneflow"]
    output = subprocess.check_output(argv, cwd=tmp_path, env={**inherited, **env})
    assert output.isascii() == plain
    assert (" - " if plain else " · ") in output.decode()


@pytest.mark.slow
def test_text_is_ascii_in_the_locale_c_and_documents_arrive_in_any(finished, logs, run_commands):
    lines = [line.split() for line in read_constant(__file__, "LINES")]
    lines += [["collect", str(finished)], ["collect", str(logs)], ["logs", str(finished)]]
    both = [*lines, *([*words, "--json"] for words in lines if words != ["--help"])]
    for words, result in zip(both, run_commands(both, LC_ALL="C"), strict=True):
        assert result.output.isascii(), (words, result)
        result.check(as_json="--json" in words)
        if words == ["collect", "ünbekannt→…", "--json"]:
            assert "ünbekannt→…" in result.error["message"]
    assert streams.to_ascii("a · b … c → d ✓ ✗ jörg") == "a - b ... c -> d + x j\\xf6rg"
    render = ["render", "--fw", "pytorch", "--scheduler", "slurm", "--data", "/dätä"]
    lines = [render, ["collect", str(logs), "--format", "json"]]
    utf8, ascii_ = (run_commands(lines, LC_ALL=locale) for locale in ("C.UTF-8", "C"))
    assert ascii_[0].stdout == utf8[0].stdout
    assert "/dätä" in utf8[0].stdout
    tables = [json.loads(results[1].stdout)["tables"] for results in (utf8, ascii_)]
    assert tables[0] == tables[1] != []


def test_long_work_shows_count_rate_and_time_and_short_work_nothing():
    def run_work(seconds, count=10, inner=0):
        """Return what a bar writes while items of some seconds each are done."""
        now = 0.0
        stream = io.StringIO()
        with listen(streams.ProgressBar(stream, lambda: now).update):
            for _ in track(range(count), "reading logs"):
                for _ in track(range(inner), "hashing"):
                    now += seconds / inner
                now += 0 if inner else seconds
        return stream.getvalue()

    for inner in (0, 5):
        text = run_work(1.0, inner=inner)
        assert "reading logs" in text
        assert "hashing" not in text, "a part of it"
        assert "5/10, 1/s, 5 s left" in text
        assert text.endswith("\x1b[2K")
    assert run_work(0.1) == run_work(60.0, count=1) == ""
    assert streams.format_progress("x", 1200, 5000, 120.0).endswith("1,200/5,000, 10/s, 380 s left")
    assert streams.format_progress("x", 0, 74, 42.0).endswith("0/74, 42 s")


def test_a_bar_is_for_people(monkeypatch):
    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json):
        streams.shows_progress(lambda: as_json)()

    bar = Mock(wraps=streams.ProgressBar)
    monkeypatch.setattr(streams, "ProgressBar", bar)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    for is_terminal, options, count in ((False, [], 0), (True, ["--json"], 0), (True, [], 1)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        command.main(options, standalone_mode=False)
        assert bar.call_count == count

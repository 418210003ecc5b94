"""hpcbert's command line: in this process, as a process, as another user, on a terminal."""

import fcntl
import json
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from hpcbert.cli.main import root
from hpcbert.system.runner import Outcome, Runner
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING, until

SCREENS = REPOSITORY / "tests" / "cli" / "view" / "screens"
# What differs between screens from run to run. Where the sentence on a repeat folds, and so the
# empty lines after it, depends on how long its job's name is.
_VARYING: tuple[tuple[str, Any], ...] = (
    (r"\d{8}T\d{6}Z-[\w-]*|\d{1,8}…[\w-]+", lambda match: "C" * len(match[0])),
    (r"CANCELLED [^\n]*", "CANCELLED"),
    (r"\d:\d\d:\d\d", "H:MM:SS"),
    (r"ends \d\d:\d\d", "ends HH:MM"),
    (r"(repeat \d  job) .*\n(arrows)", r"\1 ...\n\2"),
)
# Variables that the caller of the tests may have set, and those that give a terminal's size.
_TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")

# For a process that reports its modules: `make coverage` would load more.
UNCOUNTED = {"COVERAGE_PROCESS_START": "", "COVERAGE_PROCESS_CONFIG": ""}

# Modules that commands load only if they need them.
HEAVY = frozenset(["asyncio", "importlib.metadata", "numpy", "pandas", "rich", "submitit", "torch"])


def start_process(
    argv: Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None,
    cwd: Path | None = None, timeout: float = CEILING,
) -> Outcome:  # fmt: skip
    """Run a command as hpcbert's runner does, with its colours."""
    result = subprocess.run(
        argv, input=stdin.encode(), env=env, cwd=cwd, timeout=timeout, check=False,
        capture_output=True,
    )  # fmt: skip
    stdout, stderr = (data.decode(errors="replace") for data in (result.stdout, result.stderr))
    return Outcome(tuple(argv), result.returncode, stdout, stderr)


class CliResult(Outcome):
    """The result of a command line."""

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document: the last line, below monitor's events."""
        document: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        assert document["exit_code"] == self.returncode, self
        return document

    @property
    def data(self) -> Any:
        return self.document["data"]

    @property
    def error(self) -> dict[str, str]:
        return dict(self.document["errors"][0])

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()[:-1]]

    @property
    def modules(self) -> set[str]:
        """The loaded modules of a process with `-X importtime`."""
        return {line.rpartition("|")[2].strip() for line in self.stderr.splitlines()}

    def check(self, *, as_json: bool) -> None:
        """Check the rules of every command."""
        assert self.returncode in {0, 1, 2, 3, 4, 5, 6, 7}, self
        assert "Traceback" not in self.stderr, self.stderr
        assert "bug in hpcbert" not in self.output, self
        if as_json:
            assert self.document["exit_code"] == self.returncode, self
        elif self.returncode:
            assert "rror: " in self.stderr, self


def run(*words: object, status: int | None = None) -> CliResult:
    """Run a command line in this process; check its exit status if one is given.

    Example: `run("collect", directory, "--json").data["tables"]`.
    """
    argv = [str(word) for word in words]
    outcome = CliRunner().invoke(root, argv, catch_exceptions=False, prog_name="hpcbert")
    result = CliResult(("hpcbert", *argv), outcome.exit_code, outcome.stdout, outcome.stderr)
    assert status in {None, result.returncode}, result
    return result


def run_here(
    argv: Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None,
    cwd: Path | None = None, timeout: float = CEILING,
) -> Outcome:  # fmt: skip
    """Run a command line of `Cli` in this process: starting one takes longer than most commands."""
    before = Path.cwd()
    os.chdir(cwd or before)
    try:
        with patch.dict(os.environ, env or {}, clear=True):
            return run(*argv[argv.index("hpcbert") + 1 :])
    finally:
        os.chdir(before)


@dataclass(frozen=True)
class Cli:
    """hpcbert as a process; `env` is added to the tests' variables, `run` starts it as anybody."""

    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    run: Runner = start_process
    python: str = sys.executable

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), **self.env}

    def __call__(
        self, *words: object, status: int | None = None, under: tuple[str, ...] = (),
        timeout: float = CEILING, **env: str,
    ) -> CliResult:  # fmt: skip
        """Run it to its end, under strace for one; check its exit status if one is given."""
        argv = [*under, self.python, "-m", "hpcbert", *map(str, words)]
        environment = self.environment if self.run is start_process else self.env
        outcome = self.run(argv, env={**environment, **env}, cwd=self.cwd, timeout=timeout)
        result = CliResult(outcome.argv, outcome.returncode, outcome.stdout, outcome.stderr)
        assert status in {None, result.returncode}, result
        return result

    def start(self, *words: object, **options: Any) -> subprocess.Popen[str]:
        """Start it and let it run; `options` are Popen's."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        defaults = {"cwd": self.cwd, "env": self.environment, "text": True, **pipes}
        argv = [self.python, "-m", "hpcbert", *map(str, words)]
        return subprocess.Popen(argv, **{**defaults, **options})

    def on_terminal(
        self, *words: object, answer: str = "", last: str = "", rows: int = 24, columns: int = 150,
        **env: str,
    ) -> tuple[int, str]:  # fmt: skip
        """Return its exit status and output on a terminal, which closes once `last` is on it."""
        ours, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        base = {name: value for name, value in self.environment.items() if name not in _TERMINAL}
        with self.start(
            *words, env={**base, "TERM": "xterm", "LANG": "C.UTF-8", **env}, start_new_session=True,
            stdin=end, stdout=end, stderr=end,
        ) as child:  # fmt: skip
            os.close(end)
            os.write(ours, answer.encode())
            output = bytearray()
            with suppress(OSError):  # Linux returns EIO when the last writer has left
                while not (last and last.encode() in output) and (part := os.read(ours, 1 << 16)):
                    output += part
            os.close(ours)
        return child.returncode, output.decode(errors="replace")


class Tmux:
    """A terminal in which one program runs, driven by keys, in a folder."""

    def __init__(self, folder: Path, argv: list[str], columns: int, rows: int) -> None:
        # A socket's path is short; the screen does not depend on this terminal's locale.
        self._socket = tempfile.mkdtemp(prefix="tmux")
        self._base = ["tmux", "-u", "-f", "/dev/null", "-S", f"{self._socket}/socket"]
        line = f"{shlex.join(argv)}; echo left $?; exec sleep 600"
        self.run(
            *("new-session", "-d", "-x", str(columns), "-y", str(rows)), "-c", str(folder),
            f"env -u NO_COLOR LC_ALL=C.UTF-8 bash -c {shlex.quote(line)}",
        )  # fmt: skip

    def run(self, *words: str) -> str:
        outcome = start_process([*self._base, *words], env={**os.environ, "LC_ALL": "C.UTF-8"})
        assert outcome.ok, outcome
        return outcome.stdout

    def end(self) -> None:
        self.run("kill-server")
        shutil.rmtree(self._socket)

    def keys(self, *names: str) -> None:
        for name in names:
            self.run("send-keys", name)

    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def shows(self, words: str, *names: str) -> str:
        """Type keys, and wait until a text is on the screen, which may be half drawn; return that."""
        self.keys(*names)
        return until(
            lambda: text if words in (text := self.screen()) else "",
            lambda: f"{words!r} on\n{self.screen()}",
        )

    def no_longer_shows(self, words: str) -> None:
        """Wait until a text has left the screen: an escape and a key at once are that with Alt."""
        until(lambda: words not in self.screen(), lambda: f"no {words!r} on\n{self.screen()}")

    def shows_recorded(self, name: str) -> str:
        """Wait until the screen is the recorded one (RECORD_SCREENS=1: record it); return it."""
        path = SCREENS / f"{name}.txt"
        if os.environ.get("RECORD_SCREENS"):
            path.write_text(_normal(self.screen()))
        expected = _normal(path.read_text())
        return until(
            lambda: text if _normal(text := self.screen()) == expected else "",
            lambda: f"{expected} on\n{_normal(self.screen())}",
        )


def _normal(screen: str) -> str:
    """Return a screen without the parts that differ from run to run."""
    for pattern, form in _VARYING:
        screen = re.sub(pattern, form, screen, flags=re.DOTALL)
    text = "\n".join(line.rstrip() for line in screen.splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    (table,) = document["data"]["tables"]
    return list(table["rows"])


def first_row(document: dict[str, Any]) -> dict[str, Any]:
    return rows(document)[0]


def runs(document: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {run["repeat"]: run for run in first_row(document)["runs"]}


def only_run(document: dict[str, Any]) -> dict[str, Any]:
    (row,) = rows(document)
    (run,) = row["runs"]
    return dict(run)


def codes(row: dict[str, Any]) -> list[list[str]]:
    """Return the codes of the reasons against each run."""
    return [[reason["code"] for reason in run["reasons"]] for run in row["runs"]]

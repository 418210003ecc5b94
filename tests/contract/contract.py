"""What the contract tests share: a place to run hpcbert in, its cases, and the mask of its documents."""

import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcbert.system.runner import Runner
from tests.kit import cli
from tests.kit.cli import CliResult
from tests.kit.paths import REPOSITORY

HERE = Path(__file__).resolve().parent
MASK = "*"
# What differs between machines and versions, or is text for a reader.
VOLATILE = {
    *("argv", "bytes", "detected", "digest", "digests", "environments"),
    *("facts", "file", "files", "hint", "hpcbert", "made", "message", "nodes_seen", "pid"),
    *("script_sha256", "script_text", "sha256", "seal", "settings", "user", "owner", "uid"),
    *("finished", "age_seconds", "expected_seconds", "seconds"),
    *("checks", "warnings"),  # they depend on whether the machine has Slurm's commands
}
# Times, ids of campaigns and jobs, digests, versions, paths and sentences.
_VOLATILE_TEXT = re.compile(
    r"\d{4}-\d\d-\d\d|\d{8}T\d{6}Z|^local-\d|[0-9a-f]{12}|^\d+\.\d+\.\d+|/| "
)


@dataclass(frozen=True)
class Place:
    """A directory to run hpcbert in, with a home and recipes of its own."""

    directory: Path

    def run(self, line: str, run: Runner = cli.start_process) -> CliResult:
        """Run a command line, with nothing of the tester's settings; in a process of its own."""
        theirs = ("HPCBERT_", "SLURM_")
        env = {name: text for name, text in os.environ.items() if not name.startswith(theirs)}
        env |= {"HOME": str(self.directory), "PYTHONPATH": str(REPOSITORY)}
        argv = [sys.executable, "-m", "hpcbert", *shlex.split(line)]
        outcome = run(argv, env=env, cwd=self.directory)
        return CliResult(outcome.argv, outcome.returncode, outcome.stdout, outcome.stderr)

    def read(self, line: str, status: int = 0) -> dict[str, Any]:
        """Run a command line with this exit status, and return its document."""
        result = self.run(f"{line} --json")
        assert result.returncode == status, result
        return result.document

    @cached_property
    def campaign(self) -> str:
        """Return the id of its first campaign."""
        return str(self.read("list")["data"]["campaigns"][-1]["campaign"])


def make_place(directory: Path) -> Place:
    """Fill a directory with a site, and a recipe whose rates are exact and the same everywhere."""
    shutil.copytree(HERE / "recipes", directory / "templates")
    place = Place(directory)
    place.read("init --local")
    return place


def copy_place(place: Place, directory: Path) -> Place:
    """Fill a directory as an untouched place is."""
    shutil.copytree(place.directory, directory, dirs_exist_ok=True)
    return Place(directory)


def format_error(error: dict[str, Any]) -> str:
    """Return the lines of one error: its code with the message, its place, its hint."""
    place = f"at {error['where']}" if error.get("where") else ""
    sentences = [f"{error['code']}: {error['message']}", place, error.get("hint") or ""]
    return "".join(f"  {line}\n" for text in sentences for line in text.splitlines())


def write_entries(path: Path, entries: dict[str, str]) -> dict[str, str]:
    """Write the wordings of a command, by case; return them."""
    texts = [f"# {name}\n{text}" for name, text in sorted(entries.items()) if text]
    if texts:
        path.write_text("\n".join(texts), encoding="utf-8")
    return entries


def mask(value: Any) -> Any:
    """Return a document without what may differ between machines, runs and wordings."""
    if isinstance(value, dict):
        return {key: mask(inner) for key, inner in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [mask(inner) for inner in value]
    if isinstance(value, str) and (value == platform.node() or _VOLATILE_TEXT.search(value)):
        return MASK
    return value


def find_keys(value: Any, keys: Sequence[str], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values under some keys, with their paths in the document."""
    items = value if isinstance(value, dict) else {}
    if isinstance(value, list):
        items = {str(number): item for number, item in enumerate(value)}
    for key, item in items.items():
        if key in keys:
            yield f"{path}{key}", item
        else:
            yield from find_keys(item, keys, f"{path}{key}.")


def differences(golden: Any, answer: Any, path: str = "$") -> Iterator[str]:
    """Yield where an answer lacks or changes what the golden has."""
    if golden == MASK and isinstance(answer, str):
        return
    if isinstance(golden, dict) and isinstance(answer, dict):
        yield from (f"{path}.{key} is missing" for key in golden.keys() - answer.keys())
        for key in golden.keys() & answer.keys():
            yield from differences(golden[key], answer[key], f"{path}.{key}")
    elif isinstance(golden, list) and isinstance(answer, list):
        if len(golden) != len(answer):
            yield f"{path}: {len(golden)} items became {len(answer)}"
        for number, items in enumerate(zip(golden, answer, strict=False)):
            yield from differences(*items, f"{path}[{number}]")
    elif type(golden) is not type(answer) or golden != answer:
        yield f"{path}: {golden!r} became {answer!r}"

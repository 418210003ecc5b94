"""What the contract tests share: a place to run hpcbert in, its cases, and the mask of its documents."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import tomli

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

# A case of wording/*.txt: its name, its command line, and the indented lines below it.
_ENTRY = re.compile(r"^# (.*)\n(\$ .*\n(?:  .*\n)*)", re.MULTILINE)
# In sentences: ids of campaigns, and digests.
_VOLATILE_WORDS = re.compile(r"\d{8}T\d{6}Z[\w.-]*|\b[0-9a-f]{12,}\b")

# A row of cases.toml: `line` is what is typed after `hpcbert`, with {logs} and {campaign} replaced.
Row = Mapping[str, Any]


def parametrize(group: str) -> pytest.MarkDecorator:
    """Return the mark that runs a test on each case of a group of cases.toml."""
    rows = tomli.loads((HERE / "cases.toml").read_text(encoding="utf-8"))[group]
    cases = [pytest.param(name, row, id=name) for name, row in rows.items()]
    return pytest.mark.parametrize(("name", "row"), cases)


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


def check_case(name: str, row: Row, place: Place, *, regenerate: bool, **values: object) -> None:
    """Run a case, and compare its exit code and its document."""
    line = row["line"]
    for key, value in values.items():
        line = line.replace(f"{{{key}}}", shlex.quote(str(value)))
    # In this process, which takes less time; refusals of click's parser get a document in main.
    result = place.run(f"{line} --json", cli.run_here)
    result = result if result.stdout else place.run(f"{line} --json")
    assert result.returncode == row.get("exit", 0), result
    answer = result.document
    names = {**values, "HERE": place.directory}
    check_wording(name, row["line"], answer["errors"], names, regenerate=regenerate)
    if not row.get("golden", True):
        return
    document = mask(answer)
    if "keep" in row:
        document["data"] = dict(find_keys(document["data"], row["keep"]))
    path = HERE / "golden" / f"{name}.json"
    if regenerate:
        text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    assert list(differences(json.loads(path.read_text(encoding="utf-8")), document)) == []


def check_wording(
    name: str,
    line: str,
    errors: Sequence[dict[str, Any]],
    names: Mapping[str, object],
    *,
    regenerate: bool,
) -> None:
    """Compare what a refused command line says with the text of its command in `wording/`."""
    path = HERE / "wording" / f"{line.split(maxsplit=1)[0]}.txt"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    entries = dict(_ENTRY.findall(text))
    # What an error of the scheduler says depends on whether the machine has Slurm.
    errors = [error for error in errors if error["code"] != "scheduler"]
    entry = "".join(f"  {text}\n" for error in errors for text in list_sentences(error))
    for key, value in names.items():
        entry = entry.replace(str(value), f"{{{key}}}")
    entry = entry and f"$ hpcbert {line}\n{_VOLATILE_WORDS.sub(MASK, entry)}"
    if regenerate and entry != entries.get(name, ""):
        entries[name] = entry
        texts = (f"# {key}\n{text}" for key, text in sorted(entries.items()) if text)
        path.write_text("\n".join(texts), encoding="utf-8")
    assert entry == entries.get(name, "")


def list_sentences(error: dict[str, Any]) -> list[str]:
    """Return the lines of one error: its code with the message, its place, its hint."""
    place = f"at {error['where']}" if error.get("where") else ""
    sentences = [f"{error['code']}: {error['message']}", place, error.get("hint") or ""]
    return [line for sentence in sentences for line in sentence.splitlines()]


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

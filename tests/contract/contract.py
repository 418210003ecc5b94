"""What the contract tests share: a place to run hpcbert in, its cases, and the mask of its documents."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import tomli

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
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


@dataclass(frozen=True)
class Case:
    """A row of cases.toml.

    Attributes:
        name: The test's id, and the golden's name.
        line: What is typed after `hpcbert`; the tests replace {logs} and {campaign}.
        exit_code: The exit code.
        golden: Whether the document is compared too.
        keep: Keys of the row's data that the golden has; empty: all.
    """

    name: str
    line: str
    exit_code: int
    golden: bool
    keep: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Return where the golden is."""
        return HERE / "golden" / f"{self.name}.json"


def read_cases(group: str) -> list[Case]:
    """Return the cases of a group of cases.toml."""
    rows = tomli.loads((HERE / "cases.toml").read_text(encoding="utf-8"))[group]
    return [
        Case(
            name,
            row["line"],
            row.get("exit", 0),
            row.get("golden", True),
            tuple(row.get("keep", ())),
        )
        for name, row in rows.items()
    ]


def parametrize(group: str) -> pytest.MarkDecorator:
    """Return the mark that runs a test on each case of a group."""
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=case.name) for case in read_cases(group)]
    )


@dataclass(frozen=True)
class Place:
    """A directory to run hpcbert in, with a home and recipes of its own."""

    directory: Path

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a command line, with nothing of the tester's settings."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HPCBERT_", "SLURM_"))
        }
        environment |= {"HOME": str(self.directory), "PYTHONPATH": str(REPOSITORY)}
        argv = [sys.executable, "-m", "hpcbert", *shlex.split(line)]
        return subprocess.run(
            argv,
            check=False,
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )

    @cached_property
    def campaign(self) -> str:
        """Return the id of its first campaign."""
        document = json.loads(self.run("list --json").stdout)
        return str(document["data"]["campaigns"][-1]["campaign"])


def make_place(directory: Path) -> Place:
    """Fill a directory with a site, and a recipe whose rates are exact and the same everywhere."""
    shutil.copytree(HERE / "recipes", directory / "templates")
    place = Place(directory)
    assert place.run("init --local --json").returncode == 0
    return place


def copy_place(place: Place, directory: Path) -> Place:
    """Fill a directory as an untouched place is."""
    shutil.copytree(place.directory, directory, dirs_exist_ok=True)
    return Place(directory)


def check_case(case: Case, place: Place, *, regenerate: bool, **names: object) -> None:
    """Run a case, and compare its exit code and its document."""
    line = case.line
    for name, value in names.items():
        line = line.replace(f"{{{name}}}", shlex.quote(str(value)))
    result = place.run(f"{line} --json")
    assert result.returncode == case.exit_code, result.stdout + result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    check_wording(case, answer["errors"], {**names, "HERE": place.directory}, regenerate=regenerate)
    document = mask(answer)
    if not case.golden:
        return
    if case.keep:
        document["data"] = dict(find_keys(document["data"], case.keep))
    if regenerate:
        text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
        case.path.write_text(f"{text}\n", encoding="utf-8")
    golden = json.loads(case.path.read_text(encoding="utf-8"))
    assert list(differences(golden, document)) == []


def check_wording(
    case: Case, errors: Sequence[dict[str, Any]], names: Mapping[str, object], *, regenerate: bool
) -> None:
    """Compare what a refused command line says with the text of its command in `wording/`."""
    path = HERE / "wording" / f"{case.line.split()[0]}.txt"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    entries = dict(_ENTRY.findall(text))
    # What an error of the scheduler says depends on whether the machine has Slurm.
    errors = [error for error in errors if error["code"] != "scheduler"]
    lines = [line for error in errors for line in list_sentences(error)]
    entry = "".join(f"  {line}\n" for line in lines)
    for name, value in names.items():
        entry = entry.replace(str(value), f"{{{name}}}")
    entry = entry and f"$ hpcbert {case.line}\n{_VOLATILE_WORDS.sub(MASK, entry)}"
    if regenerate and entry != entries.get(case.name, ""):
        entries[case.name] = entry
        texts = (f"# {name}\n{text}" for name, text in sorted(entries.items()) if text)
        path.write_text("\n".join(texts), encoding="utf-8")
    assert entry == entries.get(case.name, "")


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
    items: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    if isinstance(value, list):
        items = ((str(number), inner) for number, inner in enumerate(value))
    for key, inner in items:
        if key in keys:
            yield f"{path}{key}", inner
        else:
            yield from find_keys(inner, keys, f"{path}{key}.")


def differences(golden: Any, answer: Any, path: str = "$") -> Iterator[str]:
    """Yield where an answer lacks or changes what the golden has."""
    if golden == MASK and isinstance(answer, str):
        return
    if type(golden) is not type(answer):
        yield f"{path}: {golden!r} became {answer!r}"
    elif isinstance(golden, dict):
        for key, value in golden.items():
            if key in answer:
                yield from differences(value, answer[key], f"{path}.{key}")
            else:
                yield f"{path}.{key} is missing"
    elif isinstance(golden, list):
        if len(golden) != len(answer):
            yield f"{path}: {len(golden)} items became {len(answer)}"
        for number, (golden_item, answer_item) in enumerate(zip(golden, answer, strict=False)):
            yield from differences(golden_item, answer_item, f"{path}[{number}]")
    elif golden != answer:
        yield f"{path}: {golden!r} became {answer!r}"

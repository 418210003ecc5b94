"""The remedies that doctor prints, applied; the faults that tests plant for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.paths import REPOSITORY

_SETTING = re.compile(r"site\.toml: (?:([\w.-]+)\.)?(\w+) = (.*)")


def typed(
    text: str, words: Iterable[str], findings: Iterable[dict[str, Any]], *, home: Path = Path("~")
) -> tuple[str, list[str]]:
    """Return a site.toml's text and a command line with all remedies of findings in them.

    Args:
        text: The site.toml's.
        words: The command line.
        findings: The findings of doctor.
        home: The directory for a tilde.
    """
    line = list(words)
    for remedy in dict.fromkeys(finding["remedy"] for finding in findings if finding["remedy"]):
        setting = _SETTING.fullmatch(remedy)
        if setting:
            text = set_key(text, *setting.groups())
        elif remedy.startswith("--"):
            option, value = remedy.replace("~", str(home)).split(" ", 1)
            if option in line and option == "--exclude":
                line[line.index(option) + 1] += f",{value}"
            elif option in line:
                line[line.index(option) + 1] = value
            else:
                line += [option, value]
    return text, line


def set_key(text: str, table: str | None, key: str, value: str) -> str:
    """Return a TOML text in which a key of a table has another value."""
    before, heading, tail = text.partition(f"[{table}]\n") if table else ("", "", text)
    if not heading and table:
        return f"{text.rstrip()}\n[{table}]\n{key} = {value}\n"
    body, more, following = tail.partition("\n[")
    lines = [line for line in body.splitlines() if line.partition(" ")[0] != key]
    return (
        before
        + heading
        + "\n".join([f"{key} = {value}", *lines])
        + "\n" * bool(not more)
        + more
        + following
    )


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        title: The fault, as on the page.
        code: The code of the finding.
        keyword: A part of the finding.
        remedy: The command from doctor; empty if an administrator must change something.
        context: Where it is planted: `nodes` and `ranks` of a lab, its `choices` and limits, its
            `daemons`, or a machine or commands of a `script`.
        nodes: The nodes of the finding, joined by commas; empty: on this machine.
    """

    title: str
    code: str
    keyword: str
    remedy: str
    context: str
    nodes: str = ""


# A row for each fault: what a user's report becomes.
_TABLE = REPOSITORY / "tests" / "commands" / "faults.tsv"
FAULTS = tuple(
    Fault(*line.split("\t")) for line in _TABLE.read_text(encoding="utf-8").splitlines()[1:]
)


def select_faults(*contexts: str) -> tuple[Fault, ...]:
    """Return the faults of some contexts."""
    return tuple(fault for fault in FAULTS if fault.context in contexts)


def find_missed(faults: tuple[Fault, ...], findings: list[dict[str, object]]) -> list[Fault]:
    """Return the faults without the required finding."""
    return [fault for fault in faults if not any(_is(fault, finding) for finding in findings)]


def _is(fault: Fault, finding: dict[str, object]) -> bool:
    nodes = finding["nodes"]
    assert isinstance(nodes, (list, tuple))
    return (
        finding["status"] != "ok"
        and finding["code"] == fault.code
        and fault.keyword in str(finding["detail"])
        and (finding["remedy"], ",".join(nodes)) == (fault.remedy, fault.nodes)
    )

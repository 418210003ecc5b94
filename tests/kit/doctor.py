"""The remedies that doctor prints, applied; the faults that tests plant for it."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.paths import REPOSITORY

_SETTING = re.compile(r"site\.toml: (?:([\w.-]+)\.)?(\w+) = (.*)")


def typed(
    text: str, words: Iterable[str], findings: Iterable[dict[str, Any]], *, home: Path = Path("~")
) -> tuple[str, list[str]]:
    """Return a site.toml's text and a command line with all remedies of doctor's findings in them.

    A tilde is the directory `home`.
    """
    line = list(words)
    for remedy in dict.fromkeys(finding["remedy"] for finding in findings if finding["remedy"]):
        if setting := _SETTING.fullmatch(remedy):
            text = set_key(text, *setting.groups())
        elif remedy.startswith("--"):
            option, value = remedy.replace("~", str(home)).split(" ", 1)
            if option not in line:
                line += [option, value]
            elif option == "--exclude":
                line[line.index(option) + 1] += f",{value}"
            else:
                line[line.index(option) + 1] = value
    return text, line


def set_key(text: str, table: str | None, key: str, value: str) -> str:
    """Return a TOML text in which a key of a table has another value."""
    heading = f"[{table}]\n" if table else ""
    text = text if heading in text else f"{text.rstrip()}\n{heading}"
    start = text.index(heading) + len(heading)
    body, more, following = text[start:].partition("\n[")
    lines = [line for line in body.splitlines() if line.partition(" ")[0] != key]
    body = "\n".join([f"{key} = {value}", *lines])
    return f"{text[:start]}{body}{more or chr(10)}{following}"


class Fault(NamedTuple):
    """A fault that is planted: a row of faults.tsv, which a user's report becomes.

    Its title is that of the page; code, keyword, remedy and nodes are the finding's. The context is
    where it is planted: `nodes` and `ranks` of a lab, its `choices`, its `daemons`, or a `script`.
    """

    title: str
    code: str
    keyword: str
    remedy: str
    context: str
    nodes: str = ""

    def is_in(self, finding: dict[str, Any]) -> bool:
        """Return whether a finding is that of this fault."""
        shown = (finding["code"], finding["remedy"], ",".join(finding["nodes"]))
        is_same = shown == (self.code, self.remedy, self.nodes)
        return is_same and finding["status"] != "ok" and self.keyword in finding["detail"]


_TABLE = (REPOSITORY / "tests" / "commands" / "faults.tsv").read_text(encoding="utf-8")
FAULTS = tuple(Fault(*line.split("\t")) for line in _TABLE.splitlines()[1:])


def find_missed(findings: list[dict[str, object]], *contexts: str, title: str = "") -> list[Fault]:
    """Return the faults of some contexts, all or of one title, without the required finding."""
    faults = [fault for fault in FAULTS if fault.context in contexts and title in (fault.title, "")]
    assert faults, title
    return [fault for fault in faults if not any(map(fault.is_in, findings))]

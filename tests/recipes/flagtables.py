"""Tables of flags: which words a program takes at a commit, and what for values.

A table's first line names the program, the second its columns: flag, type, default, choices, note.
A key of a JSON file is a row, too, with dots between the levels.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.needs import SHARED
from tests.kit.recipes import HERE

_UNUSED = re.compile(r"(?i)ignored|not used|unused|no effect|removed before")
_SWITCHES = ("flag", "absl-bool", "optional-value")
_TRUTH = r"true|false|1|0|t|f|yes|no|y|n"
_FORMS = {
    **dict.fromkeys(("int", "integer"), r"[+-]?\d+"),
    "float": r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?",
    **dict.fromkeys(("str2bool", "strtobool", "absl-bool"), _TRUTH),
    "size": r"\d+[KMG]?",
    # argparse's type=bool takes any text for true, `False` among them.
    "bool": r"(?-i:True|)",
}


class Flag(NamedTuple):
    name: str
    type: str
    default: str
    choices: str
    note: str

    @property
    def is_switch(self) -> bool:
        """Whether it stands alone, without the next word as its value."""
        return self.type in _SWITCHES or (self.type == "str2bool" and "value optional" in self.note)

    def objection(self, value: str | None) -> str:
        """Return why a value (None: no value) can't be given; empty if it can."""
        if _UNUSED.search(self.note):
            return f"the program parses it and makes no use of it: {self.note}"
        if value is None:
            return "" if self.is_switch else "it needs a value"
        if self.type == "flag":
            return f"it takes no value, {value!r} is given"
        words = self.choices.split("|")
        if self.choices and "anything" not in words and re.fullmatch(r"[\w|.-]+", self.choices):
            return "" if value in words else f"{value!r} is not among {self.choices}"
        word = self.type.partition(" ")[0]
        form = _FORMS.get(word) or _FORMS.get(word.removeprefix("absl-"), r".*")
        fits = re.fullmatch(form, value, re.IGNORECASE | re.DOTALL)
        return "" if fits else f"{value!r} is no {self.type}"


class Program(NamedTuple):
    title: str
    commit: str
    flags: dict[str, Flag]

    @property
    def is_json(self) -> bool:
        return "JSON" in self.title or ".json" in self.title

    def find(self, word: str) -> Flag | None:
        """Return the flag of a command line's word, `--no…` of a switch included."""
        name = word.partition("=")[0]
        if name.startswith("-") and not name.startswith("--") and "-" + name in self.flags:
            name = "-" + name if self.flags["-" + name].type.startswith("absl-") else name
        if name in self.flags:
            return self.flags[name]
        positive = self.flags.get("--" + name.removeprefix("--no"))
        return positive if positive is not None and positive.type == "absl-bool" else None


@cache
def read_flag_table(name: str) -> Program | None:
    folders = (HERE / "flags", SHARED / "upstream-flags")
    path = next(filter(Path.is_file, (folder / name for folder in folders)), None)
    if path is None:
        return None
    first, _, *rows = path.read_text().splitlines()
    parts = first.removeprefix("# program: ").split(" · ")
    flags = {}
    for row in rows:
        columns = (*row.split("\t"), "", "", "", "")[:5]
        flags[columns[0]] = Flag(*columns)
    return Program(parts[0], parts[-1].removeprefix("commit "), flags)


def split_programs(argv: list[str]) -> list[tuple[str, list[str]]]:
    """Return the programs of a command line and the words of each.

    `python -m torch.distributed.launch --nnodes 2 train.py --lr 1` calls two programs.
    """
    programs: list[tuple[str, list[str]]] = []
    words = iter(argv)
    for word in words:
        is_script = word.endswith(".py") and not word.startswith("-")
        if is_script or not programs:
            programs.append((Path(word).name, []))
        elif word == "-m" and programs[-1][0].startswith("python"):
            programs.append((next(words), []))
        else:
            programs[-1][1].append(word)
    return programs


def find_objections(words: list[str], programs: list[Program]) -> list[str]:
    flags = [flag for program in programs for flag in program.flags.values()]
    is_positional = any(flag.type.startswith("positional") for flag in flags)
    problems, remaining = [], list(words)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("-") or re.fullmatch(r"-\d.*", word):
            if not is_positional:
                problems.append(f"{word}: no flag, and the program takes no such words")
            continue
        flag = next(filter(None, (program.find(word) for program in programs)), None)
        if flag is None:
            problems.append(f"{word}: the program does not know it")
            continue
        _, equals, value = word.partition("=")
        argument: str | None = value if equals else None
        if argument is None and not flag.is_switch:
            argument = remaining.pop(0) if remaining else None
        if problem := flag.objection(argument):
            problems.append(f"{word}: {problem}")
    return problems


def find_unknown_keys(text: str, tables: list[Program]) -> str:
    """Return the keys of a JSON document that the program whose keys it has does not know."""
    keys = [
        re.sub(r"(?<=\.)(128|512)(?=\.|$)", "<seq>", key) for key in _list_keys(json.loads(text))
    ]
    best = max(tables, key=lambda table: len(set(keys) & set(table.flags)))
    unknown = ", ".join(key for key in keys if key not in best.flags)
    return unknown and f"{best.title} knows no {unknown}"


def _list_keys(document: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of a JSON document's values."""
    if not isinstance(document, dict) or not document:
        return [prefix]
    items = ((f"{prefix}.{key}" if prefix else key, value) for key, value in document.items())
    return [name for key, value in items for name in _list_keys(value, key)]

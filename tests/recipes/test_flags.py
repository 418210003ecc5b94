"""Every word that a recipe hands to a program is one that the program takes, at the pinned commit.

A table of flags has the program in its first line, its columns in the second: flag, type, default,
choices, note. A key of a JSON file is a row, too, with dots between the levels.
"""

import json
import re
import subprocess
import sys
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpcbert.script.resolve import find_file
from tests.kit.needs import SHARED, lacks, not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import HERE, Case, Script, World, core, fringe, load, presets
from tests.kit.waiting import CEILING
from tests.recipes.test_scripts import render_at_some_precision

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


# They need ssh and host files, or exit 0 whatever becomes of the ranks (microsoft/DeepSpeed@1afca8f,
# deepspeed/launcher/runner.py and launch.py). Slurm starts the ranks.
LAUNCHERS = {f"deepspeed{end}" for end in ("", ".launcher.launch", ".launcher.runner")} | {
    *("horovodrun", "mpiexec", "mpirun", "orterun", "pdsh", "ssh")
}


def read_tables(name: str) -> list[Program]:
    files = load(name).source.flags
    programs = [program for file in files if (program := read_flag_table(file)) is not None]
    if len(programs) < len(files):
        lacks("logs", "tables of flags", f"not all of {', '.join(files)} are here")
    return programs


def select_tables(program: str, tables: list[Program]) -> list[Program]:
    commands = [candidate for candidate in tables if not candidate.is_json]
    last = program.rpartition(".")[2] if not program.endswith(".py") else program
    matches = [command for command in commands if last in command.title or program in command.title]
    if matches and not program.endswith(".py") and len(commands) > 1:
        return matches
    shared = [command for command in commands if command.title.startswith("absl.")]
    return [*matches, *shared] if matches else commands


def test_a_rank_calls_its_program_itself_with_words_that_it_takes(name, tmp_path):
    """For all that a recipe can do; a case that it can't do says so before it calls a program."""
    world, tables, files = World(name, tmp_path), read_tables(name), 0
    forms: dict[tuple[str, str], Script] = {}
    settings = [table for table in tables if table.is_json]
    for case in [*core(load(name)), *fringe(load(name))]:
        script = render_at_some_precision(case, name, world.render)
        assert "None" not in script.rank
        forms.setdefault((case.preset.name, re.sub(r"\d+", "0", script.rank)), script)
    tried = set()
    for script in forms.values():
        run = world.run(script, prints=TEMPLATES / name / "sample.log")
        for file, text in run.files.items() if settings else ():
            assert not find_unknown_keys(text, settings), f"{script.case}: {file}"
            files += 1
        assert not list((tmp_path / "tmp").iterdir())
        if run.refused:
            continue
        tried.add(script.case.preset.name)
        assert run.exit == 0, f"{script.case}: {run.output}"
        assert run.calls, f"{script.case}: no program was called"
        for program, words in chain.from_iterable(map(split_programs, run.calls)):
            assert program not in LAUNCHERS
            if program == "python":
                assert words in ([], ["-u"]), f"{script.case}: {words}"
            elif tables:
                problems = "; ".join(find_objections(words, select_tables(program, tables)))
                assert not problems, f"{script.case}: {program}: {problems}"
    assert tried == set(load(name).protocols)
    assert files or not settings, "no configuration was seen"


def test_an_upstream_program_has_its_table_of_flags(name):
    source = load(name).source
    if name == "composer":  # It imports a model of the checkout, and starts no program of it.
        return
    assert bool(source.flags) == bool(source.repository), "source.flags names the tables of flags"
    assert not source.flags or source.commit in {table.commit for table in read_tables(name)}


def test_a_program_of_our_own_takes_every_word(name, tmp_path):
    recipe = load(name)
    scripts = [find_file(recipe, file) for file in recipe.files if file.endswith(".py")]
    if recipe.source.repository or not scripts:
        not_applicable(f"{name} runs a program of others")
    for module in recipe.modules:
        pytest.importorskip(module)
    world = World(name, tmp_path)
    call = world.run(world.render(Case(core(recipe)[-1].shape, *presets(recipe)[0]))).calls[0]
    words = split_programs(call)[-1][1]
    # With --help at the end, argparse has read every value before it prints its flags and ends.
    argv = [sys.executable, str(scripts[0]), *words, "--help"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=CEILING)
    assert result.returncode == 0, result.stderr
    matches = set(re.findall(r"--[a-z][\w-]*", result.stdout))
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= matches

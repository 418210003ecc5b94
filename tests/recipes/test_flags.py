"""Every word that a recipe hands to a program is one that the program takes, at the pinned commit.

A table of flags has the program in its first line, its columns in the second: flag, type, default,
choices, note. A key of a JSON file is a row, too, with dots between the levels.
"""

import argparse
import json
import re
import subprocess
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hpcbert.script.resolve import find_file
from tests.kit.cases import read_constant
from tests.kit.needs import SHARED, lacks, not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import HERE, Script, World, core, fringe, load, presets
from tests.kit.waiting import CEILING
from tests.recipes.test_scripts import render_at_some_precision

_UNUSED = re.compile(r"(?i)ignored|not used|unused|no effect|removed before")
_FORMS = read_constant(__file__, "FORMS")
LAUNCHERS = read_constant(__file__, "LAUNCHERS")


def read_tables(name):
    """Return type, default, choices and note of the flags of each program, or keys of its files."""
    source, commits = load(name).source, set()
    tables: dict[str, dict[str, list[str]]] = {}
    for file in source.flags:
        folders = (HERE / "flags", SHARED / "upstream-flags")
        path = next(filter(Path.is_file, (folder / file for folder in folders)), None)
        if path is None:
            lacks("logs", "tables of flags", f"{file} is not here")
        first, _, *rows = path.read_text().splitlines()
        program, *_, commit = first.removeprefix("# program: ").split(" · ")
        columns = [[*row.split("\t"), "", "", "", ""] for row in rows]
        flags = {flag: fields[:4] for flag, *fields in columns}
        tables[program] = {**flags, **tables.get(program, {})}
        commits.add(commit.removeprefix("commit "))
    # Composer's recipe imports a model of the checkout, and starts no program of it.
    assert bool(tables) == bool(source.repository) or name == "composer"
    assert not tables or source.commit in commits
    return tables


def parse_words(program, words, tables):
    """Parse words as a program does; of a flag that two of its tables have, the first one counts."""
    last = program if program.endswith(".py") else program.rpartition(".")[2]
    named = [table for table in tables if last in table]
    shared = [table for table in tables if table.startswith("absl.")]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    flags = {}
    for table in reversed([*named, *shared] if named else [*tables]):
        flags |= tables[table]
    for flag, (kind, _, choices, note) in flags.items():
        if not flag.startswith("-") or _UNUSED.search(note):
            continue
        options: dict[str, Any] = {"action": "store_true"}
        if kind != "flag":
            form = _FORMS.get(kind.split()[0], r"(?s:.*)")
            if "anything" not in choices and re.fullmatch(r"[\w|.-]+", choices):
                form = "|".join(map(re.escape, choices.split("|")))
            # re.fullmatch returns None for what the program would refuse.
            options = {"type": partial(re.fullmatch, form), "default": True}
            if kind in ("absl-bool", "optional-value") or "value optional" in note:
                options |= {"nargs": "?", "const": True}
        parser.add_argument(flag, **options)
        if kind == "absl-bool":
            parser.add_argument(f"--no{flag.lstrip('-')}", action="store_true")
    parsed, unknown = parser.parse_known_args(words)
    assert unknown == [], f"{program} takes no {unknown}"
    assert None not in vars(parsed).values(), f"{program}: a value of another type in {words}"


def split_programs(argv):
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


def test_a_rank_calls_its_program_itself_with_words_that_it_takes(name, tmp_path):
    """For all that a recipe can do; a case that it can't do says so before it calls a program."""

    def list_keys(document, prefix=""):
        """Return the dotted names of a JSON document's values."""
        if not isinstance(document, dict) or not document:
            return [re.sub(r"(?<=\.)(128|512)(?=\.|$)", "<seq>", prefix)]
        inner = ((f"{prefix}.{key}" if prefix else key, value) for key, value in document.items())
        return [key for name, value in inner for key in list_keys(value, name)]

    world, files, tried = World(name, tmp_path), 0, set()
    forms: dict[tuple[str, str], Script] = {}
    tables = read_tables(name)
    settings = {table for table in tables if "JSON" in table or ".json" in table}
    commands = {table: tables[table] for table in tables if table not in settings}
    for case in [*core(load(name)), *fringe(load(name))]:
        script = render_at_some_precision(case, name, world.render)
        assert "None" not in script.rank
        forms.setdefault((case["preset"], re.sub(r"\d+", "0", script.rank)), script)
    for script in forms.values():
        run = world.run(script, prints=TEMPLATES / name / "sample.log")
        for file, text in run.files.items() if settings else ():
            keys = {*list_keys(json.loads(text))}
            unknown = min((keys - {*tables[table]} for table in settings), key=len)
            assert not unknown, f"{script.case}: {file} has keys that its program does not know"
            files += 1
        assert not list((tmp_path / "tmp").iterdir())
        if run.refused:
            continue
        tried.add(script.case["preset"])
        assert run.exit == 0, f"{script.case}: {run.output}"
        assert run.calls, f"{script.case}: no program was called"
        for program, words in chain.from_iterable(map(split_programs, run.calls)):
            assert program not in LAUNCHERS
            if program == "python":
                assert words in ([], ["-u"]), f"{script.case}: {words}"
            elif commands:
                parse_words(program, words, commands)
    assert tried == set(load(name).protocols)
    assert files or not settings, "no configuration was seen"


def test_a_program_of_our_own_takes_every_word(name, tmp_path):
    recipe = load(name)
    scripts = [find_file(recipe, file) for file in recipe.files if file.endswith(".py")]
    if recipe.source.repository or not scripts:
        not_applicable(f"{name} runs a program of others")
    for module in recipe.modules:
        pytest.importorskip(module)
    world = World(name, tmp_path)
    call = world.run(world.render({**core(recipe)[-1], **presets(recipe)[0]})).calls[0]
    words = split_programs(call)[-1][1]
    # With --help at the end, argparse has read every value before it prints its flags and ends.
    argv = [sys.executable, str(scripts[0]), *words, "--help"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=CEILING)
    assert result.returncode == 0, result.stderr
    matches = set(re.findall(r"--[a-z][\w-]*", result.stdout))
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= matches

"""Every word that a recipe hands to a program is one that the program takes, at the pinned commit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbert.script.resolve import find_file
from tests.kit.needs import lacks, not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import Case, Run, World, core, fringe, load, presets
from tests.kit.waiting import CEILING
from tests.recipes.flagtables import (
    Program,
    find_objections,
    list_keys,
    read_flag_table,
    split_programs,
)


def run_cases(name: str, tmp_path: Path) -> list[tuple[Case, Run]]:
    """Run rank 0's script for all that a recipe can do; those that refuse a case say so and end."""
    world = World(name, tmp_path)
    case_runs, forms = [], set()
    for case in [*core(load(name)), *fringe(load(name))]:
        script = world.render(case)
        form = case.preset.name, re.sub(r"\d+", "0", script.rank)
        if form not in forms:
            forms.add(form)
            case_runs.append((case, world.run(script, prints=TEMPLATES / name / "sample.log")))
    return case_runs


def read_tables(name: str) -> list[Program]:
    recipe = load(name)
    if not recipe.source.flags:
        not_applicable(f"{name} names no table of flags")
    programs = [read_flag_table(file) for file in recipe.source.flags]
    for file, program in zip(recipe.source.flags, programs, strict=True):
        if program is None:
            lacks("logs", "tables of flags", f"{file} is not here")
    return [program for program in programs if program is not None]


def test_an_upstream_program_has_its_table_of_flags(name: str) -> None:
    recipe = load(name)
    if name == "composer":  # It imports a model of the checkout, and starts no program of it.
        return
    assert bool(recipe.source.flags) == bool(recipe.source.repository), (
        "source.flags names the tables of flags"
    )
    if recipe.source.flags:
        assert recipe.source.commit in {program.commit for program in read_tables(name)}


def test_every_word_and_every_key_of_a_written_configuration_is_known(
    name: str, tmp_path: Path
) -> None:
    programs = read_tables(name)
    tables = [program for program in programs if program.is_json]
    tried, files = set(), 0
    for case, run in run_cases(name, tmp_path):
        for file, text in run.files.items() if tables else ():
            problems = find_unknown_keys(text, tables)
            assert not problems, f"{case}: {file}: {problems}"
            files += 1
        if run.refused:
            continue
        assert run.exit == 0, f"{case}: {run.output}"
        assert run.calls, f"{case}: no program was called"
        tried.add(case.preset.name)
        for call in run.calls:
            for program, words in split_programs(call):
                if program == "python":
                    assert words in ([], ["-u"]), f"{case}: {words}"
                    continue
                problems = "; ".join(find_objections(words, _select_tables(program, programs)))
                assert not problems, f"{case}: {program}: {problems}"
    assert tried == set(load(name).protocols)
    assert files or not tables, "no configuration was seen"


def find_unknown_keys(text: str, tables: list[Program]) -> str:
    keys = list_keys(json.loads(text))
    names = [re.sub(r"(?<=\.)(128|512)(?=\.|$)", "<seq>", key) for key in keys]
    best = max(tables, key=lambda candidate: len(set(names) & set(candidate.flags)))
    unknown = ", ".join(key for key in names if key not in best.flags)
    return unknown and f"{best.title} knows no {unknown}"


def _select_tables(program: str, programs: list[Program]) -> list[Program]:
    commands = [candidate for candidate in programs if not candidate.is_json]
    last = program.rpartition(".")[2] if not program.endswith(".py") else program
    matches = [command for command in commands if last in command.title or program in command.title]
    if matches and not program.endswith(".py") and len(commands) > 1:
        return matches
    shared = [command for command in commands if command.title.startswith("absl.")]
    return [*matches, *shared] if matches else commands


def test_a_program_of_our_own_takes_every_word(name: str, tmp_path: Path) -> None:
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
    result = subprocess.run(
        [sys.executable, str(scripts[0]), *words, "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=CEILING,
    )
    assert result.returncode == 0, result.stderr
    matches = set(re.findall(r"--[a-z][\w-]*", result.stdout))
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= matches

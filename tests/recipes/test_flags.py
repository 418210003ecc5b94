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
from tests.recipes.flagtables import Program, keys, objections, split, table


def runs(name: str, tmp_path: Path) -> list[tuple[Case, Run]]:
    """Run rank 0's script for all that a recipe can do; those that refuse a case say so and end."""
    world = World(name, tmp_path)
    found, seen = [], set()
    for case in [*core(load(name)), *fringe(load(name))]:
        script = world.render(case)
        form = case.preset.name, re.sub(r"\d+", "0", script.rank)
        if form not in seen:
            seen.add(form)
            found.append((case, world.run(script, prints=TEMPLATES / name / "sample.log")))
    return found


def tables(name: str) -> list[Program]:
    recipe = load(name)
    if not recipe.source.flags:
        not_applicable(f"{name} names no table of flags")
    programs = [table(file) for file in recipe.source.flags]
    for file, program in zip(recipe.source.flags, programs, strict=True):
        if program is None:
            lacks("logs", "tables of flags", f"{file} is not here")
    return [program for program in programs if program is not None]


def test_an_upstream_program_has_its_table_of_flags(name: str) -> None:
    recipe = load(name)
    assert bool(recipe.source.flags) == bool(recipe.source.repository), (
        "source.flags names the tables of flags"
    )
    if recipe.source.flags:
        assert recipe.source.commit in {program.commit for program in tables(name)}


def test_every_word_is_a_flag_of_the_program_and_has_a_value_it_takes(
    name: str, tmp_path: Path
) -> None:
    programs = tables(name)
    tried = set()
    for case, run in runs(name, tmp_path):
        if run.refused:
            continue
        assert run.exit == 0, f"{case}: {run.output}"
        assert run.calls, f"{case}: no program was called"
        tried.add(case.preset.name)
        for call in run.calls:
            for program, words in split(call):
                if program == "python":
                    assert words in ([], ["-u"]), f"{case}: {words}"
                    continue
                found = objections(words, _tables_of(program, programs))
                assert not found, f"{case}: {program}: " + "; ".join(found)
    assert tried == set(load(name).protocols)


def _tables_of(program: str, programs: list[Program]) -> list[Program]:
    """Return the tables of one of the programs: by its name, else all."""
    commands = [one for one in programs if not one.is_json]
    last = program.rpartition(".")[2] if not program.endswith(".py") else program
    own = [command for command in commands if last in command.title or program in command.title]
    if own and not program.endswith(".py") and len(commands) > 1:
        return own
    shared = [command for command in commands if command.title.startswith("absl.")]
    return [*own, *shared] if own else commands


def test_every_key_of_a_written_configuration_is_known(name: str, tmp_path: Path) -> None:
    programs = [program for program in tables(name) if program.is_json]
    if not programs:
        not_applicable(f"{name} writes no configuration that has a table")
    files = 0
    for case, run in runs(name, tmp_path):
        for file, text in run.files.items():
            names = [
                re.sub(r"(?<=\.)(128|512)(?=\.|$)", "<seq>", key) for key in keys(json.loads(text))
            ]
            best = max(programs, key=lambda one: len(set(names) & set(one.flags)))
            unknown = [key for key in names if key not in best.flags]
            assert not unknown, f"{case}: {file}: {best.title} knows no {', '.join(unknown)}"
            files += 1
    assert files, "no configuration was seen"


def test_a_program_of_our_own_takes_every_word(name: str, tmp_path: Path) -> None:
    recipe = load(name)
    scripts = [find_file(recipe, file) for file in recipe.files if file.endswith(".py")]
    if recipe.source.repository or not scripts:
        not_applicable(f"{name} runs a program of others")
    for module in recipe.modules:
        pytest.importorskip(module)
    world = World(name, tmp_path)
    call = world.run(world.render(Case(core(recipe)[-1].shape, *presets(recipe)[0]))).calls[0]
    words = split(call)[-1][1]
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

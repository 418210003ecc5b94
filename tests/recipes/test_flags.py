"""Every word that a recipe hands to a program is one that the program takes, at the pinned commit."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from hpcbert.script.resolve import find_file
from tests.kit.needs import lacks, not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import Case, Script, World, core, fringe, load, presets
from tests.kit.waiting import CEILING
from tests.recipes.flagtables import (
    Program,
    find_objections,
    find_unknown_keys,
    read_flag_table,
    split_programs,
)
from tests.recipes.test_scripts import render_at_some_precision

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


def test_a_rank_calls_its_program_itself_with_words_that_it_takes(
    name: str, tmp_path: Path
) -> None:
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


def test_an_upstream_program_has_its_table_of_flags(name: str) -> None:
    source = load(name).source
    if name == "composer":  # It imports a model of the checkout, and starts no program of it.
        return
    assert bool(source.flags) == bool(source.repository), "source.flags names the tables of flags"
    assert not source.flags or source.commit in {table.commit for table in read_tables(name)}


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
    argv = [sys.executable, str(scripts[0]), *words, "--help"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=CEILING)
    assert result.returncode == 0, result.stderr
    matches = set(re.findall(r"--[a-z][\w-]*", result.stdout))
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= matches

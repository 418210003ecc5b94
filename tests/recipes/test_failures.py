"""What is taken for a lack of memory, and what is not, in the programs' own words."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from hpcbert.config.toml import read
from hpcbert.logs import failures, grammar
from tests.kit.cases import read_constant
from tests.kit.recipes import NAMES

ROOT = Path(__file__).parents[2]

# What says that the device's memory did not suffice, as the sources in shortage.toml print it.
DEVICE = read_constant(__file__, "DEVICE")
# Words that only the program of one recipe speaks.
OWN = {
    "oneflow": "  what():  Error: out of memory ",
    "oneflow-models": "RuntimeError: out of memory",
}

HOST = read_constant(__file__, "HOST")
# Lines that only speak of memory, or hold the words as somebody's text.
NEITHER = read_constant(__file__, "NEITHER")
# Bare, and as srun, mpirun, pdsh and a colourful logger would have it.
PREFIXES = ("", "  3: ", "[1,3]<stderr>:", "vs003: ", "\x1b[31m")
GRAMMAR = grammar.Grammar((), (), reader="none")


def _find_shortage(tmp_path: Path, *lines: str, recipe: str = "") -> failures.Failure | None:
    path = tmp_path / "run.log"
    path.write_text("".join(f"{line}\n" for line in ("it began", *lines, "it ended")))
    return failures.find_shortage(path, _load_grammar(recipe) if recipe else GRAMMAR)


@cache
def _load_grammar(recipe: str) -> grammar.Grammar:
    path = ROOT / "templates" / recipe / "recipe.toml"
    return grammar.parse(read(path)["log"], where=str(path))


@pytest.mark.parametrize("words", DEVICE)
def test_the_devices_memory_by_a_librarys_words(words: str, tmp_path: Path) -> None:
    line = DEVICE[words]
    for spelt in (line, line.upper(), line.lower()):
        for prefix in PREFIXES:
            failure = _find_shortage(tmp_path, prefix + spelt)
            assert failure, prefix + spelt
            assert failure.kind == "device-oom", prefix + spelt
            assert " ".join(spelt.split())[:40] in failure.said


@pytest.mark.parametrize("recipe", OWN)
def test_the_devices_memory_by_one_programs_words(recipe: str, tmp_path: Path) -> None:
    failure = _find_shortage(tmp_path, OWN[recipe], recipe=recipe)
    assert failure
    assert failure.kind == "device-oom"
    assert _find_shortage(tmp_path, OWN[recipe]) is None


def test_on_the_cpu_the_devices_memory_is_the_hosts(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(f"{DEVICE['mindspore 2']}\n")
    failure = failures.find_shortage(path, GRAMMAR, "cpu")
    assert failure
    assert failure.kind == "host-oom"


@pytest.mark.parametrize("words", HOST)
def test_the_hosts_memory(words: str, tmp_path: Path) -> None:
    failure = _find_shortage(tmp_path, HOST[words])
    assert failure
    assert failure.kind == "host-oom"


@pytest.mark.parametrize("recipe", NAMES)
def test_what_only_speaks_of_memory_is_neither(recipe: str, tmp_path: Path) -> None:
    for line in NEITHER:
        assert _find_shortage(tmp_path, line, recipe=recipe) is None, line
        assert _find_shortage(tmp_path, line.lower(), recipe=recipe) is None, line


@pytest.mark.parametrize("recipe", NAMES)
def test_no_complete_log_speaks_of_a_lack(recipe: str) -> None:
    sample = ROOT / "templates" / recipe / "sample.log"
    assert failures.find_shortage(sample, _load_grammar(recipe)) is None


def test_the_first_words_count_but_for_slurms(tmp_path: Path) -> None:
    device, host = DEVICE["torch 2.5"], HOST["python"]
    pairs = ((device, host), (host, device), (device, HOST["slurm 23"]))
    results = [_find_shortage(tmp_path, *pair) for pair in pairs]
    kinds = [failure.kind for failure in results if failure]
    assert kinds == ["device-oom", "host-oom", "host-oom"]


@pytest.mark.parametrize("recipe", NAMES)
def test_a_nodes_grep_finds_the_same_words(recipe: str, tmp_path: Path) -> None:
    """The search for the largest batch, which is a shell's, against the reader."""
    words = failures.shortage_signs(_load_grammar(recipe), "gpu")[0]
    path = tmp_path / "words.log"
    lines = [*DEVICE.values(), *NEITHER, *HOST.values()]
    path.write_text("".join(f"{line}\n" for line in lines))
    grep = ["grep", "-aniP", "-e", words, str(path)]
    result = subprocess.run(grep, capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    numbers = [int(line.partition(":")[0]) for line in result.stdout.splitlines()]
    assert numbers == list(range(1, len(DEVICE) + 1)), result.stderr

"""What is taken for a lack of memory, and what is not, in the programs' own words."""

import subprocess
from pathlib import Path

import pytest

from hpcbert.logs import failures
from hpcbert.logs.grammar import Grammar
from tests.kit.cases import read_constant
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import NAMES, grammar

# What says that the device's memory did not suffice, or the host's, as the sources in
# shortage.toml print it; lines that only speak of memory, or hold the words as somebody's text.
DEVICE, HOST = read_constant(__file__, "DEVICE"), read_constant(__file__, "HOST")
NEITHER = read_constant(__file__, "NEITHER")
# Words that only the program of one recipe speaks.
OWN = {
    "oneflow": "  what():  Error: out of memory ",
    "oneflow-models": "RuntimeError: out of memory",
}
# Bare, and as srun, mpirun, pdsh and a colourful logger would have it.
PREFIXES = ("", "  3: ", "[1,3]<stderr>:", "vs003: ", "\x1b[31m")
ANY = Grammar((), (), reader="none")


def find_kind(
    tmp_path: Path, *lines: str, words: Grammar = ANY, device: str = "gpu", said: str = ""
) -> str:
    path = tmp_path / "run.log"
    path.write_text("".join(f"{line}\n" for line in ("it began", *lines, "it ended")))
    failure = failures.find_shortage(path, words, device)  # type: ignore[arg-type]
    if said and failure:
        assert said in failure.said
    return failure.kind if failure else ""


@pytest.mark.parametrize("words", DEVICE)
def test_the_devices_memory_by_a_librarys_words(words, tmp_path):
    line = DEVICE[words]
    for spelt in (line, line.upper(), line.lower()):
        for prefix in PREFIXES:
            shown = " ".join(spelt.split())[:40]
            kind = find_kind(tmp_path, prefix + spelt, said=shown)
            assert kind == "device-oom", prefix + spelt


@pytest.mark.parametrize("words", HOST)
def test_the_hosts_memory(words, tmp_path):
    assert find_kind(tmp_path, HOST[words]) == "host-oom"


def test_the_words_of_one_program_and_those_that_come_first_count(tmp_path):
    for recipe, line in OWN.items():
        assert find_kind(tmp_path, line, words=grammar(recipe)) == "device-oom"
        assert not find_kind(tmp_path, line)
    assert find_kind(tmp_path, DEVICE["mindspore 2"], device="cpu") == "host-oom"
    device, host = DEVICE["torch 2.5"], HOST["python"]
    assert find_kind(tmp_path, device, host) == "device-oom"
    assert find_kind(tmp_path, host, device) == "host-oom"
    assert find_kind(tmp_path, device, HOST["slurm 23"]) == "host-oom"


@pytest.mark.parametrize("recipe", NAMES)
def test_what_only_speaks_of_memory_is_no_lack_for_the_reader_nor_for_a_nodes_grep(
    recipe, tmp_path
):
    """The search for the largest batch is a shell's."""
    assert failures.find_shortage(TEMPLATES / recipe / "sample.log", grammar(recipe)) is None
    for line in NEITHER:
        assert not find_kind(tmp_path, line, words=grammar(recipe)), line
        assert not find_kind(tmp_path, line.lower(), words=grammar(recipe)), line
    words = failures.shortage_signs(grammar(recipe), "gpu")[0]
    path = tmp_path / "words.log"
    path.write_text("\n".join([*DEVICE.values(), *NEITHER, *HOST.values(), ""]))
    grep = ["grep", "-aniP", "-e", words, str(path)]
    result = subprocess.run(grep, capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    numbers = [int(line.partition(":")[0]) for line in result.stdout.splitlines()]
    assert numbers == list(range(1, len(DEVICE) + 1)), result.stderr

"""What is taken for a lack of memory, and what is not, in the programs' own words.

Lines are as the sources in the table print them; some only speak of memory, or hold the words as
somebody's text.
"""

import subprocess

from hpcbert.logs import failures
from hpcbert.logs.grammar import Grammar
from tests.kit.cases import read_constant
from tests.kit.logs import write_file
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import grammar

DEVICE, HOST = read_constant(__file__, "DEVICE"), read_constant(__file__, "HOST")


def find_shortage(folder, *lines, words=None, device="gpu"):
    words = words or Grammar((), (), reader="none")
    path = write_file(folder, "run.log", "\n".join(["it began", *lines, "it ended", ""]))
    failure = failures.find_shortage(path, words, device)
    return (failure.kind, failure.said) if failure else ("", "")


def test_a_lack_of_memory_is_the_devices_or_the_hosts_by_a_librarys_words(tmp_path):
    # Bare, and as srun, mpirun, pdsh and a colourful logger would have it.
    prefixes = ("", "  3: ", "[1,3]<stderr>:", "vs003: ", "\x1b[31m")
    for name, line in DEVICE.items():
        for spelt in (line, line.upper(), line.lower()):
            for prefix in prefixes:
                kind, words = find_shortage(tmp_path, prefix + spelt)
                assert kind == "device-oom", f"{name}: {prefix}{spelt}"
                assert " ".join(spelt.split())[:40] in words
    for name, line in HOST.items():
        assert find_shortage(tmp_path, line)[0] == "host-oom", name
    # Words that only the program of one recipe speaks.
    for recipe, line in {
        "oneflow": "  what():  Error: out of memory ",
        "oneflow-models": "RuntimeError: out of memory",
    }.items():
        assert find_shortage(tmp_path, line, words=grammar(recipe))[0] == "device-oom"
        assert find_shortage(tmp_path, line) == ("", "")
    assert find_shortage(tmp_path, DEVICE["mindspore 2"], device="cpu")[0] == "host-oom"
    device, host = DEVICE["torch 2.5"], HOST["python"]
    assert find_shortage(tmp_path, device, host)[0] == "device-oom"
    assert find_shortage(tmp_path, host, device)[0] == "host-oom"
    assert find_shortage(tmp_path, device, HOST["slurm 23"])[0] == "host-oom"


def test_what_only_speaks_of_memory_is_no_lack_for_the_reader_nor_for_a_nodes_grep(name, tmp_path):
    """The search for the largest batch is a shell's."""
    words, neither = grammar(name), read_constant(__file__, "NEITHER")
    assert failures.find_shortage(TEMPLATES / name / "sample.log", words) is None
    for line in neither:
        for spelt in (line, line.lower()):
            assert find_shortage(tmp_path, spelt, words=words) == ("", ""), spelt
    path = write_file(
        tmp_path, "words.log", "\n".join([*DEVICE.values(), *neither, *HOST.values(), ""])
    )
    grep = ["grep", "-aniP", "-e", failures.shortage_signs(words, "gpu")[0], str(path)]
    result = subprocess.run(grep, capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    numbers = [int(line.partition(":")[0]) for line in result.stdout.splitlines()]
    assert numbers == list(range(1, len(DEVICE) + 1)), result.stderr

"""The rate that a program prints when it ends contradicts a grammar that misreads its log."""

from __future__ import annotations

import pytest

from hpcbert.logs.setting import Setting
from tests.kit import recipes
from tests.kit.cases import cases, read_constant
from tests.kit.logs import Reader, codes, grammar_file, step
from tests.logs.test_crosscheck_evenness import HEADERS

# A log of the Hugging Face Trainer, read as if its tokens were iterations and its runtime a clock.
FORCED = read_constant(__file__, "FORCED")
ONE = Setting(nodes=1, gpus_per_node=1, gpus=1, batch_size_per_device=4, accumulation=1)
TOKENS = ONE._replace(skip=512 * 20, iters=512 * 120)


def trainer(closing: str) -> str:
    lines = [
        f"{{'loss': 9.5, 'epoch': 0.1, 'num_input_tokens_seen': {512 * n}, 'train_runtime': {n * 4 / 42:.6f}}}"
        for n in range(1, 121)
    ]
    return "\n".join([*lines, closing, ""])


CLOSINGS = read_constant(__file__, "CLOSINGS")


@pytest.mark.parametrize("closing", CLOSINGS.values(), ids=CLOSINGS)
def test_a_forced_grammar_is_contradicted(read: Reader, closing: str) -> None:
    reading = read(FORCED, trainer(closing), "", TOKENS)
    assert codes(reading) == ["contradiction"]
    assert "gives 21504 samples/s" in str(reading.reasons[0])
    assert " 42 for the same log" in str(reading.reasons[0])


@pytest.mark.parametrize("closing", CLOSINGS.values(), ids=CLOSINGS)
def test_the_right_number_is_not(read: Reader, closing: str) -> None:
    toml = FORCED.replace("every = 512", "every = 1")
    log = "".join(
        line.replace(f"'num_input_tokens_seen': {512 * n}", f"'num_input_tokens_seen': {n}") + "\n"
        for n, line in enumerate(trainer(closing).splitlines(), start=1)
    )
    assert read(toml, log, "", ONE).throughput == pytest.approx(42, rel=1e-4)


@cases
def test_other_rates_contradict_nothing(read: Reader, closing: str) -> None:
    assert read(FORCED, trainer(closing), "", TOKENS).throughput == pytest.approx(21504, rel=1e-4)


@pytest.mark.parametrize("name", ["oneflow", "megatron"])
@pytest.mark.parametrize(("rate", "agrees"), [(512, True), (430, True), (256, False), (700, False)])
def test_a_closing_rate_may_be_somewhat_lower_and_hardly_higher(
    read: Reader, name: str, rate: int, *, agrees: bool
) -> None:
    header, line = HEADERS[name]
    lines = [line(n, float(n)) for n in range(1, 121)]
    log = "\n".join([*header, *lines, f"{{'train_samples_per_second': {rate}}}", ""])
    setting = ONE._replace(batch_size_per_device=512)
    reading = read(recipes.grammar(name), log, "", setting)
    assert (codes(reading) == []) is agrees


def test_what_a_recipe_says_of_a_closing_line_holds(read: Reader) -> None:
    """Its own rule is compared, or not, as it says."""
    text = grammar_file("steps").read_text()
    log = "".join(step(n, rate=32.0) for n in range(1, 121)) + "{'train_samples_per_second': 9}\n"
    setting = ONE._replace(batch_size_per_device=32)
    assert codes(read(text, log, "rate", setting)) == ["contradiction"]
    recipe = text.replace('"result: "', "\"'train_samples_per_second': \"").replace(
        "result: (?P", "train_samples_per_second.: (?P"
    )
    silent = recipe.replace('kind = "footer"', 'kind = "footer"\ncross_check = false')
    assert read(silent, log, "rate", setting).throughput == pytest.approx(32)

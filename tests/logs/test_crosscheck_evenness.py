"""A mean that hides slow steps says so, and a program that starts again in the window has no number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from hpcbert.logs.crosscheck import WindowRecord, find_unevenness
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit import recipes
from tests.kit.cases import read_constant
from tests.kit.logs import Reader, codes, grammar_file, step

BATCH = Setting(nodes=1, gpus_per_node=1, gpus=1, batch_size_per_device=512, accumulation=1)
STEPS = grammar_file("steps")
Seconds = Callable[[int], float]


# Seconds of an iteration.
EVEN: dict[str, Seconds] = {"alike": lambda _: 1.0, "alternating": lambda n: 1.2 if n % 2 else 1.0}
UNEVEN: dict[str, Seconds] = {
    "compilation": lambda n: 10.0 if n <= 30 else 1.0,
    "slow half": lambda n: 4.2 if n > 70 else 1.0,
    "slow middle": lambda n: 4.2 if 40 < n <= 90 else 1.0,
    "slow third": lambda n: 1.3 if n > 88 else 1.0,
    # The mean hides this within its tolerance.
    "slow end": lambda n: 1.24 if n > 102 else 1.0,
}


def evaluation(n: int) -> float:
    return 14.0 if n == 70 else 1.0


def list_moments(seconds: Seconds, last: int = 120) -> list[tuple[int, float]]:
    now, lines = 0.0, []
    for n in range(1, last + 1):
        now += seconds(n)
        lines.append((n, now))
    return lines


def render_steps(seconds: Seconds) -> str:
    """Return a log with a clock alone: no printed rate could contradict it."""
    return "".join(step(n, at=now, rate="-") for n, now in list_moments(seconds))


def render_perfzero(seconds: Seconds) -> str:
    lines = [
        f"I0826 {22 + int(now) // 3600:02}:{int(now) // 60 % 60:02}:{now % 60:09.6f} 1 model.py:7]"
        f" Train Step: {n}/120  / loss = 9.5"
        for n, now in list_moments(seconds)
    ]
    return "\n".join([*lines, ""])


def render_megatron(seconds: Seconds) -> str:
    return "".join(
        f" iteration {n:8}/ 120 | consumed samples: 9 | elapsed time per iteration (ms): "
        f"{1000 * seconds(n):.1f} | learning rate: 1E-4 | global batch size: 512 | lm loss: 9.5E+00 "
        "| number of skipped iterations: 0 | number of nan iterations: 0 |\n"
        for n in range(1, 121)
    )


def render_paddle(seconds: Seconds) -> str:
    return "".join(
        f"global step {n}, epoch: 0, batch: {n}, loss: 9.5, ips: {512 / seconds(n):.3f} sequences/s\n"
        for n in range(1, 121)
    )


FORMS = {
    "steps": render_steps,
    "tf2": render_perfzero,
    "megatron": render_megatron,
    "paddle": render_paddle,
}


def read_log(read: Reader, form: str, seconds: Seconds) -> Reading:
    toml = STEPS if form == "steps" else recipes.grammar(form)
    return read(toml, FORMS[form](seconds), "", BATCH)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", UNEVEN)
def test_a_mean_of_unlike_steps_is_flagged(read: Reader, form: str, steps: str) -> None:
    result = read_log(read, form, UNEVEN[steps])
    assert result.reasons == ()
    assert result.flags == ("uneven",)
    (note,) = result.notes
    assert note.flag == "uneven"
    assert f"{result.throughput:,.2f} samples/s" in note.detail
    assert "512" in note.detail or f"{512 / 4.2:,.2f}" in note.detail


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", EVEN)
def test_steps_that_are_alike_or_take_turns_are_not(read: Reader, form: str, steps: str) -> None:
    result = read_log(read, form, EVEN[steps])
    assert result.throughput
    assert (result.flags, result.notes) == ((), ())


@pytest.mark.parametrize("form", ["steps", "tf2", "megatron"])
def test_one_long_step_is_named(read: Reader, form: str) -> None:
    (note,) = read_log(read, form, evaluation).notes
    assert note.detail.endswith("see iteration 70")


LOOPS = read_constant(__file__, "LOOPS")


def test_loops_of_which_one_evaluates_are_flagged(read: Reader) -> None:
    moments = [0, 10, 20, 90, 100, 110]
    log = "".join(f"loop {20 + 10 * n} {1763717655 + at}\n" for n, at in enumerate(moments))
    result = read(LOOPS, log, "", BATCH._replace(skip=20, iters=70))
    assert result.throughput == pytest.approx(232.727, rel=1e-5)
    assert result.flags == ("uneven",)
    assert result.notes[0].detail == (
        "232.73 samples/s in all, 512.00 at the median step; see iterations 41 to 50"
    )


def test_a_median_hides_nothing(read: Reader) -> None:
    text = STEPS.read_text().replace(
        'name = "rate"\nkind = "rate"', 'name = "rate"\nkind = "rate"\naverage = "median"'
    )
    log = "".join(step(n, rate=512 / UNEVEN["compilation"](n)) for n in range(1, 121))
    result = read(text, log, "rate", BATCH._replace(batch_size_per_device=None))
    assert (result.throughput, result.flags) == (512, ())


@pytest.mark.parametrize("count", [2, 5, 12, 100])
def test_steps_that_scatter_a_little_are_not_uneven(count: int) -> None:
    random = Random(7)
    for _ in range(200):
        rates = [random.gauss(100, 1) for _ in range(count)]
        parts = [WindowRecord(n, rate, 1.0, False, 1) for n, rate in enumerate(rates, start=1)]
        assert find_unevenness(sum(rates) / count, parts) is None


# What a program prints first, and its line of an iteration.
HEADERS: dict[str, tuple[Sequence[str], Callable[[int, float], str]]] = {
    "pytorch": (
        ['hpcbert-config {"batch_size_per_device": 512, "world_size": 1, "accumulation": 1}'],
        lambda n, now: (
            f"iteration: {n}/120 loss: 9.5 samples/s: 512.0 time: {1763717655 + now:.6f}"
        ),
    ),
    "oneflow": (
        ["batch_size_per_device = 512", "gpu_num_per_node = 1", "num_nodes = 1"],
        lambda n, now: (
            f"step: {n - 1}, total_loss: 9.5, mlm_loss: 9, nsp_loss: 1, throughput: 512.0 {1763717655 + now:.6f}"
        ),
    ),
    "megatron": (
        [
            "  micro_batch_size ................................ 512",
            "  world_size ...................................... 1",
        ],
        lambda n, _: render_megatron(EVEN["alike"]).splitlines()[n - 1],
    ),
    "ngc-tf1": (
        ["  train_batch_size: 512", "  num_accumulation_steps: 1"],
        lambda n, now: (
            f"DLL 2021-12-17 12:{int(now) // 60:02}:{now % 60:09.6f} - Iteration: {n}  throughput_train : 512.0 seq/s mlm_loss : 9.0 total_loss : 9.5 "
        ),
    ),
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("after", [0, 10, 60], ids=["once", "in-warm-up", "in-the-window"])
def test_a_header_inside_the_window_is_a_restart(read: Reader, name: str, after: int) -> None:
    header, line = HEADERS[name]
    lines = [line(n, float(n + 12 * (after == 60 < n))) for n in range(1, 121)]
    if after:
        lines.insert(after, "\n".join(header))
    result = read(recipes.grammar(name), "\n".join([*header, *lines, ""]), "", BATCH)
    if after == 60:
        assert codes(result) == ["window"]
        assert "printed again after iteration 60" in str(result.reasons[0])
    else:
        assert result.throughput == pytest.approx(512, rel=1e-3)


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("again", ["header", "job"])
def test_a_restart_inside_a_job_or_of_it_is_a_restart(read: Reader, name: str, again: str) -> None:
    """A program that a launcher starts again does not print the line of the job."""
    header, line = HEADERS[name]
    job = "hpcbert: ranks start with batch_size_per_device=512 accumulation=1"
    lines = [line(n, float(n)) for n in range(1, 121)]
    lines.insert(60, {"header": "\n".join(header), "job": job}[again])
    result = read(recipes.grammar(name), "\n".join([job, *header, *lines, ""]), "", BATCH)
    assert codes(result) == ["window"]
    assert "printed again after iteration 60" in str(result.reasons[0])


def test_a_rank_that_prints_a_part_of_its_header_late_is_no_restart(read: Reader) -> None:
    header, line = HEADERS["oneflow"]
    lines = [line(n, float(n)) for n in range(1, 121)]
    lines.insert(60, header[0])
    result = read(recipes.grammar("oneflow"), "\n".join([*header, *lines, ""]), "", BATCH)
    assert result.throughput == pytest.approx(512)

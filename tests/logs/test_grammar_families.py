"""Every kind of log of the upstream programs, described as data alone.

The lines are those that the programs print (their sources are named); the numbers are worked out
by hand from the lines.
"""

from __future__ import annotations

from typing import Any

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.logs import TEST_RECIPES, Reader, codes, grammar_file

MXNET, PADDLE, TF2 = map(grammar_file, ("mxnet", "paddle", "tf2"))


@cases
def test_a_log_gives_the_number_that_is_worked_out_by_hand(
    read: Reader,
    *,
    grammar: str,
    head: str | None,
    line: str | None,
    places: tuple[int, int, int] | None,
    offset: int | None,
    tail: str | None,
    prefixes: tuple[str, ...] | None,
    setting: dict[str, Any] | None,
    numbers: dict[str, float | str],
) -> None:
    toml = grammar_file(grammar)
    toml = toml if toml.exists() else TEST_RECIPES / grammar / "recipe.toml"
    settings = Setting()._replace(**(setting or {})).settled({})[0]
    text = "\n".join(
        (line or "").format(
            n=n,
            v=n + (offset or 0),
            minute=f"{28 + n // 60:02}",
            second=f"{n % 60:02}",
            at=1593152763.25 + n / 4,
        )
        for n in range(*(places or (0,)))
    )
    lines = f"{head or ''}{text}\n{tail or ''}".splitlines()
    for prefix in prefixes or ("",):
        log = "".join(f"{prefix}{line}\n" for line in lines)
        for rule, number in numbers.items():
            reading = read(toml, log, rule, settings)
            if isinstance(number, str):
                assert reading.throughput is None
                assert str(reading.reasons[0]).startswith(number)
            else:
                assert reading.throughput == pytest.approx(number), reading


@cases
def test_paddle_spells_its_rate_per_gpu_in_four_ways_and_in_colour(read: Reader, line: str) -> None:
    log = "ips: 127.0.0.1\n" + "".join(line.format(n=n) + "\n" for n in range(10, 130, 10))
    assert read(PADDLE, log, "", Setting(gpus=32)).throughput == pytest.approx(146.84 * 32)


def render_mxnet(latencies: list[list[float]], order: list[tuple[int, int]] | None = None) -> str:
    places = [(step, rank) for step in range(4) for rank in range(2)]
    return "".join(
        f"[step {step + 1}]\tmlm_loss=7.12345\tnsp_loss= 0.69\tthroughput=12.{rank}K tks/s\t"
        f"lr=0.0000123 time=0.33, latency={latencies[step][rank]} ms/batch\n"
        for step, rank in order or places
    )


LATENCIES = [[900.0, 900.0], [400.0, 400.0], [300.0, 340.0], [320.0, 330.0]]
TWO_GPUS = Setting(nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=64)


def test_mxnet_takes_the_median_over_the_ranks_of_each_step(read: Reader) -> None:
    expected = (1000 / 320 + 1000 / 325) / 2 * 128
    assert read(MXNET, render_mxnet(LATENCIES), "", TWO_GPUS).throughput == pytest.approx(expected)


def test_mxnet_ranks_may_run_ahead_of_each_other(read: Reader) -> None:
    order = [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 1), (3, 1)]
    expected = (1000 / 320 + 1000 / 325) / 2 * 128
    reading = read(MXNET, render_mxnet(LATENCIES, order), "", TWO_GPUS)
    assert reading.throughput == pytest.approx(expected)


def test_mxnet_tokens_become_samples(read: Reader) -> None:
    log = render_mxnet(LATENCIES)
    per_rank = read(MXNET, log, "tokens", TWO_GPUS).throughput
    summed = read(MXNET, log, "tokens-sum", TWO_GPUS).throughput
    assert per_rank == pytest.approx(12.05 * 1000 / 128 * 2)
    assert summed == pytest.approx(24.1 * 1000 / 128)


def test_mxnet_with_a_line_missing_or_doubled_has_no_number(read: Reader) -> None:
    lines = render_mxnet(LATENCIES).splitlines(keepends=True)
    missing = read(MXNET, "".join(lines[:4] + lines[5:]), "", TWO_GPUS)
    assert codes(missing) == ["window"]
    doubled = read(MXNET, "".join(lines[:5] + lines[4:]), "", TWO_GPUS)
    assert "more than 2 ranks" in str(doubled.reasons)
    cut = read(MXNET, "".join(lines[:-1]), "", TWO_GPUS)
    assert [str(reason) for reason in cut.reasons] == [
        "incomplete: 1 of 2 ranks came to iteration 4"
    ]


def test_ranks_are_told_apart_by_their_labels(read: Reader) -> None:
    lines = [f" {n % 2}: {line}" for n, line in enumerate(render_mxnet(LATENCIES).splitlines(True))]
    expected = (1000 / 320 + 1000 / 325) / 2 * 128
    assert read(MXNET, "".join(lines), "", TWO_GPUS).throughput == pytest.approx(expected)
    twice = read(MXNET, "".join([*lines[:4], lines[4], lines[4], *lines[5:]]), "", TWO_GPUS)
    assert "by rank 0 twice" in str(twice.reasons)


def test_records_of_two_lines_survive_the_edge_of_every_piece(
    read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "".join(
        f"] Train Step: {n}/40  / loss = 10.2 / time = 0.1 sec\n] Perf {n}.35\n"
        for n in range(1, 41)
    )
    for size in range(70, 300, 7):
        monkeypatch.setattr("hpcbert.logs.lines.CHUNK", size)
        reading = read(TF2, log, "perf", Setting(skip=10, iters=40))
        assert reading.throughput == pytest.approx(25.85), size

"""Every kind of log of the upstream programs, described as data alone.

The lines are those that the programs print (their sources are named); the numbers are worked out
by hand from the lines.
"""

from __future__ import annotations

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.logs import TEST_RECIPES, Reader, codes, grammar_file

ONEFLOW, PADDLE_STATIC, PADDLE = map(grammar_file, ("oneflow", "paddle-static", "paddle"))
MXNET, MINDSPORE, MEGATRON = map(grammar_file, ("mxnet", "mindspore", "megatron"))
TF2, PERFZERO = map(grammar_file, ("tf2", "perfzero"))
DEEPSPEED, MLPERF = (TEST_RECIPES / name / "recipe.toml" for name in ("deepspeed", "mlperf"))
# Oneflow-Inc/DLPerf@c89430b, the sample in extract_bert_result.py's docstring.
ONEFLOW_LOG = """\
batch_size_per_device = 24
gpu_num_per_node = 1
num_nodes = 1
step: 19, total_loss: 9.725, mlm_loss: 8.960, nsp_loss: 0.766, throughput: 54.982 1598056519.8844702
utilization.gpu [%], memory.used [MiB]
step: 119, total_loss: 8.010, mlm_loss: 7.331, nsp_loss: 0.679, throughput: 139.896 1598056537.0029895
"""


@pytest.mark.parametrize("rule", ["dlperf-time", "rate"])
def test_oneflow_does_not_take_two_lines_for_a_full_window(read: Reader, rule: str) -> None:
    # 20 and 120 are no lines of a log that prints every hundredth step.
    reading = read(ONEFLOW, ONEFLOW_LOG, rule)
    assert codes(reading) == ["window"]
    assert (reading.setting.nodes, reading.setting.gpus) == (1, 1)


def test_oneflow_by_the_time_stamps_of_two_steps(read: Reader) -> None:
    last = ONEFLOW_LOG.splitlines(keepends=True)[-1]
    between = "".join(
        last.replace("step: 119", f"step: {step}").replace(
            "1598056537.0029895", str(1598056519.8844702 + (step - 19) * 0.17118)
        )
        for step in range(39, 119, 20)
    )
    reading = read(ONEFLOW, ONEFLOW_LOG.replace(last, between + last))
    assert reading.throughput == pytest.approx(140.199, abs=1e-3)


def test_oneflow_without_time_stamps_has_a_rate_and_no_clock(read: Reader) -> None:
    rates = (52.257, 142.735, 142.636, 142.391, 142.565, 142.397, 142.298)
    log = "".join(
        f"step: {20 * n + 19}, total_loss: 11.0, mlm_loss: 10.4, nsp_loss: 0.6, throughput: {rate}\n"
        for n, rate in enumerate(rates)
    )
    one_gpu = Setting(nodes=1, gpus_per_node=1, batch_size_per_device=32)
    assert read(ONEFLOW, log, "rate", one_gpu).throughput == pytest.approx(sum(rates[1:6]) / 5)
    clock = read(ONEFLOW, log, "dlperf-time", one_gpu)
    assert [str(reason) for reason in clock.reasons] == [
        "rule: lines have no time, which dlperf-time reads"
    ]


def test_oneflow_of_the_first_release(read: Reader) -> None:
    log = """\
iter 4, total_loss: 11.032, mlm_loss: 10.281, nsp_loss: 0.751, speed: 33.086(sec/batch), 0.151(sentences/sec)
iter 9, total_loss: 11.548, mlm_loss: 10.584, nsp_loss: 0.965, speed: 0.861(sec/batch), 5.806(sentences/sec)
iter 14, total_loss: 10.697, mlm_loss: 10.249, nsp_loss: 0.448, speed: 0.915(sec/batch), 5.463(sentences/sec)
iter 19, total_loss: 10.685, mlm_loss: 10.266, nsp_loss: 0.419, speed: 1.087(sec/batch), 4.602(sentences/sec)
average speed: 0.556(sentences/sec)
"""
    setting = Setting(skip=5, iters=20)
    assert read(ONEFLOW, log, "rate", setting).throughput == pytest.approx(15.871 / 3)
    assert read(ONEFLOW, log, "average", setting).throughput == 0.556


def render_deepspeed(rates: dict[int, float], prefix: str = "") -> str:
    return "".join(
        f"{prefix}[2020-10-27 11:{28 + step // 60:02}:{step % 60:02},500] [INFO] "
        f"[timer.py:157:stop] 0/{step}, SamplesPerSec={rate}\n"
        for step, rate in rates.items()
    )


@pytest.mark.parametrize("prefix", ["", "vs003: ", "  0: ", "[1,0]<stdout>:"])
def test_deepspeed_averages_its_running_averages_and_counts_micro_batches(
    read: Reader, prefix: str
) -> None:
    # DLPerf takes [18:120] of a list that begins at step 3: the steps 21 to 120.
    log = render_deepspeed({step: 180.0 + step for step in range(3, 121)}, prefix)
    setting = Setting(nodes=1, gpus_per_node=8, batch_size_per_device=32, accumulation=128)
    setting = setting.settled({})[0]
    assert read(DEEPSPEED, log, "", setting).throughput == pytest.approx(250.5)
    assert read(DEEPSPEED, log, "clock", setting).throughput == pytest.approx(8 * 32)


def test_deepspeed_of_today_prints_a_running_and_a_current_rate(read: Reader) -> None:
    # microsoft/DeepSpeedExamples@83757d9, step1_supervised_finetuning.
    log = "".join(
        f"[2023-04-18 01:46:{n:02},171] [INFO] [timer.py:199:stop] epoch=0/micro_step={n}/global_step={n}, "
        f"RunningAvgSamplesPerSec=213.44, CurrSamplesPerSec={170 + n}.5, MemAllocated=3.96GB\n"
        for n in range(10, 60, 10)
    )
    setting = Setting(skip=20, iters=50)
    assert read(DEEPSPEED, log, "current", setting).throughput == pytest.approx(210.5)
    assert read(DEEPSPEED, log, "dlperf-rate", setting).throughput == pytest.approx(213.44)


def test_deepspeed_that_died_at_its_first_boundary_has_no_number(read: Reader) -> None:
    # microsoft/DeepSpeedExamples issue 53: FP32 dies where the first optimizer step is due.
    log = (
        render_deepspeed(dict.fromkeys(range(3, 33), 4900.0)) + "UnboundLocalError: lr_this_step\n"
    )
    reading = read(DEEPSPEED, log)
    assert [str(reason) for reason in reading.reasons] == [
        "incomplete: the log ends at iteration 32 of 120"
    ]


def test_paddle_static_prints_steps_summed_over_nodes(read: Reader) -> None:
    log = "".join(
        f"epoch: 1, progress: 1/64, step: {n}, loss: 11.4, ppl: 14829.7, next_sent_acc: 0.56, "
        f"speed: {n}.5 steps/s, file: part-00012.gz\n"
        "[validation_set] epoch: 1, step: 9, loss: nan, ppl: 1.0, speed: 999 steps/s\n"
        for n in range(2, 11)
    )
    setting = Setting(nodes=2, gpus_per_node=8, batch_size_per_device=4, skip=4, iters=8)
    reading = read(PADDLE_STATIC, log, "", setting.settled({})[0])
    assert reading.throughput == pytest.approx((5.5 + 6.5 + 7.5 + 8.5) / 4 * 8 * 4)


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


def test_mindspore_sums_the_times_of_its_epochs(read: Reader) -> None:
    log = "".join(
        f"epoch: 1, step: {10 * n}, outputs are (Tensor(shape=[], value=9.1))\n"
        f"epoch time: {2000 + n}.0 ms, per step time: {200 + n / 10} ms\n"
        for n in range(1, 13)
    )
    setting = Setting(nodes=1, gpus_per_node=8, gpus=8, batch_size_per_device=32)
    total = sum(2000 + n for n in range(3, 13)) / 1000
    assert read(MINDSPORE, log, "", setting).throughput == pytest.approx(256 * 100 / total)
    assert read(MINDSPORE, log, "per-step", setting).throughput == pytest.approx(256 * 100 / total)


def render_megatron(nan: int = 0, stamp: str = "") -> str:
    return "".join(
        f"{stamp} iteration {n:8}/ 1000000 | consumed samples: {4 * n:12} | "
        f"elapsed time per iteration (ms): {350 + n / 10} | learning rate: 0.000E+00 | "
        f"global batch size:     4 | loss scale: 8388608.0 | "
        f"number of skipped iterations:  10 | number of nan iterations:   {nan} |\n"
        "time (ms) | forward-compute: 193.77 | backward-compute: 73.02\n"
        for n in range(10, 130, 10)
    )


@pytest.mark.parametrize("stamp", ["", " [2024-05-01 12:00:00.123456]"])
def test_megatron_states_its_global_batch_in_each_line(read: Reader, stamp: str) -> None:
    seconds = [(350 + n / 10) / 1000 for n in range(30, 130, 10)]
    expected = 4 * sum(1 / second for second in seconds) / 10
    assert read(MEGATRON, render_megatron(stamp=stamp)).throughput == pytest.approx(
        expected, rel=1e-4
    )


def test_megatron_that_counted_nan_iterations_has_no_number(read: Reader) -> None:
    reading = read(MEGATRON, render_megatron(nan=1))
    assert codes(reading) == ["loss"]


@pytest.mark.parametrize("label", ["", "0: ", "  0: "])
def test_mlperf_prints_dicts_behind_labels(read: Reader, label: str) -> None:
    log = "".join(
        f"{label}{{'training_steps': {n}, 'average_loss': 5.98, 'step_loss': 7.09, 'seq/s': {390 + n}.5, "
        f"'global_steps': 0, 'skipped_steps': 2, 'timestamp': {1593152763.25 + n / 4}}}\n"
        for n in range(12, 132, 12)
    )
    log += f"{label}{{'e2e_time': 107.2, 'training_sequences_per_second': 434.15}}\n"
    setting = Setting(nodes=1, gpus_per_node=8, gpus=8, skip=24, iters=120)
    setting = setting._replace(batch_size_per_device=14)
    assert read(MLPERF, log, "rate", setting).throughput == pytest.approx(390.5 + 78)
    assert read(MLPERF, log, "clock", setting).throughput == pytest.approx(112 * 4)
    assert read(MLPERF, log, "footer", setting).throughput == 434.15


def test_mllog_tracks_its_throughput_in_a_closing_line(read: Reader) -> None:
    log = (
        'noise:::MLLOG {"namespace": "", "time_ms": 1683423505070, "event_type": "POINT_IN_TIME", '
        '"key": "tracked_stats", "value": {"throughput": 53540.83384651906, "epoch_num": 3004416}}\n'
    )
    assert read(MLPERF, log, "tracked").throughput == 53540.83384651906


def test_tf2_by_stamps_that_run_over_new_year(read: Reader) -> None:
    moments = [f"1231 23:59:{n:02}.500000" for n in range(60)]
    moments += [f"0101 00:{n // 60:02}:{n % 60:02}.500000" for n in range(80)]
    log = "".join(
        f"I{moment} 1402 model_training_utils.py:450] Train Step: {n}/140  / loss = 10.98\n"
        for n, moment in enumerate(moments, start=1)
    )
    setting = Setting(nodes=1, gpus_per_node=1, gpus=1, batch_size_per_device=32)
    assert read(TF2, log, "", setting).throughput == pytest.approx(32)


def test_tf2_of_nvidia_prints_its_rate_on_the_line_after_the_step(read: Reader) -> None:
    # NVIDIA/DeepLearningExamples, TensorFlow2 BERT, as quoted in an issue.
    log = "".join(
        f"I0302 02:18:34.095051 1407 model_training_utils.py:538] Step: {n} Lr 2.9e-05\n"
        f"I0302 02:18:34.095144 1407 model_training_utils.py:539] Train Step: {n}/90  / loss = 10.2 / time = 0.1 sec\n"
        f"I0302 02:18:34.095176 1407 model_training_utils.py:540] Perf {n}.35\n"
        for n in range(1, 91)
    )
    assert read(TF2, log, "perf", Setting(skip=80, iters=90)).throughput == pytest.approx(85.85)


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


def test_perfzero_ends_in_a_document_of_many_lines(read: Reader) -> None:
    log = """\
2019-06-06 INFO: Benchmark execution for bert_1x8 completed with summary:
 {
  "benchmark_result": {
    "metrics": [
      {
        "name": "wall",
        "value": 1.5
      },
      {
        "name": "exp_per_second",
        "value": 1234.25
      }
"""
    assert read(PERFZERO, log).throughput == 1234.25

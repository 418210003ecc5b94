"""How good a number is: formulas held against the reference program, unknowns said, power sampled."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from hpcbert.campaign.fingerprint import PowerSamples, find_window, parse_samples, read_power
from hpcbert.model import (
    PRECISIONS,
    Counted,
    Group,
    Measured,
    Run,
    Sampled,
    Shape,
    Steps,
    usual_predictions,
)
from hpcbert.results import document, record
from hpcbert.results.document import ResultSet
from hpcbert.results.metrics import (
    ModelSize,
    compute_metrics,
    find_model,
    find_peak,
    load_peaks,
    model_flops,
    percentile,
)
from hpcbert.results.reduce import tabulate
from tests.kit import cli
from tests.kit.campaigns import Build, collect_campaigns, report_states
from tests.kit.cases import cases
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import until

A100 = "NVIDIA A100-SXM4-80GB"
GPU = (("GPU", (A100,)),)
LENGTH = (("sequence_length", ("128",)),)


def make_point(**changes: Any) -> Measured:
    runs = tuple(
        Run(number, 0, 800.0, True, (), "COMPLETED", "sacct", "x.log") for number in (1, 2, 3)
    )
    values: dict[str, Any] = {
        "group": Group("pytorch", "bert-base", "bf16", 32, "rate"),
        "shape": Shape(1, 4),
        "asked": 3,
        "runs": runs,
        "facts": (*GPU, *LENGTH, ("real_token_share", ("1.0",))),
        "counted": Counted(20, 120, "iterations 21 to 120"),
    }
    return Measured(**{**values, **changes})


def make_sampled(watts: float, gpus: int = 4) -> Sampled:
    return Sampled(watts, 30_000.0, gpus, 12.0, 12)


@pytest.mark.slow
def test_the_formula_is_that_of_the_reference_program() -> None:
    pytest.importorskip("torch")
    from hpcbert.workloads import bert_model, bert_settings

    for name in bert_settings.MODELS:
        for length in (64, 128, 384, 512):
            words = ["--model", name, "--sequence-length", str(length)]
            settings = bert_settings.parse_settings(words)
            model = find_model(f"bert-{name}")
            assert model is not None
            work = (length, length**2, settings.predictions)
            assert usual_predictions(length) == settings.predictions
            assert model_flops(model, length) == bert_model.model_flops(settings, 1, work)


def test_the_page_has_the_figures() -> None:
    text = (REPOSITORY / "docs/explanation/metrics.md").read_text()
    for name, short, long in re.findall(
        r"\| (bert-\w+) \| ([\d.,]+) GFLOP \| ([\d.,]+) GFLOP \|", text
    ):
        model = find_model(name)
        assert model is not None
        for length, printed in ((128, short), (512, long)):
            assert f"{model_flops(model, length) / 1e9:,.1f}" == printed
    for peaks in load_peaks():
        cells = [f"{peaks[key]:,g}" if key in peaks else "-" for key in PRECISIONS]
        assert f"| {' | '.join([peaks['label'], *cells])} |" in text


def test_model_flops_of_any_width() -> None:
    """By hand, for a model of one layer: every product's multiplications and additions."""
    model = ModelSize(1, 4, 8, 10)
    products = 4 * 4 * 4 + 4 * 8 + 8 * 4
    assert model_flops(model, 2, 1) == 6 * products * 2 + 12 * 4 * 4 + 6 * (16 + 40) + 6 * (16 + 8)


def test_metrics_of_a_point() -> None:
    steps = Steps((10, 20, 30, 40), (9.0, 9.0, 0.16, 0.2), 20, 40)
    runs = tuple(
        replace(run, sampled=make_sampled(1000.0 + run.repeat)) for run in make_point().runs
    )
    invalid = replace(runs[0], valid=False, throughput=None)
    (table,) = tabulate([make_point(runs=(invalid,))])
    assert table.rows[0].metrics is None
    (table,) = tabulate([make_point(runs=runs, steps=((1, steps), (2, steps)))])
    metrics = table.rows[0].metrics
    assert metrics is not None
    flops = model_flops(find_model("bert-base") or ModelSize(0, 0, 0), 128)
    assert metrics.samples_per_second_per_gpu == 200.0
    assert metrics.tokens_per_second == 800 * 128
    assert metrics.step_seconds == pytest.approx(0.18)
    assert metrics.step_seconds_p95 == 0.2
    assert metrics.model_flops_per_sample == flops
    assert metrics.mfu == metrics.mfu_padded == pytest.approx(800 * flops / (4 * 312e12))
    assert (metrics.watts, metrics.gpu_memory_mib) == (1002.0, 30_000.0)
    assert metrics.samples_per_joule == pytest.approx(800 / 1002)
    assert metrics.unknown == ()


@cases
def test_what_is_unknown_is_said(
    *, facts: dict[str, tuple[str, ...]] | None, model: str | None, device: Literal["cpu"] | None,
    sampled: int | None, names: tuple[str, ...], reason: str,
) -> None:  # fmt: skip
    group = Group("pytorch", model or "bert-base", "bf16", 32, "rate", device=device or "gpu")
    point = make_point(group=group)
    if facts is not None:
        point = replace(point, facts=tuple(facts.items()))
    if sampled:
        point = replace(point, runs=(replace(point.runs[0], sampled=make_sampled(9.0, sampled)),))
    metrics = compute_metrics(point, 800.0)
    assert metrics is not None
    unknown = dict(metrics.unknown)
    for name in names:
        assert getattr(metrics, name) is None
        assert reason in unknown[name], unknown
    empty = {name for name in vars(metrics) if getattr(metrics, name) is None}
    assert empty == set(unknown)


def make_facts(**facts: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (*GPU, *((name, (str(value),)) for name, value in facts.items()))


BASE = {"sequence_length": 512, "real_token_share": 0.5}


@cases
def test_operations_are_those_of_the_sizes_that_the_run_states(
    facts: dict[str, Any], flops: float
) -> None:
    metrics = compute_metrics(make_point(facts=make_facts(**facts)), 80.0)
    assert metrics is not None
    tokens = 512 / facts.get("packing", 1)
    assert metrics.model_flops_per_sample == pytest.approx(flops)
    assert metrics.mfu_padded == pytest.approx(80 * flops / (4 * 312e12))
    assert metrics.tokens_per_second == 80 * tokens
    assert metrics.real_tokens_per_second == 40 * tokens
    # The attention's products fall with the square, all others with the length.
    assert 0.25 < (metrics.mfu or 0) / (metrics.mfu_padded or 0) < 0.51


@pytest.mark.parametrize("model", ["bert", "resnet50"])
def test_a_model_that_the_log_describes_needs_no_name(model: str) -> None:
    """DLPerf's paths say only `bert`."""
    group = Group("oneflow", model, "fp32", 32, "rate")
    facts = make_facts(sequence_length=128, hidden_size=768, layers=12)
    metrics = compute_metrics(make_point(group=group, facts=facts), 80.0)
    assert metrics is not None
    assert metrics.model_flops_per_sample == model_flops(ModelSize(12, 768, 3072), 128)
    padded = compute_metrics(make_point(group=group, facts=make_facts(**BASE)), 80.0)
    assert padded is not None
    assert padded.mfu_padded is None


def test_the_sum_that_a_program_states_is_its_work() -> None:
    """Samples differ in length, so their squares are more than that of their mean."""
    total = model_flops(ModelSize(12, 768, 3072), 512)
    metrics = compute_metrics(make_point(facts=make_facts(**BASE, model_flops=0.6 * total)), 80.0)
    assert metrics is not None
    assert metrics.mfu == pytest.approx(0.6 * (metrics.mfu_padded or 0))
    wrong = compute_metrics(make_point(facts=make_facts(**BASE, model_flops=1.1 * total)), 80.0)
    assert wrong is not None
    assert wrong.mfu is None
    assert "with padding" in dict(wrong.unknown)["mfu"]


# Samples per second at which all four GPUs would be at their peak, padding included.
PEAK = 4 * 312e12 / model_flops(ModelSize(12, 768, 3072), 512)


@cases
def test_an_mfu_above_the_peak_is_no_number(
    share: float | None, rate: float, mfu: bool, padded: bool, flags: tuple[str, ...]
) -> None:
    facts = {"sequence_length": 512, **({"real_token_share": share} if share else {})}
    runs = tuple(replace(run, throughput=rate * PEAK) for run in make_point().runs)
    (table,) = tabulate([make_point(runs=runs, facts=make_facts(**facts))])
    (row,) = table.rows
    assert row.metrics is not None
    assert (row.metrics.mfu is not None, row.metrics.mfu_padded is not None) == (mfu, padded)
    assert {flag for flag in row.flags if "mfu" in flag} == set(flags)
    unknown = dict(row.metrics.unknown)
    if not padded:
        assert "padding" in unknown["mfu_padded"]
    if share and not mfu:
        assert "%" in unknown["mfu"]


CONFIG = re.compile(r"^hpcbert-config .*$", re.MULTILINE)
RESULT = re.compile(r"^hpcbert-result .*$", re.MULTILINE)


def change_log(**config: Any) -> str:
    """Return the reference's sample with another configuration."""
    text = (REPOSITORY / "templates/pytorch/sample.log").read_text()
    text = text.partition("\n")[2]
    lines = {}
    for form in (CONFIG, RESULT):
        name, _, data = form.findall(text)[0].partition(" ")
        values = json.loads(data)
        values.update((key, value) for key, value in config.items() if key in values)
        lines[form] = f"{name} {json.dumps(values)}"
    return RESULT.sub(lines[RESULT], CONFIG.sub(lines[CONFIG], text))


def collect_row(tmp_path: Path, text: str, *more: str) -> dict[str, Any]:
    folder = tmp_path / "pytorch/bert/bz8/1n1g"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bert_b8_bf16_1.log").write_text(text)
    result = cli.run("collect", tmp_path / "pytorch", "--fw", "pytorch", "--json", *more)
    row: dict[str, Any] = result.data["tables"][0]["rows"][0]
    return row


def test_collect_shows_what_the_reference_states_of_itself(tmp_path: Path) -> None:
    """Its own words, tokens and operations, on a GPU; `bert` of the path is no model."""
    config = {"vocab": 8192, "device": "cuda", "device_name": "NVIDIA H200", "precision": "bf16"}
    row = collect_row(
        tmp_path, change_log(**config, real_token_share=0.5, model_flops_per_sample=2e8)
    )
    metrics = row["metrics"]
    assert metrics["model_flops_per_sample"] == model_flops(ModelSize(2, 128, 512, 8192), 128)
    assert metrics["model_flops_per_sample"] == pytest.approx(4.80e8, rel=1e-2)
    assert metrics["mfu"] == pytest.approx(row["median"] * 2e8 / 989.5e12)
    assert metrics["mfu"] < metrics["mfu_padded"]
    assert metrics["real_tokens_per_second"] == pytest.approx(row["median"] * 64)
    titles = {"wide": "padded MFU", "csv": ",mfu,mfu_padded,", "markdown": "| MFU padded |"}
    for form, title in titles.items():
        words = ("--fw", "pytorch", "--format", form)
        assert title in cli.run("collect", tmp_path / "pytorch", *words).stdout


def test_runs_with_other_real_tokens_are_repeats(tmp_path: Path) -> None:
    """Their samples are drawn; with another vocabulary they are another experiment."""
    config = {"device": "cuda", "device_name": "NVIDIA H200", "precision": "bf16"}
    row = collect_row(tmp_path, change_log(**config))
    path = tmp_path / "pytorch/bert/bz8/1n1g/bert_b8_bf16_2.log"
    later = change_log(**config, real_token_share=0.9, model_flops_per_sample=7e8)
    path.write_text(later.replace("time: 17952", "time: 17953"))
    row = collect_row(tmp_path, change_log(**config))
    assert row["repeats"]["ok"] == 2
    assert row["facts"]["real_token_share"] == ["0.9", "0.94701171875"]
    path.write_text(change_log(**config, vocab=8192))
    row = collect_row(tmp_path, change_log(**config))
    assert {reason["code"] for run in row["runs"] for reason in run["reasons"]} == {"incomparable"}


def test_percentiles_are_of_the_values() -> None:
    assert percentile([1.0], 0.95) == 1.0
    assert percentile(list(map(float, range(1, 101))), 0.95) == 95.0
    assert percentile([3.0, 1.0, 2.0], 0.95) == 3.0


@cases
def test_peaks_by_the_whole_name(gpu: str, precision: str, peak: float | None) -> None:
    assert find_peak(gpu, precision) == (None if peak is None else pytest.approx(peak * 1e12))


def test_every_gpu_of_the_record_has_a_peak_and_every_peak_a_source() -> None:
    tables = [
        (source, table)
        for source in map(record.load_source, record.source_names())
        for table in source.tables
    ]
    gpus = {source.facts_of(table).get("GPU", A100) for source, table in tables}
    # These names say neither the form nor the memory, on which the peak depends.
    gpus -= {"NVIDIA V100", "V100", "A100", "H100"}
    assert not {gpu for gpu in gpus if find_peak(gpu, "fp16") is None}
    for peaks in load_peaks():
        assert re.match(r"(NVIDIA|AMD|Intel), ", peaks["source"])
        assert peaks.keys() - {"label", "name", "source"} <= {*PRECISIONS}
        for gpu in gpus:
            matching = [
                other for other in load_peaks() if re.fullmatch(other["name"], gpu, re.IGNORECASE)
            ]
            assert len(matching) == 1


def test_saved_results_keep_metrics() -> None:
    runs = tuple(replace(run, sampled=make_sampled(1000.0)) for run in make_point().runs)
    tables = tabulate([make_point(runs=runs), make_point(group=Group("x", "y", "fp32", 1, "r"))])
    again = document.parse_results(document.render_results(ResultSet(tables)), file="x")
    assert again.tables == tables


# --- what was sampled -----------------------------------------------------------------------


def render_nvidia_smi(watts: list[list[float]], step: float = 1.0) -> str:
    """Return nvidia-smi's lines: the watts of each GPU at each look."""
    lines = []
    for number, row in enumerate(watts):
        for gpu, drawn in enumerate(row):
            at = 1_700_000_000 + number * step + gpu * 0.001
            stamp = (
                time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}"
            )
            lines.append(f"{stamp}, {gpu}, {drawn:.2f}, {1000 + number}")
    return "\n".join(lines) + "\n"


def run_sampler(
    folder: Path, text: str, gpus: int, *, tool: str = "nvidia-smi", node: str = "n/1"
) -> bytes:
    """Return what the sampler of a node prints after its tool has printed a text."""
    folder.mkdir(exist_ok=True)
    (folder / "text").write_text(text)
    printed = folder / "printed"
    printed.unlink(missing_ok=True)
    (folder / tool).write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" >"${0%/*}/argv"\ncat "${0%/*}/text"\n'
        ': >"${0%/*}/printed"\nif [[ $0 == *nvidia* ]]; then exec sleep 600; fi\n'
    )
    (folder / tool).chmod(0o755)
    script = (REPOSITORY / "hpcbert/shell/sample.sh").read_text()
    words = ["bash", "-c", script, "sample", str(gpus), "2"]
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURMD_NODENAME": node}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe) as sampler:
        until(printed.exists, "what the tool prints")
        return sampler.communicate(b"\n")[0]


def add_samples(printed: bytes) -> bytes:
    """Return what a job makes of the lines of its nodes."""
    words = ["bash", "-c", f'. "{REPOSITORY}/hpcbert/shell/nodes.bash"; add_samples']
    return subprocess.run(words, input=printed, capture_output=True, check=False).stdout


def sample_node(folder: Path, text: str, gpus: int, **options: Any) -> PowerSamples:
    samples = parse_samples(add_samples(run_sampler(folder, text, gpus, **options)))
    assert samples is not None
    return samples


def test_the_window_is_where_most_is_drawn(tmp_path: Path) -> None:
    text = render_nvidia_smi([[50.0, 60.0]] * 20 + [[300.0, 310.0]] * 30 + [[70.0, 60.0]] * 10)
    window = find_window(sample_node(tmp_path, text, 2), 25.0)
    assert window is not None
    assert window.watts == pytest.approx(610.0)
    assert window.gpus == 2
    assert 1020 <= window.memory_mib <= 1050
    single = find_window(sample_node(tmp_path, text, 1), 25.0)
    assert single is not None
    assert single.watts == pytest.approx(310.0)


@pytest.mark.parametrize(
    "text",
    ["", "garbage", render_nvidia_smi([[1.0]] * 4), render_nvidia_smi([[1.0]] * 20), "2026/99/99 00:00:00, 0, 1, 1\n" * 9,
     render_nvidia_smi([[1.0]] * 90).replace("1.00", "[N/A]"), render_nvidia_smi([[1.0]] * 90).replace("1.00", "nan"),
     render_nvidia_smi([[1.0]] * 90).replace("1.00", "1e9"), '"' * 9999, "\1\1\n" * 99],
    ids=["empty", "garbage", "four looks", "too short", "no dates", "not available", "nan", "absurd", "quotes", "controls"],
)  # fmt: skip
def test_what_was_not_looked_at_long_enough(text: str, tmp_path: Path) -> None:
    samples = parse_samples(add_samples(run_sampler(tmp_path, text, 1)))
    assert samples is None or find_window(samples, 25.0) is None


def test_midnight_is_inside_a_window(tmp_path: Path) -> None:
    text = render_nvidia_smi([[300.0]] * 60)
    first = time.strftime("%H:%M:%S", time.gmtime(1_700_000_000))
    assert first == "22:13:20"
    looks = [f"2023/11/{14 + at // 30} {(at < 30) * 23:02d}:{(at < 30) * 59:02d}:{(at + 30) % 60:02d}.000, 0, 300.00, 5" for at in range(60)]  # fmt: skip
    for lines in (text, "\n".join(looks) + "\n"):
        samples = sample_node(tmp_path, lines, 1)
        assert [row[0] for row in samples.rows] == pytest.approx([float(at) for at in range(60)])


def test_rocm_smi_is_understood(tmp_path: Path) -> None:
    table = (
        "device,Average Graphics Package Power (W),VRAM Total Memory (B),VRAM Total Used Memory (B)\n"
        "card0,{0}.0,68702699520,1073741824\ncard1,{0}.0,68702699520,2147483648\n\n"
    )
    text = "".join(f"17637176{at:02d}.123456\n{table.format(200)}" for at in range(30))
    window = find_window(sample_node(tmp_path, text, 2, tool="rocm-smi"), 20.0)
    assert window is not None
    assert (window.watts, window.memory_mib) == (400.0, 2048.0)
    newer = text.replace("Average Graphics Package", "Current Socket Graphics Package")
    again = sample_node(tmp_path, newer, 2, tool="rocm-smi")
    assert find_window(again, 20.0) == window


def test_all_nodes_or_none(tmp_path: Path) -> None:
    """The samples of nodes are added in their order, as far as all nodes have them."""
    text = render_nvidia_smi([[100.0]] * 140)
    first = run_sampler(tmp_path / "tools", text, 1, node="a").splitlines()
    text = render_nvidia_smi([[100.0, 50.0]] * 150)
    second = run_sampler(tmp_path / "tools", text, 2, node="b").splitlines()
    assert all(len(line) < 1024 for line in (*first, *second))
    assert len(first) > 2
    lines = [*second[:2], *first[:-1], *second[2:], first[-1]]
    file = tmp_path / "x.power.json"
    file.write_bytes(add_samples(b"\n".join(lines)))
    data = json.loads(file.read_bytes())
    assert (data["nodes"], data["gpus"], len(data["samples"])) == (2, 3, 140)
    power = read_power(file, seconds=20.0)
    assert power is not None
    assert power.watts == pytest.approx(250.0)
    assert power.gpus == 3
    for damaged in (lines[1:], lines[:-1], [*lines[:3], b"cut short", *lines[3:]], []):
        file.write_bytes(add_samples(b"\n".join(damaged)))
        assert read_power(file, seconds=20.0) is None
    for text in ("{}", "[]", '{"gpus":1,"samples":[[1,2]]}', '{"gpus":1,"samples":[[0,NaN,1]]}'):
        file.write_text(text)
        assert read_power(file, seconds=20.0) is None
    assert read_power(tmp_path / "absent", seconds=20.0) is None


def test_collect_shows_what_was_sampled(
    build: Build, tmp_path: Path, empty_directory: None
) -> None:
    built = build("1n1g", repeats=3)
    built.finish()
    folder = built.directory / "env"
    folder.mkdir()
    text = render_nvidia_smi([[40.0]] * 9 + [[250.0]] * 90, step=0.1)
    for repeat in (1, 2):
        name = f"bert-tiny_1n1g_fp32_b4.{repeat}.0.power.json"
        (folder / name).write_bytes(add_samples(run_sampler(tmp_path, text, 1)))
    (table,) = collect_campaigns(built.directory, states=report_states()).tables
    metrics = table.rows[0].metrics
    assert metrics is not None
    assert metrics.watts == pytest.approx(250.0)
    assert [bool(run.sampled) for run in table.rows[0].runs] == [True, True, False]
    assert metrics.tokens_per_second == pytest.approx(11.0 * 128, rel=1e-3)
    wide = cli.run("collect", built.directory, "--format", "wide").stdout
    assert "samples/J" in wide
    assert "no MFU: nothing says what the GPUs are" in wide
    (row,) = cli.run("collect", built.directory, "--json").data["tables"][0]["rows"]
    assert row["metrics"]["watts"] == pytest.approx(250.0)
    assert {entry["metric"] for entry in row["metrics"]["unknown"]} >= {"mfu"}


def test_the_sampler_prints_what_the_tool_shows(tmp_path: Path) -> None:
    text = "2026/11/22 03:00:00.000, 0, 70.00, 500\n"
    lines = run_sampler(tmp_path, text, 1).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"node": "n_1", "samples": [[0, 70, 500]]},
        {"node": "n_1", "gpus": 1, "count": 1},
    ]
    assert "--loop=2" in (tmp_path / "argv").read_text().split()

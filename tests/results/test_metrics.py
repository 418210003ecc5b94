"""How good a number is: formulas, unknowns and power; rates in tokens in every form and command."""

import json
import re
import subprocess
import time
from dataclasses import replace

import pytest

from hpcbert.campaign.fingerprint import read_power
from hpcbert.model import LARGEST, PRECISIONS, Sampled, Steps, usual_predictions
from hpcbert.results import document, frame, record
from hpcbert.results import metrics as formulas
from hpcbert.results.formats import FORMATS
from hpcbert.results.reduce import tabulate
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import cases, read_constant
from tests.kit.cli import codes, first_row, rows, run
from tests.kit.logs import write_file, write_logs
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import SHELL, printed
from tests.kit.scripts import tool
from tests.kit.waiting import until
from tests.results import test_reduce

A100 = "NVIDIA A100-SXM4-80GB"
BASE = formulas.ModelSize(12, 768, 3072)
GROUP = replace(test_reduce.GROUP, framework="pytorch", precision="bf16")
RATES = {"1n1g": [10.0] * 4, "1n2g": [20.0] * 4}


def make_point(rate=800.0, sampled=None, **changes):
    """Return a point of three runs on four A100s, of 128 tokens without padding."""
    runs = tuple(test_reduce.make_run(n, rate, sampled=sampled) for n in (1, 2, 3))
    facts = make_facts(sequence_length=128, real_token_share=1.0)
    values = {"group": GROUP, "runs": runs, "facts": facts, **changes}
    return test_reduce.make_point("1n4g", **values)


def make_facts(**facts):
    return (("GPU", (A100,)), *((name, (str(value),)) for name, value in facts.items()))


def compute(facts, **group):
    """Return the metrics of a point with these facts, at 80 samples/s."""
    return formulas.compute_metrics(make_point(facts=facts, group=replace(GROUP, **group)), 80.0)


@pytest.mark.slow
def test_the_formula_is_that_of_the_reference_program():
    pytest.importorskip("torch")
    from hpcbert.workloads import bert_model, bert_settings

    for name in bert_settings.MODELS:
        for length in (64, 128, 384, 512):
            words = ["--model", name, "--sequence-length", str(length)]
            settings = bert_settings.parse_settings(words)
            model = formulas.find_model(f"bert-{name}")
            assert model
            work = (length, length**2, settings.predictions)
            assert usual_predictions(length) == settings.predictions
            assert formulas.model_flops(model, length) == bert_model.model_flops(settings, 1, work)


def test_the_page_has_the_figures_and_every_gpu_of_the_record_has_a_peak():
    text = (REPOSITORY / "docs/explanation/metrics.md").read_text()
    figures = re.findall(r"\| (bert-\w+) \| ([\d.,]+) GFLOP \| ([\d.,]+) GFLOP \|", text)
    assert figures
    for name, *shown in figures:
        model = formulas.find_model(name)
        assert model
        flops = [formulas.model_flops(model, length) for length in (128, 512)]
        assert [f"{number / 1e9:,.1f}" for number in flops] == shown
    for peaks in formulas.load_peaks():
        cells = [f"{peaks[key]:,g}" if key in peaks else "-" for key in PRECISIONS]
        assert f"| {' | '.join([peaks['label'], *cells])} |" in text
        assert re.match(r"(NVIDIA|AMD|Intel), ", peaks["source"])
        assert peaks.keys() - {"label", "name", "source"} <= {*PRECISIONS}
    # A model of one layer: every product's multiplications and additions.
    products = 4 * 4 * 4 + 4 * 8 + 8 * 4
    expected = 6 * products * 2 + 12 * 4 * 4 + 6 * (16 + 40) + 6 * (16 + 8)
    assert formulas.model_flops(formulas.ModelSize(1, 4, 8, 10), 2, 1) == expected
    # Every GPU of the record has one peak.
    sources = map(record.load_source, record.source_names())
    gpus = {table.facts.get("GPU", A100) for source in sources for table in source.tables}
    # These names say neither the form nor the memory, on which the peak depends.
    gpus -= {"NVIDIA V100", "V100", "A100", "H100"}
    names = [peaks["name"] for peaks in formulas.load_peaks()]
    for gpu in gpus:
        assert formulas.find_peak(gpu, "fp16"), gpu
        assert sum(bool(re.fullmatch(name, gpu, re.IGNORECASE)) for name in names) == 1, gpu


def test_metrics_of_a_point():
    steps = Steps((10, 20, 30, 40), (9.0, 9.0, 0.16, 0.2), 20, 40)
    runs = tuple(
        replace(repeat, sampled=Sampled(1000.0 + repeat.repeat, 30_000.0, 4, 12.0, 12))
        for repeat in make_point().runs
    )
    invalid = replace(runs[0], valid=False, throughput=None)
    assert test_reduce.make_table(make_point(runs=(invalid,))).rows[0].metrics is None
    table = test_reduce.make_table(make_point(runs=runs, steps=((1, steps), (2, steps))))
    metrics = table.rows[0].metrics
    assert metrics.samples_per_second_per_gpu == 200.0
    assert metrics.tokens_per_second == 800 * 128
    assert metrics.step_seconds == pytest.approx(0.18)
    assert metrics.step_seconds_p95 == 0.2
    flops = formulas.model_flops(BASE, 128)
    assert metrics.model_flops_per_sample == flops
    assert metrics.mfu == metrics.mfu_padded == pytest.approx(800 * flops / (4 * 312e12))
    assert (metrics.watts, metrics.gpu_memory_mib) == (1002.0, 30_000.0)
    assert (metrics.samples_per_joule, metrics.unknown) == (pytest.approx(800 / 1002), ())
    hundred = list(map(float, range(1, 101)))
    for values, expected in (([1.0], 1.0), (hundred, 95.0), ([3.0, 1.0, 2.0], 3.0)):
        assert formulas.percentile(values, 0.95) == expected
    tables = tabulate([make_point(runs=runs), make_point(group=replace(GROUP, model="y"))])
    again = document.parse_results(document.render_results(document.ResultSet(tables)), file="x")
    assert again.tables == tables


@cases
def test_what_is_unknown_is_said(*, facts, model, device, sampled, names, reason):
    power = Sampled(9.0, 30_000.0, sampled, 12.0, 12) if sampled else None
    group = replace(GROUP, model=model or "bert-base", device=device or "gpu")
    stated = {} if facts is None else {"facts": tuple(facts.items())}
    (row,) = test_reduce.make_table(make_point(sampled=power, group=group, **stated)).rows
    metrics = row.metrics
    unknown = dict(metrics.unknown)
    for name in names:
        assert getattr(metrics, name) is None
        assert reason in unknown[name], unknown
    assert {name for name in vars(metrics) if getattr(metrics, name) is None} == set(unknown)


@cases
def test_operations_are_those_of_the_sizes_that_the_run_states(facts, flops):
    metrics = compute(make_facts(**facts))
    tokens = 512 / facts.get("packing", 1)
    assert metrics.model_flops_per_sample == pytest.approx(flops)
    assert metrics.mfu_padded == pytest.approx(80 * flops / (4 * 312e12))
    assert metrics.tokens_per_second == 80 * tokens
    assert metrics.real_tokens_per_second == 40 * tokens
    # The attention's products fall with the square, all others with the length.
    assert 0.25 < metrics.mfu / metrics.mfu_padded < 0.51


def test_a_model_that_the_log_describes_needs_no_name_and_its_own_sum_is_its_work():
    """DLPerf's paths say only `bert`. Samples differ in length, so squares are more than their mean's."""
    half = {"sequence_length": 512, "real_token_share": 0.5}
    for model in ("bert", "resnet50"):
        facts = make_facts(sequence_length=128, hidden_size=768, layers=12)
        described = compute(facts, model=model)
        assert described.model_flops_per_sample == formulas.model_flops(BASE, 128)
        assert compute(make_facts(**half), model=model).mfu_padded is None
    total = formulas.model_flops(BASE, 512)
    metrics = compute(make_facts(**half, model_flops=0.6 * total))
    assert metrics.mfu == pytest.approx(0.6 * metrics.mfu_padded)
    wrong = compute(make_facts(**half, model_flops=1.1 * total))
    assert wrong.mfu is None
    assert "with padding" in dict(wrong.unknown)["mfu"]


@cases
def test_an_mfu_above_the_peak_is_no_number(share, rate, mfu, padded, flags):
    """At a rate of 1, all four GPUs are at their peak, padding included."""
    facts = make_facts(sequence_length=512, **({"real_token_share": share} if share else {}))
    peak = 4 * 312e12 / formulas.model_flops(BASE, 512)
    (row,) = test_reduce.make_table(make_point(rate * peak, facts=facts)).rows
    assert (row.metrics.mfu is not None, row.metrics.mfu_padded is not None) == (mfu, padded)
    assert {flag for flag in row.flags if "mfu" in flag} == set(flags)
    unknown = dict(row.metrics.unknown)
    assert padded or "padding" in unknown["mfu_padded"]
    assert mfu or not share or "%" in unknown["mfu"]


def test_collect_shows_what_the_reference_states_of_itself(tmp_path):
    """Its own words, tokens and operations, on a GPU; `bert` of the path is no model."""
    sample = printed("pytorch").decode()
    h200 = {"device": "cuda", "device_name": "NVIDIA H200", "precision": "bf16"}

    def collect_row(*runs):
        """Collect a log for each run, which states other values than the sample does."""
        for number, changes in enumerate(runs, 1):
            text = sample.replace("time: 17952", f"time: 1795{number + 1}")
            for key, value in {**h200, **changes}.items():
                text = re.sub(rf'"{key}": [^,}}]+', f'"{key}": {json.dumps(value)}', text)
            write_file(tmp_path, f"pytorch/1n1g/bert_b8_bf16_{number}.log", text)
        return first_row(run("collect", tmp_path / "pytorch", "--fw", "pytorch", "--json").document)

    stated = {"vocab": 8192, "real_token_share": 0.5, "model_flops_per_sample": 2e8}
    row = collect_row(stated)
    metrics = row["metrics"]
    flops = formulas.model_flops(formulas.ModelSize(2, 128, 512, 8192), 128)
    assert metrics["model_flops_per_sample"] == flops == pytest.approx(4.80e8, rel=1e-2)
    assert metrics["mfu"] == pytest.approx(row["median"] * 2e8 / 989.5e12)
    assert metrics["mfu"] < metrics["mfu_padded"]
    assert metrics["real_tokens_per_second"] == pytest.approx(row["median"] * 64)
    titles = {"wide": "MFU, padded", "csv": ",mfu,mfu_padded,", "markdown": "| MFU, padded |"}
    for form, title in titles.items():
        words = ("--fw", "pytorch", "--format", form)
        assert title in run("collect", tmp_path / "pytorch", *words).stdout
    # Runs with other real tokens are repeats, and with another vocabulary they are not.
    row = collect_row({}, {"real_token_share": 0.9, "model_flops_per_sample": 7e8})
    assert row["repeats"]["ok"] == 2
    assert row["facts"]["real_token_share"] == ["0.9", "0.94701171875"]
    assert codes(collect_row({}, {"vocab": 8192})) == [["incomparable"]] * 2


@cases
def test_peaks_by_the_whole_name(gpu, precision, peak):
    assert formulas.find_peak(gpu, precision) == (peak and pytest.approx(peak * 1e12))


def render_nvidia_smi(rows, step=1.0):
    """Return nvidia-smi's lines from before midnight on: a row has the watts of each GPU."""
    lines = []
    for number, row in enumerate(rows):
        for gpu, watts in enumerate(row):
            at = 1_700_006_370 + number * step + gpu * 0.001
            stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(at)) + f"{at % 1:.3f}"[1:]
            lines.append(f"{stamp}, {gpu}, {watts:.2f}, {1000 + number}\n")
    return "".join(lines)


def run_sampler(folder, text, gpus, *, program="nvidia-smi", node="n/1"):
    """Return what the sampler of a node prints after a vendor's program has printed a text."""
    write_file(folder, "text", text)
    tool(folder, program, read_constant(__file__, "TOOL"))
    words = ["bash", str(SHELL / "sample.sh"), str(gpus), "2"]
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURMD_NODENAME": node}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe) as sampler:
        until((folder / "printed").exists, "what the program prints")
        (folder / "printed").unlink()
        return sampler.communicate(b"\n")[0]


def add_samples(printed):
    """Return what a job makes of the lines of its nodes."""
    words = ["bash", "-c", f'. "{SHELL}/nodes.bash"; add_samples']
    return subprocess.run(words, input=printed, capture_output=True, check=False).stdout


def test_the_window_is_where_most_is_drawn_as_nvidia_smi_or_rocm_smi_print_it(tmp_path):
    def measure_node(text, gpus, seconds=25.0, **options):
        """Return what a node's job writes, and its window of so many seconds."""
        raw = add_samples(run_sampler(tmp_path, text, gpus, **options))
        (tmp_path / "x.power.json").write_bytes(raw)
        return raw, read_power(tmp_path / "x.power.json", seconds=seconds)

    text = render_nvidia_smi([[50.0, 60.0]] * 20 + [[300.0, 310.0]] * 30 + [[70.0, 60.0]] * 10)
    for gpus, watts in ((2, 610.0), (1, 310.0)):
        raw, window = measure_node(text, gpus)
        seconds = [row[0] for row in json.loads(raw)["samples"]]
        assert seconds == pytest.approx([*range(60)], abs=0.01)
        assert (window.watts, window.gpus) == (pytest.approx(watts), gpus)
        assert 1020 <= window.memory_mib <= 1050
    # There is none where nobody looked long enough, or what was printed is nothing.
    long = render_nvidia_smi([[1.0]] * 90)
    texts = [render_nvidia_smi([[1.0]] * 4), render_nvidia_smi([[1.0]] * 20)]
    texts += [long.replace("1.00", number) for number in ("[N/A]", "nan", "1e9")]
    texts += ["", "garbage", "2026/99/99 00:00:00, 0, 1, 1\n" * 9, '"' * 9999, "\1\1\n" * 99]
    for text in texts:
        assert measure_node(text, 1)[1] is None
    table = read_constant(__file__, "ROCM_SMI")
    text = "".join(f"17637176{at:02d}.123456\n{table}" for at in range(30))
    newer = text.replace("Average Graphics Package", "Current Socket Graphics Package")
    for content in (text, newer):
        _, window = measure_node(content, 2, 20.0, program="rocm-smi")
        assert (window.watts, window.memory_mib) == (400.0, 2048.0)


def test_all_nodes_or_none(tmp_path):
    """The samples of nodes are added in their order, as far as all nodes have them."""
    text = render_nvidia_smi([[100.0]] * 140)
    first = run_sampler(tmp_path, text, 1, node="a").splitlines()
    text = render_nvidia_smi([[100.0, 50.0]] * 150)
    second = run_sampler(tmp_path, text, 2, node="b").splitlines()
    assert all(len(line) < 1024 for line in (*first, *second))
    assert len(first) > 2
    lines = [*second[:2], *first[:-1], *second[2:], first[-1]]
    file = tmp_path / "x.power.json"
    file.write_bytes(add_samples(b"\n".join(lines)))
    data = json.loads(file.read_bytes())
    assert (data["nodes"], data["gpus"], len(data["samples"])) == (2, 3, 140)
    power = read_power(file, seconds=20.0)
    assert power
    assert power.watts == pytest.approx(250.0)
    assert power.gpus == 3
    damaged = (lines[1:], lines[:-1], [*lines[:3], b"cut short", *lines[3:]], lines[:0])
    texts = (b"{}", b"[]", b'{"gpus":1,"samples":[[1,2]]}', b'{"gpus":1,"samples":[[0,NaN,1]]}')
    for content in (*(add_samples(b"\n".join(part)) for part in damaged), *texts):
        file.write_bytes(content)
        assert read_power(file, seconds=20.0) is None
    assert read_power(tmp_path / "absent", seconds=20.0) is None


def test_collect_shows_what_the_sampler_printed(build, tmp_path, empty_directory):
    lines = run_sampler(tmp_path, "2026/11/22 03:00:00.000, 0, 70.00, 500\n", 1).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"node": "n_1", "samples": [[0, 70, 500]]},
        {"node": "n_1", "gpus": 1, "count": 1},
    ]
    assert "--loop=2" in (tmp_path / "argv").read_text().split()
    built = build("1n1g", repeats=3)
    (array,) = built.campaign.arrays
    # Files are named by the point as it was requested, before its batch size was found.
    point = replace(array.point, batch_size_per_device=LARGEST)
    built = built.change(arrays=(replace(array, point=point),)).finish()
    (built.directory / point.search).write_text('{"event": "found", "size": 4}\n')
    (built.directory / "env").mkdir()
    text = render_nvidia_smi([[40.0]] * 9 + [[250.0]] * 90, step=0.1)
    printed = add_samples(run_sampler(tmp_path, text, 1))
    for repeat in (1, 2):
        name = f"env/bert-tiny_1n1g_fp32_bmax.{repeat}.0.power.json"
        (built.directory / name).write_bytes(printed)
    (table,) = collect_campaigns(built.directory, states=report_states()).tables
    assert [bool(part.sampled) for part in table.rows[0].runs] == [True, True, False]
    wide = run("collect", built.directory, "--format", "wide").stdout
    assert "samples/J" in wide
    assert "MFU: no known data sheet states the peak of unknown GPUs" in wide
    metrics = first_row(run("collect", built.directory, "--json").document)["metrics"]
    assert metrics["watts"] == pytest.approx(250.0)
    assert metrics["tokens_per_second"] == pytest.approx(11.0 * 128, rel=1e-3)
    assert {entry["metric"] for entry in metrics["unknown"]} >= {"mfu"}


LENGTH, REAL = ("sequence_length", ("512",)), ("real_token_share", ("0.5",))


def make_tables(*facts):
    return tabulate([test_reduce.make_point("1n2g", [99.0, 100.0, 101.0], facts=facts)])


@cases
def test_rates_of_a_row(facts, unit, rate, real):
    """Of 100 samples/s on two GPUs."""
    # Another table keeps the conversion from being refused as a whole.
    tables = make_tables(*facts) + make_tables(LENGTH, ("packing", ("2",)))
    converted = formulas.convert_tables(tables, unit)[0]
    row = converted.rows[0]
    assert row.median == (rate and pytest.approx(rate))
    assert row.max == (rate and pytest.approx(1.01 * rate))
    assert converted.unit == unit
    assert bool(formulas.explain_missing(tables, unit)) == (rate is None)
    marked = formulas.mark_tables(tables, unit)
    data = document.tables_data(marked)["tables"][0]["rows"][0]
    assert data["median"] == 100.0
    expected = {"unit": f"{unit}/s", "real": real, "per_gpu": rate and pytest.approx(rate / 2)}
    rates = data.get("rates", {})
    assert {key: rates[key] for key in expected if rates} == (expected if unit != "samples" else {})


def test_every_form_has_the_rate_its_unit_and_that_per_device():
    tables = formulas.convert_tables(make_tables(LENGTH, REAL), "tokens")
    for name in (name for name, form in FORMATS.items() if form.units == "convert"):
        text = FORMATS[name].write(tables, test_reduce.MADE, 0).replace(",", "")
        assert "51200" in text, name
        assert "tokens/s" in text, name
        assert name == "csv-runs" or "25600" in text, name  # per GPU, and real tokens
    marked = formulas.mark_tables(make_tables(LENGTH, REAL), "tokens")
    text = FORMATS["json"].write(marked, test_reduce.MADE, 0)
    assert document.parse_results(text, file="x").tables == make_tables(LENGTH, REAL)
    frames = frame.rows_frame(tables), frame.runs_frame(tables)
    assert frames[0]["median"].tolist() == [51_200.0]
    assert {*frames[0]["unit"], *frames[1]["unit"]} == {"tokens/s"}
    # On a narrow terminal too.
    text = FORMATS["text"].write(tables, test_reduce.MADE, 60)
    assert max(map(len, text.splitlines())) < 80
    assert "real tokens/s 25,600" in text


def test_collect_compare_and_predict_in_tokens(tmp_path):
    long = write_logs(tmp_path / "long", RATES, sequence_length=512)
    words = ("collect", long, "--unit", "tokens")
    rates = [row["rates"] for row in rows(run(*words, "--json").document)]
    values = [[round(rate[key]) for key in ("median", "per_gpu")] for rate in rates]
    assert values == [[5120, 5120], [10240, 5120]]
    assert "| 10240" in run(*words, "--format", "markdown").stdout
    # A user may say the length.
    plain = ("collect", write_logs(tmp_path / "plain", RATES), "--set", "sequence_length=128")
    row = first_row(run(*plain, "--unit", "tokens", "--json").document)
    assert round(row["rates"]["median"]) == 1280
    predict = ("predict", "dlperf:oneflow-fp32-b32", "--nodes", "8")
    assert "864,519 tokens/s" in run(*predict, "--unit", "tokens").stdout
    data = run(*predict, "--unit", "tokens", "--json").data["tables"][0]["predictions"][0]
    assert data["rates"]["throughput"] == pytest.approx(128 * data["throughput"])
    assert data["rates"]["per_gpu"] == pytest.approx(2 * data["throughput"])
    # A point without a length fails the gate for that reason.
    saved = tmp_path / "new.json"
    run("collect", long, "--format", "json", "--output", saved)
    data = json.loads(saved.read_text())
    data["tables"][0]["rows"][0]["metrics"]["tokens_per_second"] = None
    saved.write_text(json.dumps(data))
    answer = run("compare", long, saved, "--unit", "tokens", "--fail-under", "90%", status=7)
    assert "BASE tokens/s" in answer.stdout
    assert "1n1g" in answer.stderr
    assert "no rate in this unit" in answer.stderr


@cases
def test_no_rate_is_invented(words, reason, tmp_path):
    answer = run("collect", write_logs(tmp_path / "logs", RATES), *words, status=2)
    assert reason in answer.stderr
    assert "tokens/s" not in answer.stdout


@pytest.mark.slow
def test_report_and_figures_in_tokens(tmp_path):
    target, folder = tmp_path / "report", write_logs(tmp_path, RATES, sequence_length=512)
    assert run("report", folder, "--unit", "tokens", "--output", target).returncode == 0
    page = (target / "report.md").read_text(encoding="utf-8")
    assert "| tokens/s |" in page
    assert "10240" in page
    assert "词元/秒" in (target / "report.zh.md").read_text(encoding="utf-8")
    assert ">tokens/s<" in (target / "figures/scaling-1.svg").read_text(encoding="utf-8")
    row = json.loads((target / "results.json").read_text())["tables"][0]["rows"][0]
    assert (round(row["median"]), round(row["rates"]["median"])) == (10, 5120)

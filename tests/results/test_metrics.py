"""How good a number is: formulas held against the reference program, unknowns said, power sampled;
rates in tokens and sequences, in every form of output and every command that has rates."""

import csv
import io
import json
import re
import subprocess
import time
from dataclasses import replace

import pytest

from hpcbert.campaign.fingerprint import find_window, parse_samples, read_power
from hpcbert.commands.report import list_pictures
from hpcbert.model import PRECISIONS, Counted, Metrics, Sampled, Shape, Steps, usual_predictions
from hpcbert.results import document, frame, record
from hpcbert.results import metrics as formulas
from hpcbert.results.document import ResultSet
from hpcbert.results.formats import FORMATS
from hpcbert.results.reduce import tabulate
from tests.kit import logs
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import cases, read_constant
from tests.kit.cli import codes, first_row, rows, run
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import until
from tests.results import test_reduce
from tests.results.test_reduce import MADE

A100 = "NVIDIA A100-SXM4-80GB"
BASE = formulas.ModelSize(12, 768, 3072)
GROUP = replace(test_reduce.GROUP, framework="pytorch", precision="bf16")
COUNTED = Counted(20, 120, "iterations 21 to 120")


def make_point(rate=800.0, sampled=None, **changes):
    """Return a point of three runs on four A100s, of 128 tokens without padding."""
    runs = tuple(test_reduce.make_run(n, rate, sampled=sampled) for n in (1, 2, 3))
    facts = make_facts(sequence_length=128, real_token_share=1.0)
    defaults = {"asked": 3, "group": GROUP, "runs": runs, "facts": facts, "counted": COUNTED}
    return test_reduce.make_point("1n4g", [], **{**defaults, **changes})


def make_facts(**facts):
    return (("GPU", (A100,)), *((name, (str(value),)) for name, value in facts.items()))


def compute(point, rate=80.0):
    return formulas.compute_metrics(point, rate) or Metrics()


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
    for name, *printed in figures:
        model = formulas.find_model(name)
        assert model
        flops = [formulas.model_flops(model, length) for length in (128, 512)]
        assert [f"{number / 1e9:,.1f}" for number in flops] == printed
    for peaks in formulas.load_peaks():
        cells = [f"{peaks[key]:,g}" if key in peaks else "-" for key in PRECISIONS]
        assert f"| {' | '.join([peaks['label'], *cells])} |" in text
    # A model of one layer: every product's multiplications and additions.
    products = 4 * 4 * 4 + 4 * 8 + 8 * 4
    expected = 6 * products * 2 + 12 * 4 * 4 + 6 * (16 + 40) + 6 * (16 + 8)
    assert formulas.model_flops(formulas.ModelSize(1, 4, 8, 10), 2, 1) == expected
    # Every GPU of the record has a peak, and every peak a source.
    sources = map(record.load_source, record.source_names())
    tables = [(source, table) for source in sources for table in source.tables]
    gpus = {source.facts_of(table).get("GPU", A100) for source, table in tables}
    # These names say neither the form nor the memory, on which the peak depends.
    gpus -= {"NVIDIA V100", "V100", "A100", "H100"}
    assert not {gpu for gpu in gpus if formulas.find_peak(gpu, "fp16") is None}
    for peaks in formulas.load_peaks():
        assert re.match(r"(NVIDIA|AMD|Intel), ", peaks["source"])
        assert peaks.keys() - {"label", "name", "source"} <= {*PRECISIONS}
    for gpu in gpus:
        names = [entry["name"] for entry in formulas.load_peaks()]
        assert sum(bool(re.fullmatch(name, gpu, re.IGNORECASE)) for name in names) == 1


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
    assert metrics.samples_per_joule == pytest.approx(800 / 1002)
    assert metrics.unknown == ()
    hundred = list(map(float, range(1, 101)))
    for values, expected in (([1.0], 1.0), (hundred, 95.0), ([3.0, 1.0, 2.0], 3.0)):
        assert formulas.percentile(values, 0.95) == expected
    tables = tabulate([make_point(runs=runs), make_point(group=replace(GROUP, model="y"))])
    again = document.parse_results(document.render_results(ResultSet(tables)), file="x")
    assert again.tables == tables


@cases
def test_what_is_unknown_is_said(*, facts, model, device, sampled, names, reason):
    power = Sampled(9.0, 30_000.0, sampled, 12.0, 12) if sampled else None
    point = make_point(sampled=power)
    group = replace(GROUP, model=model or "bert-base", device=device or "gpu")
    own_facts = point.facts if facts is None else tuple(facts.items())
    metrics = compute(replace(point, group=group, facts=own_facts), 800.0)
    unknown = dict(metrics.unknown)
    for name in names:
        assert getattr(metrics, name) is None
        assert reason in unknown[name], unknown
    assert {name for name in vars(metrics) if getattr(metrics, name) is None} == set(unknown)


@cases
def test_operations_are_those_of_the_sizes_that_the_run_states(facts, flops):
    metrics = compute(make_point(facts=make_facts(**facts)))
    tokens = 512 / facts.get("packing", 1)
    assert metrics.model_flops_per_sample == pytest.approx(flops)
    assert metrics.mfu_padded == pytest.approx(80 * flops / (4 * 312e12))
    assert metrics.tokens_per_second == 80 * tokens
    assert metrics.real_tokens_per_second == 40 * tokens
    # The attention's products fall with the square, all others with the length.
    assert 0.25 < (metrics.mfu or 0) / (metrics.mfu_padded or 0) < 0.51


def test_a_model_that_the_log_describes_needs_no_name_and_its_own_sum_is_its_work():
    """DLPerf's paths say only `bert`. Samples differ in length, so squares are more than their mean's."""
    half = {"sequence_length": 512, "real_token_share": 0.5}
    for model in ("bert", "resnet50"):
        group = replace(GROUP, framework="oneflow", model=model, precision="fp32")
        facts = make_facts(sequence_length=128, hidden_size=768, layers=12)
        described = compute(make_point(group=group, facts=facts))
        assert described.model_flops_per_sample == formulas.model_flops(BASE, 128)
        assert compute(make_point(group=group, facts=make_facts(**half))).mfu_padded is None
    total = formulas.model_flops(BASE, 512)
    metrics = compute(make_point(facts=make_facts(**half, model_flops=0.6 * total)))
    assert metrics.mfu == pytest.approx(0.6 * (metrics.mfu_padded or 0))
    wrong = compute(make_point(facts=make_facts(**half, model_flops=1.1 * total)))
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
    _, _, sample = (REPOSITORY / "templates/pytorch/sample.log").read_text().partition("\n")

    def collect_row(*configs):
        """Collect the sample with other configurations, each a run of an H200."""
        for number, changes in enumerate(configs, 1):
            config = {
                "device": "cuda",
                "device_name": "NVIDIA H200",
                "precision": "bf16",
                **changes,
            }
            lines = sample.replace("time: 17952", f"time: 1795{number + 1}").splitlines()
            for place, line in enumerate(lines):
                word, _, text = line.partition(" ")
                if word in {"hpcbert-config", "hpcbert-result"}:
                    values = {key: config.get(key, old) for key, old in json.loads(text).items()}
                    lines[place] = f"{word} {json.dumps(values)}"
            name = f"pytorch/bert/bz8/1n1g/bert_b8_bf16_{number}.log"
            logs.write_file(tmp_path, name, "\n".join([*lines, ""]))
        return first_row(run("collect", tmp_path / "pytorch", "--fw", "pytorch", "--json").document)

    stated = {"vocab": 8192, "real_token_share": 0.5, "model_flops_per_sample": 2e8}
    row = collect_row(stated)
    metrics = row["metrics"]
    flops = formulas.model_flops(formulas.ModelSize(2, 128, 512, 8192), 128)
    assert metrics["model_flops_per_sample"] == flops == pytest.approx(4.80e8, rel=1e-2)
    assert metrics["mfu"] == pytest.approx(row["median"] * 2e8 / 989.5e12)
    assert metrics["mfu"] < metrics["mfu_padded"]
    assert metrics["real_tokens_per_second"] == pytest.approx(row["median"] * 64)
    titles = {"wide": "padded MFU", "csv": ",mfu,mfu_padded,", "markdown": "| MFU padded |"}
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


def render_nvidia_smi(*watts, step=1.0):
    """Return nvidia-smi's lines: so many looks, each with the watts of each GPU."""
    lines = []
    for number, row in enumerate(row for looks, row in watts for _ in range(looks)):
        for gpu, drawn in enumerate(row):
            at = 1_700_000_000 + number * step + gpu * 0.001
            stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(at))
            fraction = f"{int(at % 1 * 1000):03d}"
            lines.append(f"{stamp}.{fraction}, {gpu}, {drawn:.2f}, {1000 + number}\n")
    return "".join(lines)


def run_sampler(folder, text, gpus, *, tool="nvidia-smi", node="n/1"):
    """Return what the sampler of a node prints after its tool has printed a text."""
    (folder / "text").write_text(text)
    printed = folder / "printed"
    printed.unlink(missing_ok=True)
    (folder / tool).write_text(read_constant(__file__, "TOOL"))
    (folder / tool).chmod(0o755)
    script = (REPOSITORY / "hpcbert/shell/sample.sh").read_text()
    words = ["bash", "-c", script, "sample", str(gpus), "2"]
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURMD_NODENAME": node}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe) as sampler:
        until(printed.exists, "what the tool prints")
        return sampler.communicate(b"\n")[0]


def add_samples(printed):
    """Return what a job makes of the lines of its nodes."""
    words = ["bash", "-c", f'. "{REPOSITORY}/hpcbert/shell/nodes.bash"; add_samples']
    return subprocess.run(words, input=printed, capture_output=True, check=False).stdout


def test_the_window_is_where_most_is_drawn_as_nvidia_smi_or_rocm_smi_print_it(tmp_path):
    def sample_node(*words, **options):
        return parse_samples(add_samples(run_sampler(tmp_path, *words, **options)))

    text = render_nvidia_smi((20, [50.0, 60.0]), (30, [300.0, 310.0]), (10, [70.0, 60.0]))
    for gpus, watts in ((2, 610.0), (1, 310.0)):
        window = find_window(sample_node(text, gpus), 25.0)
        assert window
        assert window.watts == pytest.approx(watts)
        assert window.gpus == gpus
        assert 1020 <= window.memory_mib <= 1050
    # Midnight may be inside it.
    days = ("2023/11/14 23:59:{:02d}", "2023/11/15 00:00:{:02d}")
    looks = [days[at // 30].format((at + 30) % 60) + ".000, 0, 300.00, 5\n" for at in range(60)]
    samples = sample_node("".join(looks), 1)
    assert [row[0] for row in samples.rows] == pytest.approx([float(at) for at in range(60)])
    # There is none where nobody looked long enough, or what was printed is nothing.
    long = render_nvidia_smi((90, [1.0]))
    texts = [render_nvidia_smi((4, [1.0])), render_nvidia_smi((20, [1.0]))]
    texts += [long.replace("1.00", number) for number in ("[N/A]", "nan", "1e9")]
    texts += ["", "garbage", "2026/99/99 00:00:00, 0, 1, 1\n" * 9, '"' * 9999, "\1\1\n" * 99]
    for text in texts:
        samples = sample_node(text, 1)
        assert samples is None or find_window(samples, 25.0) is None
    table = read_constant(__file__, "ROCM_SMI")
    text = "".join(f"17637176{at:02d}.123456\n{table}" for at in range(30))
    newer = text.replace("Average Graphics Package", "Current Socket Graphics Package")
    for printed in (text, newer):
        window = find_window(sample_node(printed, 2, tool="rocm-smi"), 20.0)
        assert window
        assert (window.watts, window.memory_mib) == (400.0, 2048.0)


def test_all_nodes_or_none(tmp_path):
    """The samples of nodes are added in their order, as far as all nodes have them."""
    text = render_nvidia_smi((140, [100.0]))
    first = run_sampler(tmp_path, text, 1, node="a").splitlines()
    text = render_nvidia_smi((150, [100.0, 50.0]))
    second = run_sampler(tmp_path, text, 2, node="b").splitlines()
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
    built.finish()
    (built.directory / "env").mkdir()
    text = render_nvidia_smi((9, [40.0]), (90, [250.0]), step=0.1)
    printed = add_samples(run_sampler(tmp_path, text, 1))
    for repeat in (1, 2):
        name = f"env/bert-tiny_1n1g_fp32_b4.{repeat}.0.power.json"
        (built.directory / name).write_bytes(printed)
    (table,) = collect_campaigns(built.directory, states=report_states()).tables
    assert [bool(part.sampled) for part in table.rows[0].runs] == [True, True, False]
    wide = run("collect", built.directory, "--format", "wide").stdout
    assert "samples/J" in wide
    assert "no MFU: nothing says what the GPUs are" in wide
    metrics = first_row(run("collect", built.directory, "--json").document)["metrics"]
    assert metrics["watts"] == pytest.approx(250.0)
    assert metrics["tokens_per_second"] == pytest.approx(11.0 * 128, rel=1e-3)
    assert {entry["metric"] for entry in metrics["unknown"]} >= {"mfu"}


LENGTH, REAL = ("sequence_length", ("512",)), ("real_token_share", ("0.5",))


def make_tables(*facts):
    rates = [99.0, 100.0, 101.0]
    return tabulate([test_reduce.make_point("1n2g", rates, facts=facts, counted=COUNTED)])


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
        text = FORMATS[name].write(tables, MADE, 0).replace(",", "")
        assert "51200" in text, name
        assert "tokens/s" in text, name
        assert name == "csv-runs" or "25600" in text, name  # per GPU, and real tokens
    marked = formulas.mark_tables(make_tables(LENGTH, REAL), "tokens")
    text = FORMATS["json"].write(marked, MADE, 0)
    assert document.parse_results(text, file="x").tables == make_tables(LENGTH, REAL)
    (line,) = csv.DictReader(io.StringIO(FORMATS["csv"].write(tables, MADE, 0)))
    assert (line["median"], line["unit"]) == ("51200.0", "tokens/s")
    assert (line["per_gpu"], line["real_tokens_per_second"]) == ("25600.0", "25600.0")
    frames = frame.rows_frame(tables), frame.runs_frame(tables)
    assert frames[0]["median"].tolist() == [51_200.0]
    assert {*frames[0]["unit"], *frames[1]["unit"]} == {"tokens/s"}
    # A narrow terminal and figures have the unit too.
    text = FORMATS["text"].write(tables, MADE, 60)
    assert max(map(len, text.splitlines())) < 80
    assert "real tokens/s 25,600" in text
    curve = (replace(tables[0].rows[0], shape=Shape(1, 1)), *tables[0].rows)
    results = ResultSet((replace(tables[0], rows=curve),))
    panels = [panel for picture in list_pictures(results, MADE, "zh") for panel in picture.panels]
    assert "词元/秒" in {panel.y for panel in panels}


def write_logs(folder, length=None, name="logs", *, real=False):
    """Write four logs on one and on two GPUs, of 10 samples/s a GPU; return their folder."""
    for gpus, repeat in ((gpus, repeat) for gpus in (1, 2) for repeat in (1, 2, 3, 4)):
        start = 1763717655.5 + 10_000 * (4 * gpus + repeat) + len(name)
        text = logs.log(f"1n{gpus}g", 10.0 * gpus, iters=120, start=start)
        facts = f'"sequence_length": {length}, ' if length else ""
        text = text.replace('hpcbert-config {"', f'hpcbert-config {{{facts}"')
        text += 'hpcbert-result {"real_token_share": 0.5}\n' if real else ""
        path = f"{name}/pytorch/1n{gpus}g/bert_b4_fp32_{repeat}.log"
        logs.write_file(folder, path, f"run {name} {repeat}\n{text}")
    return folder / name


def test_collect_compare_and_predict_in_tokens(tmp_path):
    words = ("collect", write_logs(tmp_path, 512, real=True), "--unit", "tokens")
    rates = [row["rates"] for row in rows(run(*words, "--json").document)]
    values = [[round(rate[key]) for key in ("median", "per_gpu", "real")] for rate in rates]
    assert values == [[5120, 5120, 2560], [10240, 5120, 5120]]
    text = run(*words, "--format", "markdown").stdout
    assert "| tokens/s |" in text
    assert "| 10240" in text
    # A user may say the length.
    plain = ("collect", write_logs(tmp_path, name="plain"), "--set", "sequence_length=128")
    row = first_row(run(*plain, "--unit", "tokens", "--json").document)
    assert round(row["rates"]["median"]) == 1280
    predict = ("predict", "dlperf:oneflow-fp32-b32", "--nodes", "8")
    assert "samples/s" in run(*predict).stdout
    assert "864,519 tokens/s" in run(*predict, "--unit", "tokens").stdout
    data = run(*predict, "--unit", "tokens", "--json").data["tables"][0]["predictions"][0]
    assert data["rates"]["throughput"] == pytest.approx(128 * data["throughput"])
    assert data["rates"]["per_gpu"] == pytest.approx(2 * data["throughput"])
    long = write_logs(tmp_path, 512, "long")
    compare = ("compare", write_logs(tmp_path, 128, "short"), long, "--unit", "tokens")
    assert run(*compare).returncode == 2  # two experiments
    (comparison,) = run(*compare, "--anyway", "--json").data["comparisons"]
    assert comparison["unit"] == "tokens/s"
    assert {round(point["ratio"], 6) for point in comparison["points"]} == {4.0}
    assert "BASE tokens/s" in run(*compare, "--anyway").stdout
    # A point without a length fails the gate for that reason.
    saved = tmp_path / "new.json"
    run("collect", write_logs(tmp_path, 512, "new"), "--format", "json", "--output", saved)
    data = json.loads(saved.read_text())
    data["tables"][0]["rows"][0]["metrics"]["tokens_per_second"] = None
    saved.write_text(json.dumps(data))
    answer = run("compare", long, saved, "--unit", "tokens", "--fail-under", "90%")
    assert answer.returncode == 7
    assert "1n1g" in answer.stderr
    assert "no rate in this unit" in answer.stderr


@cases
def test_no_rate_is_invented(words, reason, tmp_path):
    answer = run("collect", write_logs(tmp_path), *words)
    assert answer.returncode == 2
    assert reason in answer.stderr
    assert "tokens/s" not in answer.stdout


@pytest.mark.slow
def test_report_and_figures_in_tokens(tmp_path):
    target = tmp_path / "report"
    words = ("report", write_logs(tmp_path, 512), "--unit", "tokens", "--output", target)
    assert run(*words).returncode == 0
    page = (target / "report.md").read_text(encoding="utf-8")
    assert "| tokens/s |" in page
    assert "10240" in page
    assert ">tokens/s<" in (target / "figures/scaling-1.svg").read_text(encoding="utf-8")
    row = json.loads((target / "results.json").read_text())["tables"][0]["rows"][0]
    assert (round(row["median"]), round(row["rates"]["median"])) == (10, 5120)

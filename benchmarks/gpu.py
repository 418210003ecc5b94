"""Measure the reference on one device in one go, the most valuable rows first.

    python benchmarks/gpu.py --output h100               # ten minutes; the same command continues
    python benchmarks/gpu.py --output h100 --minutes 0   # only prints the table again

Rows: each size of the model, compiled and eager; each value of each option of the program that is a
choice of speed; its losses against the CPU's; a run that needs too much memory; a profile;
`hpcbert submit --batch-size max`; transformers 5, where installed. gpu.toml has the sizes. Without
a GPU the same rows run on the CPU, with sizes so small that they only show that they run.

A row that fails keeps its reason, and the others go on. The output has each row's log, the samples
of its power, and its figures as JSON, so the next call with this output runs what is missing, and
after that what failed. It refuses an output with figures of another device, PyTorch or program.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from hpcbert.campaign import fingerprint
from hpcbert.config import toml
from hpcbert.logs import failures, grammar
from hpcbert.model import Device
from hpcbert.results import metrics
from hpcbert.system import files
from hpcbert.workloads.bert_settings import Settings

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
WORKLOADS = REPOSITORY / "hpcbert" / "workloads"
PROGRAM = WORKLOADS / "bert_pretrain.py"
SAMPLER = REPOSITORY / "hpcbert" / "shell" / "sample.sh"
MODES = {"compiled": "--compile=true", "eager": "--compile=false"}
LOSS = re.compile(r"^iteration: \d+/\d+ loss: (\S+)", re.MULTILINE)
PEER = re.compile(r"^(as it is|transformers) +([\d.]+) s a step of (\d+) samples", re.MULTILINE)
# Seconds that a row needs at least, steps of a profile and of an equality, characters of a remark.
LEAST, PROFILED, EQUAL, SHOWN = 10.0, 5, 20, 200
MACHINE = """
import json, torch
gpu = torch.cuda.is_available()
print(json.dumps({"device": torch.cuda.get_device_name(0) if gpu else "CPU", "gpu": gpu,
    "torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}))
"""
COLUMNS = (
    ("samples/s", "samples_per_second", ",.4g", 1),
    ("real tokens/s", "real_tokens_per_second", ",.0f", 1),
    ("MFU padded", "mfu_padded", ".1%", 1),
    ("MFU real", "mfu", ".1%", 1),
    ("W", "watts", ".0f", 1),
    ("peak GiB", "peak_memory_bytes", ".2f", 2**30),
)


class RowError(Exception):
    """A row has no figures; the message says why."""


class Row(NamedTuple):
    """One row of the table.

    Attributes:
        kind: Which of RUNNERS measures it.
        words: Options of the program, or of `hpcbert submit` for the largest batch.
        baseline: The row to compare with; empty for none.
        precision: Of the losses that are compared with the CPU's.
    """

    name: str
    kind: str
    words: tuple[str, ...]
    baseline: str = ""
    precision: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a row gave: figures, or the reason for none."""

    name: str
    words: tuple[str, ...]
    figures: Mapping[str, float] = field(default_factory=dict)
    remark: str = ""
    reason: str = ""


class Bench:
    """Runs the commands of rows, with logs in one folder, until the time is up."""

    def __init__(self, folder: Path, table: Mapping[str, Any], *, device: str, end: float) -> None:
        self.folder, self.table, self.device, self.end = folder, table, device, end
        recipe = REPOSITORY / "templates" / "pytorch" / "recipe.toml"
        self.grammar = grammar.parse(toml.read(recipe)["log"], where=str(recipe))
        # The name for the reader of failures.
        self.kind: Device = "cpu" if device == "cpu" else "gpu"

    def path(self, row: Row, ending: str) -> Path:
        """Return a file of a row."""
        return self.folder / (re.sub(r"[^\w.=]+", "-", row.name) + ending)

    def run(self, command: Sequence[str], log: Path, *, seconds: float = 0.0) -> int:
        """Run a command into a log and return its status; RowError after its end by force."""
        paths = filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))
        limit = min(seconds or self.table["seconds"], max(0.0, self.end - time.monotonic()))
        with log.open("wb") as output:
            output.write(f"$ {shlex.join(command)}\n".encode())
            output.flush()
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                raise RowError(f"stopped after {limit:.0f} s") from None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def train(self, words: Sequence[str], log: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run the program and return its configuration and result; RowError with the reason."""
        status = self.run([sys.executable, str(PROGRAM), *words], log)
        lines = re.findall(r"^hpcbert-(?:config|result) (\{.*\})$", _read(log), re.MULTILINE)
        if status != 0 or len(lines) != 2:
            raise self.explain(log, f"status {status}")
        configuration, result = map(json.loads, lines)
        return configuration, result

    def explain(self, log: Path, otherwise: str) -> RowError:
        """Return why a log's command failed: the reason that hpcbert sees, else the last line."""
        failure = failures.explain_failure(log, self.grammar, self.kind)
        *_, last = [line for line in _read(log).splitlines() if line.strip()]
        return RowError(str(failure or f"{otherwise}: {last[:SHOWN]}"))


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace")


@contextmanager
def sample_power(path: Path) -> Iterator[None]:
    """Record the power of up to two GPUs each second; without the vendor's tool, nothing."""
    with path.open("wb") as output:
        command = ["bash", str(SAMPLER), "2", "1"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)
        try:
            yield
        finally:
            process.communicate(b"\n")  # a line ends it


def read_watts(path: Path, seconds: float) -> float | None:
    """Return the mean power of the window; None with other GPUs in the node, or too few samples."""
    *parts, end = [json.loads(line) for line in _read(path).splitlines()] or [{}]
    rows = [row for part in parts for row in part["samples"]]
    if end.get("gpus") != 1 or not rows or end["count"] != len(rows):
        return None
    total = path.with_suffix(".total")  # as a job adds up the samples of its nodes
    total.write_text(json.dumps({"nodes": 1, "gpus": 1, "samples": rows}))
    sampled = fingerprint.read_power(total, seconds=seconds)
    return sampled.watts if sampled else None


def compute_shares(configuration: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return both MFU by the device's peak; None where no data sheet states it."""
    peak = metrics.find_peak(configuration["device_name"], configuration["precision"])
    if not peak:
        return {}
    sizes = (configuration[name] for name in ("layers", "hidden", "intermediate", "vocab"))
    model, length = metrics.ModelSize(*sizes), configuration["sequence_length"]
    padded = metrics.model_flops(model, length, configuration["predictions"])
    rate = result["samples_per_second"] / peak
    return {
        "mfu": rate * result["model_flops_per_sample"],
        "mfu_padded": None if configuration["unpad"] else rate * padded,
    }


# --- The kinds of rows ----------------------------------------------------------------------------


def measure_training(bench: Bench, row: Row) -> Outcome:
    """Train, and return the rates of the window with its power and memory."""
    log = bench.path(row, ".log")
    samples = bench.path(row, ".power.jsonl")
    with sample_power(samples):
        configuration, result = bench.train(row.words, log)
    names = ("samples_per_second", "real_tokens_per_second", "peak_memory_bytes", "final_loss")
    figures = {name: result[name] for name in names} | compute_shares(configuration, result)
    if bench.device == "cuda":
        window = (result["iters"] - result["skip"]) * result["iteration_seconds_mean"]
        figures["watts"] = read_watts(samples, window)
    figures = {name: value for name, value in figures.items() if value is not None}
    return Outcome(row.name, row.words, figures)


def compare_losses(bench: Bench, row: Row) -> Outcome:
    """Train the same steps on the device and in fp32 on the CPU, and compare the losses."""
    curves = []
    for device, precision in ((bench.device, row.precision), ("cpu", "fp32")):
        log = bench.path(row, f".{device}.{precision}.log")
        bench.train([*row.words, f"--device={device}", f"--precision={precision}"], log)
        curves.append([float(loss) for loss in LOSS.findall(_read(log))])
    difference = max(abs(one - other) for one, other in zip(*curves, strict=True))
    limit = bench.table["bounds"][row.precision]
    remark = f"largest difference of {EQUAL} losses to fp32 on the CPU: {difference:.4f}"
    if not difference <= limit:
        raise RowError(f"{remark}, more than {limit}")
    return Outcome(row.name, row.words, {"loss_difference": difference}, remark)


def exhaust_memory(bench: Bench, row: Row) -> Outcome:
    """Train more samples than fit, and return how the failure is explained."""
    log, command = bench.path(row, ".log"), [sys.executable, str(PROGRAM), *row.words]
    if bench.device == "cpu":
        limit = str(bench.table["memory"])
        command = ["bash", "-c", 'ulimit -v "$0" && exec "$@"', limit, *command]
    status = bench.run(command, log)
    shortage = failures.find_shortage(log, bench.grammar, bench.kind)
    if status == 0 or shortage is None:
        raise RowError(f"not recognised as a lack of memory: {bench.explain(log, str(status))}")
    return Outcome(row.name, row.words, remark=f"status {status}, recognised: {shortage}")


def profile_steps(bench: Bench, row: Row) -> Outcome:
    """Profile some steps in a process of their own; its log has the table of kernels."""
    log, trace = bench.path(row, ".log"), bench.path(row, ".trace.json.gz")
    command = [sys.executable, str(HERE / "gpu.py"), f"--profile={trace}", *row.words]
    status = bench.run(command, log)
    lines = re.findall(r"^profile (\{.*\})$", _read(log), re.MULTILINE)
    if status or not lines:
        raise bench.explain(log, f"status {status}")
    shares = json.loads(lines[-1])
    kernels = ", ".join(f"{name[:40]} {share:.0%}" for name, share in shares.items())
    return Outcome(row.name, row.words, shares, f"of the device's time: {kernels}")


def find_largest(bench: Bench, row: Row) -> Outcome:
    """Submit a campaign at the largest batch to the local queue, and wait for it."""
    log, runs = bench.path(row, ".log"), bench.path(row, ".runs")
    shutil.rmtree(runs, ignore_errors=True)
    hpcbert = [sys.executable, "-m", "hpcbert"]
    words = ["--fw=pytorch", f"--python={sys.executable}", "--batch-size=max", "--repeats=1"]
    words += ["--scheduler=local", f"--site={REPOSITORY / 'site.toml'}", f"--runs={runs}"]
    words += ["--wait", "--json", *row.words]
    try:
        seconds = bench.table["search_seconds"]
        status = bench.run([*hpcbert, "submit", *words], log, seconds=seconds)
    except (RowError, KeyboardInterrupt):
        for campaign in runs.glob("*/"):
            subprocess.run([*hpcbert, "cancel", "--yes", str(campaign)], check=False)
        raise
    searches = "".join(map(_read, sorted(runs.glob("*/status/*.search.jsonl"))))
    sizes = re.findall(r'"event":"found".*"size":(\d+)', searches)
    *_, document = _read(log).splitlines()
    rehearses = "--rehearse" in row.words
    if not sizes or (status and not rehearses):
        raise bench.explain(log, f"status {status}")
    if rehearses:
        return Outcome(row.name, row.words, remark="the search ran as a rehearsal")
    (table,) = json.loads(document)["data"]["tables"]
    figures = {"samples_per_second": table["rows"][0]["median"]}
    return Outcome(row.name, row.words, figures, f"{sizes[-1]} samples fit")


def compare_peer(bench: Bench, row: Row) -> Outcome:
    """Train the reference and transformers, a step of each in turns."""
    if importlib.util.find_spec("transformers") is None:
        raise RowError("transformers is not installed")
    log = bench.path(row, ".log")
    command = [sys.executable, str(HERE / "reference.py"), "--against=transformers", *row.words]
    status = bench.run(command, log)
    rates = {name: int(size) / float(seconds) for name, seconds, size in PEER.findall(_read(log))}
    if status or len(rates) != 2:
        raise bench.explain(log, f"status {status}")
    ratio = rates["as it is"] / rates["transformers"]
    remark = f"in turns with the reference, which is {ratio:.2f} x as fast"
    figures = {"samples_per_second": rates["transformers"]}
    return Outcome(row.name, row.words, figures, remark)


RUNNERS: dict[str, Callable[[Bench, Row], Outcome]] = {
    "train": measure_training,
    "losses": compare_losses,
    "memory": exhaust_memory,
    "profile": profile_steps,
    "largest": find_largest,
    "peer": compare_peer,
}


# --- The rows -------------------------------------------------------------------------------------


def list_choices(document: Mapping[str, Any], words: Sequence[str]) -> Iterator[str]:
    """Yield the words of each value of each option of the program that is a choice of speed.

    Args:
        document: gpu.toml.
        words: Options that the row to compare with sets: of others, the default is left out.
    """
    for option in fields(Settings):
        name = "--" + option.name.replace("_", "-")
        values = document["values"].get(name[2:], option.metadata.get("choices") or ())
        is_set = any(word.startswith(f"{name}=") for word in words)
        if option.name in document["sizes"]:
            continue
        if str(option.type) == "bool":
            yield name
        for value in values:
            word = f"{name}={value}"
            if value != "auto" and word not in words and (is_set or value != option.default):
                yield word


def plan_cells(table: Mapping[str, Any], device: str) -> Iterator[tuple[int, str, Row]]:
    """Yield for each size and mode the place of the batch size, the mode, and the row."""
    for cell in table["cells"]:
        for place, size in enumerate(cell["batch_sizes"]):
            iters = table["skip"] + math.ceil(cell["samples"] / size)
            words = (
                *(f"--model={cell['model']}", f"--sequence-length={cell['length']}"),
                *(f"--batch-size={size}", f"--precision={table['precision']}"),
                *(f"--iters={iters}", f"--skip={table['skip']}", f"--device={device}"),
                *table["words"],
            )
            for mode, word in MODES.items():
                name = f"{cell['model']} {cell['length']} b{size} {mode}"
                yield place, mode, Row(name, "train", (*words, word))


def plan_options(first: Row, document: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of the program's options, each after the row without it.

    Args:
        first: The row of the size to try them with.
        document: gpu.toml.
    """
    size, more = first.name.rpartition(" ")[0], document["with"]
    for choice in list_choices(document, first.words):
        if choice in MODES.values():
            continue
        name = choice.removeprefix("--")
        needed_words = more.get(name, more.get(name.partition("=")[0], ()))
        extra = tuple(word for word in needed_words if word not in first.words)
        words, baseline = (*_without_mode(first), *extra), first.name
        if extra:
            baseline = f"{size} {' '.join(extra)}"
            yield Row(baseline, "train", words, first.name)
        yield Row(f"{size} {choice}", "train", (*words, choice), baseline)


def _without_mode(row: Row) -> tuple[str, ...]:
    return tuple(word for word in row.words if word not in MODES.values())


def plan_rows(document: Mapping[str, Any], device: str) -> list[Row]:
    """Return all rows of a device, the most valuable first."""
    table = document[device]
    cells = list(plan_cells(table, device))
    default = table["default"]
    headline = [row for place, mode, row in cells if (place, mode) == (0, default)]
    other_modes = [row for place, mode, row in cells if place == 0 and mode != default]
    small_batches = [row for place, _, row in cells if place > 0]
    first, steps = headline[0], ("--dropout=0", f"--iters={EQUAL}", "--skip=0", "--warmup=5")
    checks = [
        *(
            Row(f"losses {precision}", "losses", (*table["losses"], *steps), precision=precision)
            for precision in table["bounds"]
        ),
        Row("too much memory", "memory", (*table["memory_words"], f"--device={device}")),
        Row("profile", "profile", first.words),
    ]
    largest = Row("largest batch", "largest", tuple(table["search"]))
    peer = Row("transformers", "peer", (*_without_mode(first), MODES["eager"]))
    is_quick = device == "cuda"  # compilation takes long on a CPU
    rows = [*headline, *checks, *(other_modes if is_quick else ())]
    rows += [*plan_options(first, document), largest, peer]
    rows += [*(() if is_quick else other_modes), *small_batches]
    return list({row.name: row for row in rows}.values())


# --- The table ------------------------------------------------------------------------------------


def format_row(row: Row, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return a row's cells; what was not measured is a dash."""
    if row.name not in outcomes:
        return [row.name, *["-"] * (len(COLUMNS) + 1), "not run: the time is up"]
    outcome, baseline = outcomes[row.name], outcomes.get(row.baseline)
    cells = [row.name]
    for _, name, form, unit in COLUMNS:
        value = outcome.figures.get(name)
        cells.append("-" if value is None else format(value / unit, form))
    rate = outcome.figures.get("samples_per_second")
    base = baseline.figures.get("samples_per_second") if baseline else None
    cells.append(f"{rate / base:.2f} x {row.baseline}" if rate and base else "-")
    remark = f"failed: {outcome.reason}" if outcome.reason else outcome.remark
    return [*cells, remark.replace("|", "\\|")]


def format_table(rows: Sequence[Row], outcomes: Mapping[str, Outcome], about: str) -> str:
    """Return the table in Markdown."""
    head = ["row", *(column[0] for column in COLUMNS), "against", "remark"]
    lines = [head, ["---"] * len(head), *(format_row(row, outcomes) for row in rows)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"{table}\n{about}\n"


def read_outcomes(folder: Path, rows: Sequence[Row]) -> dict[str, Outcome]:
    """Return what earlier calls recorded with the same words."""
    outcomes, words_by_name = {}, {row.name: row.words for row in rows}
    for path in folder.glob("*.json"):
        values = json.loads(_read(path))
        outcome = Outcome(**{**values, "words": tuple(values["words"])})
        if words_by_name.get(outcome.name) == outcome.words:
            outcomes[outcome.name] = outcome
    return outcomes


def describe_machine(folder: Path, device: str) -> dict[str, Any]:
    """Return device and versions, and record them; SystemExit if the folder has others' rows.

    Args:
        folder: The output.
        device: Whose rows to run: `cpu`, `cuda`, or `auto`.
    """
    probe = subprocess.run([sys.executable, "-c", MACHINE], stdout=subprocess.PIPE, check=True)
    digest = hashlib.sha256()
    for path in sorted(WORKLOADS.glob("bert_*.py")):
        digest.update(path.read_bytes())
    machine: dict[str, Any] = {**json.loads(probe.stdout), "program": digest.hexdigest()[:12]}
    if device == "cuda" and not machine["gpu"]:
        sys.exit("gpu.py: PyTorch sees no GPU here. Leave --device out for the rows of the CPU.")
    machine["rows"] = "cuda" if machine["gpu"] and device != "cpu" else "cpu"
    record = folder / "machine"
    if record.exists() and json.loads(_read(record)) != machine:
        sys.exit(
            f"gpu.py: {folder} has rows of another device, PyTorch or program: {_read(record)}\n"
            f"This is {json.dumps(machine)}\nGive another --output."
        )
    files.write_text(record, json.dumps(machine))
    if machine["gpu"]:
        with suppress(FileNotFoundError), (folder / "nvidia-smi.txt").open("wb") as output:
            subprocess.run(["nvidia-smi", "-q"], stdout=output, check=False)
    return machine


def measure_row(bench: Bench, row: Row) -> Outcome:
    """Run one row and record its outcome; a failure is an outcome with its reason."""
    try:
        outcome = RUNNERS[row.kind](bench, row)
    except RowError as error:
        outcome = Outcome(row.name, row.words, reason=str(error))
    files.write_text(bench.path(row, ".json"), json.dumps(asdict(outcome), indent=1))
    return outcome


def measure_rows(bench: Bench, rows: Sequence[Row], about: str) -> str:
    """Run what is missing, and then what failed before, while there is time; return the table."""
    outcomes = read_outcomes(bench.folder, rows)
    missing = [row for row in rows if row.name not in outcomes]
    failed = [row for row in rows if row.name in outcomes and outcomes[row.name].reason]
    pending = [*missing, *failed]
    for number, row in enumerate(pending, start=1):
        if bench.end - time.monotonic() < LEAST:
            break
        sys.stderr.write(f"{number}/{len(pending)} {row.name}\n")
        outcomes[row.name] = measure_row(bench, row)
        files.write_text(bench.folder / "table.md", format_table(rows, outcomes, about))
    return format_table(rows, outcomes, about)


def print_profile(trace: str, words: Sequence[str]) -> None:
    """Print the kernels of some steps by their share of the device's time, and write the trace."""
    import torch
    from reference import open_trainer
    from torch.profiler import ProfilerActivity, profile

    trainer = open_trainer(words)
    is_gpu = trainer.device.type == "cuda"
    for _ in range(PROFILED):
        trainer.step().tolist()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=activities) as recording:
        for _ in range(PROFILED):
            trainer.step().tolist()
    if is_gpu:
        torch.cuda.synchronize()
    key = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    averages = recording.key_averages()
    # An operator has the time of its kernels too, and so has an annotation.
    events = [event for event in averages if not is_gpu or event.device_type.name == "CUDA"]
    events = [event for event in events if not getattr(event, "is_user_annotation", False)]
    events.sort(key=lambda event: -getattr(event, key))
    whole = sum(getattr(event, key) for event in events)
    shares = {event.key: getattr(event, key) / whole for event in events[:3]}
    sys.stdout.write(f"{averages.table(sort_by=key, row_limit=30)}\nprofile {json.dumps(shares)}\n")
    recording.export_chrome_trace(trace)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--output", type=Path, default=Path("gpu"), help="folder of raw files")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all rows")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--profile", help=argparse.SUPPRESS)
    arguments, words = parser.parse_known_args()
    if arguments.profile:
        print_profile(arguments.profile, words)
        return
    if words:
        parser.error(f"unknown: {shlex.join(words)}")
    end = time.monotonic() + 60 * arguments.minutes
    folder = arguments.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    machine = describe_machine(folder, arguments.device)
    device = machine["rows"]
    document = toml.read(HERE / "gpu.toml")
    name = machine["device"] if device == "cuda" else "a CPU, with sizes that say nothing of speed"
    about = f"Measured on {name}, PyTorch {machine['torch']}, program {machine['program']}."
    bench = Bench(folder, document[device], device=device, end=end)
    sys.stdout.write(measure_rows(bench, plan_rows(document, device), about))


if __name__ == "__main__":
    main()

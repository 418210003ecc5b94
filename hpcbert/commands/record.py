"""The published record and its logs: checking numbers, and making tables of result folders.

A repository of a round of MLPerf Training, mlcommons/training_results_vX.Y, has
SUBMITTER/results/SYSTEM/bert with one result_N.txt a run, and SUBMITTER/systems/SYSTEM.json with
the description of the system.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from hpcbert.campaign.foreign import CollectRequest
from hpcbert.commands.collect import Places, load_result_set
from hpcbert.config import toml
from hpcbert.errors import UsageError, describe_error
from hpcbert.logs.layout import natural_key
from hpcbert.logs.lines import NotALogError, read_pieces
from hpcbert.logs.scan import read as read_log
from hpcbert.logs.setting import END, Setting, Window
from hpcbert.model import Shape
from hpcbert.results import record
from hpcbert.results.compare import Side, list_sides
from hpcbert.results.record import PublishedPoint, PublishedTable
from hpcbert.system.grouping import group

# mlcommons/training_policies, training_rules.adoc: ten runs of BERT; at most one may fail.
RUNS = 10
SEQUENCE_LENGTH = 512
# The recipe that reads the logs of NVIDIA's program, which most submitters run.
RECIPE = "mlperf-bert"
# What a system's `framework` says, and what the program is called here; the first match counts.
_PROGRAMS: Mapping[str, str] = toml.read(Path(__file__).with_name("programs.toml"))["programs"]
_FP8 = "--use_transformer_engine2"


# MLPerf's result files: the clock, the samples and the settings of one run to the target. Any
# program's log has the same records, mlcommons/logging 4.1.0, mlperf_logging/mllog/mllog.py:
#   :::MLLOG {"namespace": "", "time_ms": 1621399999788, ..., "key": "run_start", "value": null}
_MARK = b":::MLLOG "
_DECODER = json.JSONDecoder()
# Some programs count evaluations or epochs in `epoch_num`. No submission reached the target with
# fewer samples than half a million; no program evaluated more often than a few hundred times.
_LEAST_SAMPLES = 100_000


class BenchmarkRun(NamedTuple):
    """One result file.

    Attributes:
        seconds: From run_start to run_stop; None if the run did not reach the target.
        samples: Trained at the last evaluation; None if the log has no such number.
        tracked_rate: Samples per second of the whole run, as the program states them.
    """

    seconds: float | None = None
    samples: float | None = None
    tracked_rate: float | None = None
    global_batch_size: int | None = None
    accumulation: int | None = None

    @property
    def clock_rate(self) -> float | None:
        """Samples per second from run_start to run_stop, evaluations included."""
        return self.samples / self.seconds if self.samples and self.seconds else None


def read_benchmark_run(path: Path) -> BenchmarkRun:
    """Read one result file; one that is not readable text, or has two runs, has no result."""
    try:
        entries = list(_read_entries(path))
    except NotALogError:
        return BenchmarkRun()
    starts = [entry["time_ms"] for entry in entries if entry.get("key") == "run_start"]
    if len(starts) != 1:
        return BenchmarkRun()
    last = {entry.get("key"): entry for entry in entries}
    stop = last.get("run_stop", {"time_ms": 0})
    metadata = stop.get("metadata")
    is_success = isinstance(metadata, dict) and metadata.get("status") == "success"
    milliseconds = stop["time_ms"] - starts[0]
    rate = _read_number(last.get("tracked_stats", {}).get("value"), "throughput")
    return BenchmarkRun(
        seconds=milliseconds / 1000 if is_success and 0 < starts[0] < stop["time_ms"] else None,
        samples=_count_samples(entries),
        tracked_rate=rate or None,
        global_batch_size=int(_read_number(last.get("global_batch_size"), "value")) or None,
        accumulation=int(_read_number(last.get("gradient_accumulation_steps"), "value")) or None,
    )


def _count_samples(entries: Iterable[dict[str, Any]]) -> float | None:
    """Return the samples trained at the last evaluation, or as stated after one."""
    samples, is_stopped, is_evaluated = None, False, False
    for entry in entries:
        key, number = entry.get("key"), 0.0
        is_stopped |= key == "run_stop"
        if key in ("eval_accuracy", "block_stop") and not is_stopped:
            is_evaluated = True
            number = _read_number(entry.get("metadata"), "epoch_num")
        elif key == "train_samples" and is_evaluated:
            # Before the first evaluation it is the number of samples that the run may take at most.
            number = _read_number(entry, "value")
        samples = number if number > _LEAST_SAMPLES else samples
    return samples


def _read_number(entry: Any, name: str) -> float:
    """Return a number of an entry, 0 if it has none: some programs write numbers as text."""
    value = entry.get(name) if isinstance(entry, dict) else None
    try:
        number = float(value or 0)
    except (TypeError, ValueError):
        return 0.0
    return number if math.isfinite(number) else 0.0


def _read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries with a time; one that other output interrupts is left out."""
    with closing(read_pieces(path)) as pieces:
        for piece in pieces:
            for text in piece.split(_MARK)[1:]:
                line = text.split(b"\n", 1)[0].decode(errors="replace")
                try:
                    entry, _ = _DECODER.raw_decode(line)
                except ValueError:
                    continue
                if isinstance(entry, dict) and isinstance(entry.get("time_ms"), int):
                    yield entry


# --- Tables of result folders ---------------------------------------------------------------------


def make_table(
    location: tuple[str, str, str], system: Mapping[str, Any], runs: Sequence[BenchmarkRun]
) -> PublishedTable | None:
    """Return a submission's table; None if its runs give neither minutes nor a rate.

    Args:
        location: The round (`v5.0`), the commit, and the path of the results in the repository.
    """
    benchmark_round, commit, path = location
    submitter, _, name = path.split("/")[:3]
    shape, facts = _describe_system(system)
    minutes = average_minutes(runs)
    # Rates that the programs state come first.
    rates = {rule: read_rates(runs, rule) for rule in ("tracked-stats", "run-clock")}
    rule = next((rule for rule in rates if rates[rule]), "")
    if not rule and minutes is None:
        return None
    batches = {(run.global_batch_size or 0, run.accumulation or 1) for run in runs}
    global_size, accumulation = batches.pop() if len(batches) == 1 else (0, 1)
    size, remainder = divmod(global_size, shape.gpus * accumulation)
    point = PublishedPoint(
        shape=shape,
        value=round(median(rates[rule]), 3) if rule else None,
        runs=tuple(rates.get(rule, ())),
        minutes=minutes,
    )
    table_name = f"{benchmark_round}-{submitter}-{name}".lower()
    return PublishedTable(
        name=re.sub(r"[^a-z0-9.]+", "-", table_name).strip("-"),
        framework=name_program(system),
        model="bert-large",
        precision="",
        batch_size_per_device=size if size and not remainder else None,
        rule=rule,
        sequence_length=SEQUENCE_LENGTH,
        commit=commit,
        path=path,
        points=(point,),
        facts=facts,
        variant=_name_variant(accumulation, is_open=system.get("division") == "open"),
    )


def _name_variant(accumulation: int | None, *, is_open: bool) -> str:
    """Return a table's variant: the division, and the accumulation as tables of logs have it."""
    words = ["open"] if is_open else []
    words += [f"acc{accumulation}"] if (accumulation or 1) > 1 else []
    return ",".join(words)


def average_minutes(runs: Sequence[BenchmarkRun]) -> float | None:
    """Return MLPerf's score: the mean time without the fastest and the slowest run.

    A run that missed the target is the slowest (mlcommons/logging 4.1.0, mlperf_logging,
    result_summarizer.py, _compute_olympic_average). None if more than one did, or runs are missing.
    """
    seconds = sorted(run.seconds for run in runs if run.seconds)
    if len(runs) < RUNS or len(seconds) < len(runs) - 1:
        return None
    scores = seconds[1 : len(runs) - 1]
    return round(sum(scores) / len(scores) / 60, 3)


def read_rates(runs: Sequence[BenchmarkRun], rule: str) -> list[float]:
    """Return the samples per second of the runs that have one by a rule of the recipe."""
    rates = (run.tracked_rate if rule == "tracked-stats" else run.clock_rate for run in runs)
    return [round(rate, 3) for rate in rates if rate]


def name_program(system: Mapping[str, Any]) -> str:
    """Return the program's name in the record: the recipe's, or `mlperf-` and its library."""
    text = str(system.get("framework", "")).lower()
    accelerator = str(system.get("accelerator_model_name", ""))
    program = next((name for word, name in _PROGRAMS.items() if word in text), "mlperf-pytorch")
    # Submitters on NVIDIA's GPUs name PyTorch alone, and mean NVIDIA's program.
    is_nvidia = accelerator.startswith("NVIDIA") and program == "mlperf-pytorch"
    return RECIPE if is_nvidia else program


def infer_precision(configurations: Mapping[str, str], table: PublishedTable) -> str:
    """Return the precision that the submitter's run configurations state, empty if they disagree.

    Args:
        configurations: The text of each `config_*.sh` of the submitter, by name.
        table: The submission of NVIDIA's program.
    """
    runnable = {
        name: text
        for name, text in configurations.items()
        if not name.endswith(("common.sh", "mounts.sh"))
    }
    (point,) = table.points
    # config_DGXH100_1x8x48x1_pack.sh: nodes, GPUs, batch size and accumulation. Where samples are
    # packed, that batch size counts sequences of two.
    shape, size = f"_{point.shape.nodes}x{point.shape.gpus_per_node}x", table.batch_size_per_device
    marks = (f"{shape}{size}x", f"{shape}{(size or 0) // 2}x", shape, "")
    matches = ([text for name, text in runnable.items() if mark in name] for mark in marks)
    texts = next(filter(None, matches), [])
    answers = {"fp8" if _FP8 in text else "fp16" for text in texts}
    return answers.pop() if len(answers) == 1 else ""


def _describe_system(system: Mapping[str, Any]) -> tuple[Shape, dict[str, str]]:
    """Return a system's shape and facts; without accelerators, its sockets are the devices."""
    nodes = int(float(system["number_of_nodes"]))
    accelerators = int(float(system["accelerators_per_node"] or 0))
    sockets = int(float(system.get("host_processors_per_node") or 1))
    name, processor, software = (
        str(system.get(key, "")).strip()
        for key in ("accelerator_model_name", "host_processor_model_name", "framework")
    )
    is_gpu = name.startswith(("NVIDIA", "AMD"))
    facts = {"GPU" if is_gpu else "accelerator": name} if accelerators else {}
    facts |= {"CPU": processor, "image" if is_gpu else "software": software}
    return Shape(nodes, accelerators or sockets), {key: text for key, text in facts.items() if text}


# The folder of a submission's results, SUBMITTER/results/SYSTEM/bert, by its parts from the end.
_RESULTS, _BENCHMARK, _DEPTH = -3, "bert", 4


def name_submission(folder: Path) -> str:
    """Return the path of a folder of results in its round's repository."""
    return "/".join(folder.parts[-_DEPTH:])


def list_logs(folder: Path) -> list[Path]:
    """Return the result files of a folder in their order."""
    return sorted(folder.glob("result_*.txt"), key=lambda path: natural_key(path.name))


def extract_tables(
    root: Path, benchmark_round: str, commit: str, places: Places
) -> tuple[list[PublishedTable], list[str]]:
    """Make a table of each BERT submission in a checkout of an MLPerf Training round.

    Returns:
        The tables, and why a folder has none, a sentence each.

    Raises:
        UsageError: It has no such folder, or the description of a system is missing or damaged.
    """
    folders = find_submissions([root])
    if not folders:
        raise UsageError(
            "It has no folder SUBMITTER/results/SYSTEM/bert.",
            where=str(root),
            hint="Name a checkout of mlcommons/training_results_vX.Y.",
        )
    tables, refused = [], []
    for folder in folders:
        runs = [read_benchmark_run(path) for path in list_logs(folder)]
        location = benchmark_round, commit, name_submission(folder)
        table = make_table(location, _read_system(folder), runs)
        if len(runs) < RUNS or table is None:
            successes = sum(run.seconds is not None for run in runs)
            refused.append(
                f"{name_submission(folder)}: {len(runs)} of {RUNS} result files, "
                f"{successes} of them reached the target."
            )
            continue
        tables.append(_complete(folder, table, places))
    return tables, refused


def find_submissions(paths: Iterable[Path]) -> list[Path]:
    """Return the folders of BERT results at paths and below them, each once, sorted."""
    folders: set[Path] = set()
    for path in paths:
        start = path.absolute().parent if path.is_file() else path.absolute()
        folders |= {start} if start.name == _BENCHMARK else set(start.rglob(_BENCHMARK))
    return [
        folder
        for folder in sorted(folders)
        if len(folder.parts) > _DEPTH and folder.parts[_RESULTS] == "results"
    ]


def _read_system(folder: Path) -> dict[str, Any]:
    path = folder.parents[2] / "systems" / f"{folder.parent.name}.json"
    try:
        system = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        message = f"The system's description can't be read: {describe_error(error)}."
        raise UsageError(message, where=str(path)) from error
    if not isinstance(system, dict):
        raise UsageError("The system's description is not a JSON object.", where=str(path))
    return system


def _complete(folder: Path, table: PublishedTable, places: Places) -> PublishedTable:
    """Return a table with what `collect` reads in the logs, else the configurations' precision."""
    if table.framework != RECIPE:
        return table
    grammar = places.recipes.load(RECIPE).grammar
    shape = table.points[0].shape
    system = Setting(nodes=shape.nodes, gpus_per_node=shape.gpus_per_node)
    rule = grammar.rule("tracked-stats")
    readings = [read_log(path, grammar, rule, system) for path in list_logs(folder)]
    settings = [reading.setting for reading in readings if "precision" in dict(reading.facts)]
    setting = next(iter(settings), readings[0].setting._replace(precision=None))
    table = replace(
        table,
        batch_size_per_device=setting.batch_size_per_device or table.batch_size_per_device,
        variant=_name_variant(setting.accumulation, is_open=table.variant.startswith("open")),
    )
    configurations = {
        path.name: path.read_text(encoding="utf-8", errors="replace")
        for path in folder.parents[2].glob("benchmark*/bert/**/*config*.sh")
    }
    precision = setting.precision or infer_precision(configurations, table)
    return replace(table, precision=precision)


def _check_submissions(paths: Sequence[Path], against: str) -> tuple[RecordCell, ...]:
    """Compare MLPerf's tables with the result folders at paths."""
    tables = group((table.path, table) for table in record.find_all_tables(against))
    folders = [folder for folder in find_submissions(paths) if name_submission(folder) in tables]
    if not folders:
        raise UsageError(
            f"{against} has no table for these logs.",
            hint="Its logs are in folders SUBMITTER/results/SYSTEM/bert.",
        )
    cells: dict[RecordCell, None] = {}
    for folder in folders:
        runs = [read_benchmark_run(path) for path in list_logs(folder)]
        candidates = [
            list(_check_submission(table, runs)) for table in tables[name_submission(folder)]
        ]
        # A later round may have a folder of the same name, or the same logs.
        matching = [entry for entry in candidates if all(cell.follows for cell in entry)]
        for entry in matching or candidates:
            cells |= dict.fromkeys(entry)
    return tuple(cells)


def _check_submission(table: PublishedTable, runs: Sequence[BenchmarkRun]) -> Iterator[RecordCell]:
    (point,), name = table.points, table.full_name
    gap = "" if len(runs) == RUNS else f"{len(runs)} of its {RUNS} logs are here"
    label = f"{table.framework} {table.model} {point.shape}"
    errors = " ".join(error.what for error in table.errors)
    if point.value is not None:
        rates = [] if gap else read_rates(runs, table.rule)
        rate = median(rates) if rates else None
        yield RecordCell(name, label, point.value, rate, table.rule, errors, gap)
    if point.minutes is not None:
        minutes = None if gap else average_minutes(runs)
        yield RecordCell(name, label, point.minutes, minutes, "minutes", errors, gap)


# What a point of logs and a table of the record have in common.
_describe_work = attrgetter("framework", "model", "precision", "batch_size_per_device")
# Published numbers are rounded: to five digits at least, or to two decimals.
_RELATIVE, _ABSOLUTE = 5e-5, 0.006


class RecordCell(NamedTuple):
    """One published number and the number from its logs.

    Attributes:
        found: The median of the logs; None if none of them is valid.
        rule: The rule; `minutes` for the time to train.
        error: The known error of the number; may be empty.
        gap: What is missing to check it; empty if nothing is.
    """

    table: str
    point: str
    published: float
    found: float | None
    rule: str
    error: str
    gap: str = ""

    @property
    def follows(self) -> bool:
        """Whether the logs give this number, except for rounding."""
        if self.found is None:
            return False
        difference = abs(self.found - self.published)
        return difference <= max(_ABSOLUTE, _RELATIVE * self.published)


def check_record(
    words: Sequence[str],
    places: Places,
    request: CollectRequest,
    *,
    against: str,
    edition: str = "",
) -> tuple[RecordCell, ...]:
    """Compare published tables with the numbers that their logs give.

    Args:
        request: How to read logs, except rule and window, which the record sets.
        edition: A part of the edition of the tables; empty for all.

    Raises:
        UsageError: The record has nothing about these logs; or as `load_result_set`.
    """
    if record.load_source(against.partition(":")[0]).layout == "mlperf":
        return _check_submissions([Path(word) for word in words], against)

    @cache
    def read_sides(request: CollectRequest) -> list[Side]:
        """Return the points of the logs; several of the same work if logs differ in options."""
        return list_sides(load_result_set(words, places, request).tables)

    sides = read_sides(request)
    tables = [
        table
        for table in record.find_all_tables(against)
        if any(_can_belong(side, table) for side in sides)
        and (not edition or edition in table.edition.split("-"))
    ]
    if not tables:
        works = {(*_describe_work(side.group), side.length) for side in sides}
        points = sorted(" ".join(map(str, work)).strip() for work in works)
        edition_text = f" of edition {edition}" if edition else ""
        raise UsageError(
            f"{against} has no table{edition_text} for these logs: {'; '.join(points)}.",
            hint="hpcbert record list has the names of all tables.",
        )
    cells = []
    for table in tables:
        for point in table.points:
            point_request = _request_for_point(request, table, point)
            cells += _check_point(table, point, point_request.rule, read_sides(point_request))
    # A log behind a number of one table belongs to no other table of the same point.
    matched = {(cell.point, cell.found) for cell in cells if cell.follows}
    return tuple(
        cell
        for cell in cells
        if cell.follows or cell.error or (cell.point, cell.found) not in matched
    )


def _request_for_point(
    request: CollectRequest, table: PublishedTable, point: PublishedPoint
) -> CollectRequest:
    """Return the request with the rule and the window of a published number."""
    source = point if point.rule else table
    if source.window is None:
        return request._replace(rule=source.rule)
    iters = END if source.window.iters == "end" else source.window.iters
    return request._replace(rule=source.rule, window=Window(source.window.skip, iters))


def _can_belong(side: Side, table: PublishedTable) -> bool:
    """Return whether a table may have a point of logs; lengths count where both are known."""
    work = _describe_work(replace(table, batch_size_per_device=table.batch_size_per_device or 0))
    has_length = side.length in ("", str(table.sequence_length or side.length))
    return has_length and _describe_work(side.group) == work


def _check_point(
    table: PublishedTable, point: PublishedPoint, rule: str, sides: Sequence[Side]
) -> list[RecordCell]:
    """Return the cell of a published number that has logs."""
    value = point.value
    rows = [side.row for side in sides if _can_belong(side, table)]
    medians = [row.median for row in rows if row.shape == point.shape]
    if value is None or not medians:
        return []
    numbers = [number for number in medians if number is not None]
    nearest = min(numbers, key=lambda number: abs(number - value), default=None)
    errors = [error.what for error in table.errors if error.shape in ("", str(point.shape))]
    label = f"{table.framework} {table.model} {point.shape} {table.precision}"
    label += f" b{table.batch_size_per_device}"
    return [RecordCell(table.full_name, label, value, nearest, rule, " ".join(errors))]

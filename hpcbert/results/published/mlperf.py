"""MLPerf Training's BERT submissions as tables of the record; pure.

A repository of a round, mlcommons/training_results_vX.Y, has SUBMITTER/results/SYSTEM/bert with one
result_N.txt a run, and SUBMITTER/systems/SYSTEM.json with the description of the system.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpcbert.logs.arithmetic import median
from hpcbert.logs.mllog import BenchmarkRun
from hpcbert.model import Shape
from hpcbert.results.published.record import PublishedPoint, PublishedTable

# mlcommons/training_policies, training_rules.adoc: ten runs of BERT; at most one may fail.
RUNS = 10
SEQUENCE_LENGTH = 512
# The recipe that reads the logs of NVIDIA's program, which most submitters run.
RECIPE = "mlperf-bert"
# What a system's `framework` says, and what the program is called here; the first match counts.
_PROGRAMS = {
    "tinygrad": "mlperf-tinygrad",
    "paddlepaddle": "mlperf-paddle",
    "popart": "mlperf-popart",
    "mindspore": "mlperf-mindspore",
    "composer": "mlperf-composer",
    "lingvo": "mlperf-lingvo",
    "jax": "mlperf-jax",
    "nvidia": RECIPE,
    "ngc": RECIPE,
    "cuda": RECIPE,
    "torch": "mlperf-pytorch",
    "tf": "mlperf-tensorflow",
    "tensorflow": "mlperf-tensorflow",
}
_FP8 = "--use_transformer_engine2"


def make_table(
    location: tuple[str, str, str],
    system: Mapping[str, Any],
    runs: Sequence[BenchmarkRun],
    precision: str,
) -> PublishedTable | None:
    """Return a submission's table; None if its runs give neither minutes nor a rate.

    Args:
        location: The round (`v5.0`), the commit, and the path of the results in the repository.
        system: The description of the system.
        runs: All of them, also those that missed the target.
        precision: Empty if nothing states it.
    """
    benchmark_round, commit, path = location
    submitter, _, name = path.split("/")[:3]
    shape, facts = _describe_system(system)
    rule, rates = _list_rates(runs)
    minutes = average_minutes(runs)
    if not rates and minutes is None:
        return None
    global_sizes = {run.global_batch_size for run in runs}
    global_size = next(iter(global_sizes)) if len(global_sizes) == 1 else None
    is_whole = global_size and global_size % shape.gpus == 0
    point = PublishedPoint(
        shape=shape,
        value=round(median(rates), 3) if rates else None,
        runs=tuple(rates),
        minutes=minutes,
    )
    table_name = f"{benchmark_round}-{submitter}-{name}".lower()
    return PublishedTable(
        name=re.sub(r"[^a-z0-9.]+", "-", table_name).strip("-"),
        framework=name_program(system),
        model="bert-large",
        precision=precision,
        batch_size_per_device=global_size // shape.gpus if global_size and is_whole else None,
        rule=rule,
        sequence_length=SEQUENCE_LENGTH,
        commit=commit,
        path=path,
        points=(point,),
        facts=facts,
        variant="open" if system.get("division") == "open" else "",
    )


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
    programs = {word: name for word, name in _PROGRAMS.items() if word in text}
    program = next(iter(programs.values()), "mlperf-pytorch")
    # Submitters on NVIDIA's GPUs name PyTorch alone, and mean NVIDIA's program.
    is_nvidia = accelerator.startswith("NVIDIA") and program == "mlperf-pytorch"
    return RECIPE if is_nvidia else program


def infer_precision(configurations: Mapping[str, str], table: PublishedTable) -> str:
    """Return the precision that the submitter's run configurations state, empty if they disagree.

    Args:
        configurations: The text of each `config_*.sh` of the submitter, by name.
        table: The submission; only NVIDIA's program has such files.
    """
    if table.framework != RECIPE:
        return ""
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


def _list_rates(runs: Sequence[BenchmarkRun]) -> tuple[str, list[float]]:
    """Return a rule and the rates of the runs by it: those that the programs state come first."""
    for rule in ("tracked-stats", "run-clock"):
        rates = read_rates(runs, rule)
        if rates:
            return rule, rates
    return "", []


def _describe_system(system: Mapping[str, Any]) -> tuple[Shape, dict[str, str]]:
    """Return a system's shape and facts; without accelerators, its sockets are the devices."""
    nodes = int(float(system["number_of_nodes"]))
    accelerators = int(float(system["accelerators_per_node"] or 0))
    sockets = int(float(system.get("host_processors_per_node") or 1))
    name = str(system.get("accelerator_model_name", "")).strip()
    is_gpu = name.startswith(("NVIDIA", "AMD"))
    kind = "GPU" if is_gpu else "accelerator"
    facts = {kind: name} if accelerators else {}
    facts["CPU"] = str(system.get("host_processor_model_name", "")).strip()
    facts["image" if is_gpu else "software"] = str(system.get("framework", "")).strip()
    return Shape(nodes, accelerators or sockets), {key: text for key, text in facts.items() if text}

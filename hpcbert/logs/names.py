"""What the name of a log says where it follows neither DLPerf's form nor a pattern.

Known are MLPerf's `results/SYSTEM/BENCHMARK/result_N.txt`, Slurm's `slurm-%j.out`, `%x_%j.out`,
`slurm-%A_%a.out` and `%x_%j_%t.out` (sbatch(1), filename pattern), and words such as `fp16`,
`bs96`, `gpu32` and `N1C8` in the names of PaddlePaddle/Perf@e7a07c4 and of flat folders.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from hpcbert.logs.packed import SUFFIXES

_PACKED = re.compile(rf"\.(?:{'|'.join(SUFFIXES)})$")
_LOG = re.compile(
    r"\.(?:log|out|txt|stdout|stderr)(?:[.~_-]\w*)?$|[._-]log$|\.[oe]\d+$|^(?:log|stdout|output)$",
    re.IGNORECASE,
)
# Files that programs write beside their logs, or instead of them, the most detailed first:
# transformers' Trainer, PerfZero (tensorflow/benchmarks@0729ada, benchmark_method_runner.py) and
# optimum-benchmark (huggingface/optimum-benchmark@0a334f2, report.py).
_FILES = (
    "trainer_state.json",
    "perfzero_summary.json",
    "benchmark_report.json",
    "benchmark.json",
    "all_results.json",
    "train_results.json",
)
# Of the same run as the file above the folder.
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_RESULT = re.compile(r"result_(?:\w+_)?(?P<repeat>\d{1,3})\.txt")
# Output of one task of a job. The default name of an array's element has the same form, but begins
# with `slurm`.
_TASK = re.compile(r"(?P<run>(?!slurm-).*?[_.-]\d{2,})[_.-](?P<task>\d{1,5})(?P<suffix>\.\w+)")
_WORDS = (
    re.compile(r"(?P<nodes>[1-9]\d*)n(?P<gpus_per_node>[1-9]\d*)g"),
    re.compile(r"N(?P<nodes>[1-9]\d*)C(?P<gpus_per_node>[1-9]\d*)"),
    re.compile(r"gpus?(?P<gpus>[1-9]\d*)|(?P<gpus2>[1-9]\d*)gpus?", re.IGNORECASE),
    re.compile(r"(?:bs|bz|batch|batchsize|mbs)(?P<batch_size>[1-9]\d*)", re.IGNORECASE),
    re.compile(r"(?P<precision>fp32|tf32|fp16|bf16|fp8|amp)", re.IGNORECASE),
)
_MODEL = re.compile(r"bert[-_](base|large)(?![A-Za-z])", re.IGNORECASE)
# Numbers of runs and of jobs; others, as in `seqlen128`, tell experiments apart.
_NUMBER = re.compile(
    r"(?P<word>(?:run|rep|repeat|trial|try|job|log|out|r)?)(?P<number>\d+)", re.IGNORECASE
)
_MAX_REPEAT = 100


class Name(NamedTuple):
    """The reading of a name.

    Attributes:
        form: The name without what differs between the runs of one experiment.
        run: The run that several tasks wrote, by its files' common part; empty for a single file.
        task: Number of the task that wrote the file.
        is_numbered: Whether a layout numbers the repeats, so that a gap is a missing one.
        guesses: Names of the fields that its words suggest: the user knows better.
        rank: For a file beside a log: its place among those of one run, from 1; 0 for a log.
    """

    form: str
    run: str = ""
    task: int = 0
    is_numbered: bool = False
    guesses: tuple[str, ...] = ()
    rank: int = 0


def read_name(path: Path) -> tuple[Name, dict[str, str]] | None:
    """Return the reading of a path's name and the fields that it states; None if not a log's."""
    text = _PACKED.sub("", path.name)
    if text in _FILES and not _CHECKPOINT.fullmatch(path.parent.name):
        return Name("files", rank=_FILES.index(text) + 1), {}
    if _LOG.search(text) is None:
        return None
    if result := _RESULT.fullmatch(text):
        return Name("result", is_numbered=True), {"repeat": result["repeat"]}
    task = _TASK.fullmatch(text)
    if task:
        text = task["run"] + task["suffix"]
    words = re.split(r"[_.\-]", text)
    fields: dict[str, str] = {}
    form_words = [word for word in words if not _take_word(word, fields)]
    if model := _MODEL.search(text):
        fields["model"] = f"bert-{model[1].lower()}"
    numbers = [match["number"] for word in form_words if (match := _NUMBER.fullmatch(word))]
    if numbers and int(numbers[-1]) <= _MAX_REPEAT and not task:
        fields["repeat"] = numbers[-1]
    form = "_".join(_NUMBER.sub(r"\g<word>#", word) for word in form_words)
    name = Name(form, task["run"] if task else "", int(task["task"]) if task else 0)
    return name._replace(guesses=tuple(fields)), fields


def _take_word(word: str, fields: dict[str, str]) -> bool:
    """Add the fields of a word of a name; return whether it has any."""
    for pattern in _WORDS:
        if match := pattern.fullmatch(word):
            stated = {name.rstrip("2"): text for name, text in match.groupdict().items() if text}
            fields.update({name: text for name, text in stated.items() if name not in fields})
            return True
    return False

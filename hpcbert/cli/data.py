"""hpcbert data."""

from __future__ import annotations

from pathlib import Path

import click

from hpcbert.cli.options import count_option, flag_option, refuse_typed
from hpcbert.cli.output import Result, returns_result
from hpcbert.errors import CheckError, format_count
from hpcbert.model import FORMAT_NAMES, usual_predictions

_PATH = click.Path(path_type=Path)
_DIRECTORY = click.argument("directory", type=_PATH)


@click.group()
def data() -> None:
    """Make training data, check it, show it."""


@data.command("make")
@click.option(
    "--format", "form", type=click.Choice(FORMAT_NAMES), required=True, help="Format to write."
)
@count_option("--sequence-length", "Tokens in a sample.", default=128)
@count_option("--predictions", "Masked tokens per sample; 20 of 128, else 15 %.")
@count_option("--samples", "Number of samples; 100000, or one pass over --text.")
@count_option("--files", "Number of files; 32, or 1 for Megatron.", least=0)
@click.option(
    "--fill",
    default="generator",
    show_default=True,
    help="Real tokens: generator (9 of 10 samples full), full, wiki, or their mean share.",
)
@click.option("--seed", type=int, default=42, show_default=True, help="Seed of random numbers.")
@click.option("--vocab", "vocabulary", type=_PATH, help="A vocabulary file.")
@click.option("--text", type=_PATH, help="A file or folder to read.")
@flag_option("--cased", "Keep upper case in the text.")
@_DIRECTORY
@returns_result
def data_make(
    *,
    form: str,
    sequence_length: int,
    predictions: int | None,
    samples: int | None,
    files: int | None,
    fill: str,
    seed: int,
    vocabulary: Path | None,
    text: Path | None,
    cased: bool,
    directory: Path,
) -> Result:
    """Make training data in DIRECTORY: the same samples in every format.

    If a run was interrupted, run the command again. Without --text the data is synthetic.
    """
    if text:
        refuse_typed(("fill",), "with --text")
    else:
        refuse_typed(("cased",), "without --text")
    from hpcbert.prepare.data_making import DataPlan, make
    from hpcbert.prepare.data_samples import StreamSettings

    # 0: as many as a text gives.
    samples = samples or (0 if text else 100_000)
    predictions = predictions or usual_predictions(sequence_length)
    stream = StreamSettings(sequence_length, predictions, samples, fill, seed)
    plan = DataPlan(directory, form, files or 0, stream, text, vocabulary, lowercase=not cased)
    document = make(plan)
    kind = "synthetic samples" if document["synthetic"] else "samples"
    summary = f"{document['samples']} {kind} in {format_count(len(document['files']), 'file')}"
    lines = [
        f"{directory}: {summary}, {document['mean_tokens']:.1f} tokens each on average",
        f"stream sha256:{document['stream_sha256']}",
        f"Programs read {directory / 'training'}; the vocabulary is {directory / 'vocab.txt'}.",
    ]
    return Result({"directory": str(directory), **document}, "\n".join(lines))


@data.command("check")
@_DIRECTORY
@returns_result
def data_check(directory: Path) -> Result:
    """Read every file in DIRECTORY and compare it with its data.json."""
    from hpcbert.prepare.data_making import check

    report = check(directory)
    files = format_count(report.files, "file")
    samples = f"{format_count(report.samples, 'sample')} in {files} of {report.form}"
    text = f"{directory}: {samples}, {report.mean_tokens:.1f} tokens each on average"
    errors = tuple(
        CheckError(problem, hint="Run hpcbert data make again in another directory.")
        for problem in report.problems
    )
    return Result(report, text, errors)


@data.command("show")
@count_option("--sample", "Number of the sample.", least=0, default=0)
@_DIRECTORY
@returns_result
def data_show(sample: int, directory: Path) -> Result:
    """Print one sample of DIRECTORY as text."""
    from hpcbert.prepare.data_making import show

    record = show(directory, sample)
    originals = ", ".join(f"{word} at {position}" for position, word in record.masked)
    order_text = "is random" if record.label else "follows the first"
    lines = [
        f"sample {record.number}, {record.file}, {len(record.tokens)} tokens",
        " ".join(record.tokens),
        f"predicted: {originals or 'nothing, the program masks by itself'}",
        f"the second sentence {order_text}",
    ]
    return Result(record, "\n".join(lines))

"""hpcbert data."""

from __future__ import annotations

from pathlib import Path

import click

from hpcbert.cli.options import refuse_typed
from hpcbert.cli.output import Result, returns_result
from hpcbert.errors import CheckError, UsageError, format_count
from hpcbert.model import FORMAT_NAMES, usual_predictions

_DIRECTORY = click.argument("directory", type=click.Path(path_type=Path))


@click.group()
def data() -> None:
    """Make training data, check it, show it."""


@data.command("make")
@click.option(
    "--format", "form", type=click.Choice(FORMAT_NAMES), required=True, help="Format to write."
)
@click.option(
    "--sequence-length", type=int, default=128, show_default=True, help="Tokens in a sample."
)
@click.option("--predictions", type=int, help="Masked tokens per sample; 20 of 128, else 15 %.")
@click.option("--samples", type=int, help="Number of samples; 100000, or one pass over --text.")
@click.option("--files", type=int, default=0, help="Number of files; 32, or 1 for Megatron.")
@click.option(
    "--fill",
    default="generator",
    show_default=True,
    help="Real tokens: generator (9 of 10 samples full), full, wiki, or their mean share.",
)
@click.option("--seed", type=int, default=42, show_default=True, help="Seed of the random numbers.")
@click.option("--vocab", "vocabulary", type=click.Path(path_type=Path), help="A vocabulary file.")
@click.option("--text", type=click.Path(path_type=Path), help="A file or folder to read.")
@click.option("--cased", is_flag=True, help="Keep upper case in the text.")
@_DIRECTORY
@returns_result
def data_make(
    *,
    form: str,
    sequence_length: int,
    predictions: int | None,
    samples: int | None,
    files: int,
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

    if samples is None:
        samples = 0 if text else 100_000
    elif samples < 1:  # 0 means: as many as a text gives
        raise UsageError(f"--samples {samples} is out of range: 1 or more.")
    if predictions is None:
        predictions = usual_predictions(sequence_length)
    stream = StreamSettings(sequence_length, predictions, samples, fill, seed)
    plan = DataPlan(directory, form, files, stream, text, vocabulary, lowercase=not cased)
    document = make(plan)
    count = len(document["files"])
    kind = "synthetic samples" if document["synthetic"] else "samples"
    summary = f"{document['samples']} {kind} in {count} file{'s' * (count > 1)}"
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
@click.option(
    "--sample",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of the sample.",
)
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

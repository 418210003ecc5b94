"""hpcbert collect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from hpcbert.campaign import store
from hpcbert.campaign.foreign import CollectRequest, LogExplanation
from hpcbert.cli.options import UNIT, refuse_typed, text_option
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.tables import collect_tables, refuse_unit, takes_logs
from hpcbert.commands.collect import Places, explain_logs, resolve_words
from hpcbert.errors import IncompleteError, UsageError
from hpcbert.model import Unit
from hpcbert.results.formats import FORMATS, format_of_suffix
from hpcbert.results.record import find_tables
from hpcbert.results.wording import sanitize


@click.command()
@click.argument("paths", nargs=-1)
@click.option(
    "--format",
    "form",
    type=click.Choice([*FORMATS]),
    help="Format of the table; default: from --output, or text.",
)
@text_option("--output", "Write the table to a file.", "FILE")
@text_option("--beside", "Add published numbers: dlperf.", "NAME")
@text_option("--junit", "Write each point as JUnit XML.", "FILE")
@UNIT
@click.option(
    "--explain", "-v", is_flag=True, help="Show how each log is read: facts, lines, all rules."
)
@returns_result
@takes_logs
def collect(
    *,
    paths: tuple[str, ...],
    request: CollectRequest,
    places: Places,
    unit: Unit,
    form: str | None,
    output: str,
    beside: str,
    explain: bool,
    junit: str,
) -> Result:
    """Reduce logs to a table of medians and speedups.

    PATHS are campaigns, or directories and files of logs from runs that hpcbert did not submit;
    without any, the newest campaign. A repeat is valid only if it completed, its log is whole and
    its loss finite. Invalid repeats are listed with the reason, and the exit code is then 4.

    \b
    Examples:
      hpcbert collect
      hpcbert collect --format markdown --output table.md
      hpcbert collect --beside dlperf
      hpcbert collect --unit tokens
      hpcbert collect training_results_v5.0/Dell/results
      hpcbert collect --explain slurm-4711.out
      hpcbert collect ~/DLPerf/logs --fw oneflow --rule rate
      hpcbert collect old/*.log --fw oneflow --pattern 'run{repeat}_{nodes}x{gpus_per_node}.log'
    """
    if explain:
        table_options = ("form", "output", "junit", "beside", "unit")
        refuse_typed(table_options, "with --explain, which makes no table")
    chosen_form = _choose_form(form, output)
    refuse_unit(chosen_form, unit)
    if beside:
        _refuse_beside(beside, chosen_form, unit)
    resolved_paths = resolve_words(paths, places)
    notes: tuple[str, ...] = ()
    if not resolved_paths:
        newest = store.find_newest(places.runs, measured=True)
        resolved_paths = store.list_submission(newest)
        notes = tuple(filter(None, [store.describe_refusal(newest)]))
    if explain:
        return _show_explanations(explain_logs(resolved_paths, request, places.recipes))
    return collect_tables(
        resolved_paths,
        request,
        form=chosen_form,
        output=output,
        notes=notes,
        published_name=beside,
        places=places,
        unit=unit,
        junit=junit,
    )


def _refuse_beside(name: str, form: str, unit: Unit) -> None:
    if unit != "samples":
        raise UsageError(
            f"--beside has no effect with --unit {unit}: the record is in samples/s.",
            hint="Leave one of the two out.",
        )
    if form not in ("text", "wide", "markdown"):
        raise UsageError(
            f"--beside has no effect with --format {form}, which has no room for it.",
            hint="Use text, markdown or --json.",
        )
    find_tables(name)


def _choose_form(form: str | None, output: str) -> str:
    chosen_form = form or format_of_suffix(Path(output).suffix) or "text"
    if FORMATS[chosen_form].pack and not output:
        hint = "Name a file for it: --output FILE."
        raise UsageError(f"{chosen_form} is not a text format.", hint=hint)
    return chosen_form


def _show_explanations(explanations: Sequence[LogExplanation]) -> Result:
    unread = [
        explanation
        for explanation in explanations
        if not any(outcome.throughput for outcome in explanation.outcomes)
    ]
    message = f"{len(unread)} of {len(explanations)} logs: no rule gives a number."
    parts = ["\n".join(_format_explanation(explanation)) for explanation in explanations]
    errors = (IncompleteError(message),) if unread else ()
    return Result({"logs": list(explanations)}, "\n\n".join(parts), errors)


def _format_explanation(explanation: LogExplanation) -> Iterator[str]:
    yield sanitize(explanation.path)
    yield f"  recipe: {explanation.framework or explanation.problem}"
    named = ", ".join(f"{name} = {value}" for name, value in explanation.named.items())
    yield f"  path: {sanitize(named) or 'states nothing'}"
    if explanation.facts:
        yield "  facts:"
    for fact in explanation.facts:
        place = f"line {fact.line}" if fact.line else "a line"
        place += f" and {fact.lines - 1} more" if fact.lines > 1 else ""
        note = " (assumed)" if fact.is_assumed else ""
        yield f"    {fact.name} = {fact.value}{note}: {place}: {sanitize(fact.text)}"
    if explanation.outcomes:
        yield "  rules:"
    for outcome in explanation.outcomes:
        number = f"{outcome.throughput:,.2f} samples/s" if outcome.throughput else "no number"
        mark = " (used)" if outcome.is_chosen else ""
        reasons = f": {sanitize('; '.join(outcome.reasons))}" if outcome.reasons else ""
        yield f"    {outcome.rule}{mark}, {outcome.window}: {number}{reasons}"

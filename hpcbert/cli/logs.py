"""hpcbert logs."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign import store
from hpcbert.campaign.repeats import Repeat, open_campaign
from hpcbert.cli.campaigns import OpenedCampaign, find_runs, open_named
from hpcbert.cli.options import RUNS, SITE, count_option, flag_option, text_option
from hpcbert.cli.output import Result, print_text, replace_controls, returns_result
from hpcbert.cli.progress import read_failure
from hpcbert.commands.monitor import Log, find_newest_log, follow_log
from hpcbert.config.site import load
from hpcbert.errors import IncompleteError, UsageError
from hpcbert.logs.failures import Failure
from hpcbert.logs.lines import NotALogError, open_log
from hpcbert.model import Campaign
from hpcbert.slurm.states import Kind, RepeatState
from hpcbert.system.decode import did_you_mean
from hpcbert.system.runner import run

_ONLY_JOB_OUTPUT = "Its ranks have written no log yet; this is the output of the job script."
_BLOCK = 1 << 16
_MAX_TAIL = 1 << 24


@click.command()
@click.argument("campaign", default="")
@text_option("--point", "Select a point: bert-base_4n8g_fp32_b32.", "KEY")
@count_option("--repeat", "Which repeat.")
@click.option(
    "-f", "--follow", "follow_it", is_flag=True, help="Print new lines until the repeat ends."
)
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Print only the last N lines.")
@flag_option("--path", "Print only the path of the log.", "path_only")
@RUNS
@SITE
@returns_result
def logs(*, path_only: bool, follow_it: bool, tail: int | None, **values: Any) -> Result:
    """Print the log of a repeat.

    CAMPAIGN is a campaign's directory or archive, its id or a part of the id, or the name of a
    file's campaigns; the newest one by default. If several logs match, logs prints the one that was
    written to last; of a requeued repeat, the newest attempt's. If none has a log yet, it prints a
    job script's output.

    With --follow it continues through requeues, each attempt's log after the one before, until the
    repeat has ended. If several repeats match, it follows one that runs, or else the first that
    waits.

    With --json the document names the log and holds the lines that --tail asks for.

    \b
    Examples:
      hpcbert logs --tail 20
      hpcbert logs -f --tail 20 3f9a1c
      hpcbert logs 3f9a1c --point bert-base_4n8g_fp32_b32 --repeat 2
      less $(hpcbert logs 3f9a1c --repeat 2 --path)
    """
    as_json = click.get_current_context().params["as_json"]
    if follow_it and not (as_json or path_only):
        return _follow_log(tail, **values)
    opened_campaign, log = _find_log(**values)
    cautions = store.warn_about_writers(opened_campaign.shown)
    if as_json:
        failure = _read_failure(log)
        data = {
            "campaign": log.repeat.watched.campaign.id,
            "point": log.repeat.array.point.key,
            "repeat": log.repeat.number,
            "attempt": log.attempt,
            "path": log.place(opened_campaign.shown),
            "bytes": log.path.stat().st_size,
            "failure": failure and failure._asdict(),
            "lines": [
                line.decode(errors="replace").rstrip("\n")
                for line in _read_last_lines(log.path, tail or 0)
            ],
        }
        return Result(data, warnings=cautions)
    if path_only and opened_campaign.packed:
        raise UsageError(
            "A file in an archive has no path of its own.",
            where=str(opened_campaign.shown),
            hint="Leave --path out, or unpack the archive.",
        )
    if path_only:
        return Result(text=str(log.path), warnings=cautions)
    printer = _Printer()
    for piece in _read_blocks(log.path) if tail is None else _read_last_lines(log.path, tail):
        printer.text(piece)
    remark = (_ONLY_JOB_OUTPUT,) if log.printed else ()
    return Result(warnings=(*cautions, *remark, *_warn_failure(log)))


def _select_repeats(
    *, campaign: str, point: str, repeat: int | None, runs: str, site_file: str
) -> list[tuple[OpenedCampaign, list[Repeat]]]:
    selected_repeats: list[tuple[OpenedCampaign, list[Repeat]]] = []
    campaigns: list[Campaign] = []
    for opened_campaign in open_named((campaign,) if campaign else (), find_runs(runs, site_file)):
        tracked_campaign = open_campaign(opened_campaign.directory)
        campaigns.append(tracked_campaign.campaign)
        repeats = [
            candidate
            for candidate in tracked_campaign.repeats
            if repeat in {None, candidate.number} and point in {"", candidate.array.point.key}
        ]
        selected_repeats += [(opened_campaign, repeats)] if repeats else []
    if selected_repeats:
        return selected_repeats
    keys = dict.fromkeys(array.point.key for campaign in campaigns for array in campaign.measured)
    if point and point not in keys:
        raise UsageError(f"The campaign has no point {point!r}.", hint=did_you_mean(point, keys))
    last = max(campaign.protocol.repeats for campaign in campaigns)
    hint = f"Repeats are numbered from 1 to {last}."
    raise UsageError("The campaign has no such repeat.", hint=hint)


def _find_log(**values: Any) -> tuple[OpenedCampaign, Log]:
    selected_repeats = _select_repeats(**values)
    logs = [
        (opened_campaign, log)
        for opened_campaign, repeats in selected_repeats
        for log in map(find_newest_log, repeats)
        if log is not None
    ]
    if not logs:
        opened_campaign, repeats = selected_repeats[0]
        raise IncompleteError(
            "The repeat has no log yet.",
            where=str(opened_campaign.shown),
            hint=f"Follow its progress: hpcbert monitor --once {repeats[0].watched.campaign.id}",
        )
    by_time = {(not log.printed, log.path.stat().st_mtime): (place, log) for place, log in logs}
    opened_campaign, log = by_time[max(by_time)]
    if len(selected_repeats) > 1:
        name = f"{opened_campaign.shown.name} {log.repeat.array.point.key}"
        print_text(f"The newest log is of {name}, repeat {log.repeat.number}.", err=True)
    return opened_campaign, log


def _read_blocks(path: Path) -> Iterator[bytes]:
    descriptor, size = _open_log(path)
    with os.fdopen(descriptor, "rb") as file:
        while size > 0 and (block := file.read(min(_BLOCK, size))):
            size -= len(block)
            yield block


def _read_last_lines(path: Path, count: int) -> Iterator[bytes]:
    """Yield the last lines of a file, read from its end; of an endless line, only the last part."""
    descriptor, end = _open_log(path)
    data = b""
    with os.fdopen(descriptor, "rb") as file:
        while end > 0 and data[:-1].count(b"\n") < count and len(data) < _MAX_TAIL:
            start = max(0, end - _BLOCK)
            file.seek(start)
            data, end = file.read(end - start) + data, start
    yield from data.splitlines(keepends=True)[-count:] if count else ()


def _open_log(path: Path) -> tuple[int, int]:
    try:
        return open_log(path)
    except NotALogError as error:
        raise UsageError(f"The log {error}.", where=str(path)) from error


class _Printer:
    """Prints a log to stdout, and changes of its repeat's state to stderr.

    A terminal gets no control characters, which could steer it.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def text(self, data: bytes) -> None:
        if sys.stdout.isatty():
            click.echo(replace_controls(self._decode(data)), nl=False)
        else:
            sys.stdout.buffer.write(data)
        sys.stdout.flush()

    def state(self, repeat: Repeat, state: RepeatState) -> None:
        name = f"{repeat.array.point.key} repeat {repeat.number}"
        name += f" attempt {state.attempt}" if state.attempt else ""
        text = f" ({state.detail})" if state.detail else ""
        print_text(f"{name}: {state.word}{text}", err=True)


def _follow_log(tail: int | None, **values: Any) -> Result:
    selected_repeats = _select_repeats(**values)
    paths = {
        repeats[0].watched.directory: opened_campaign.shown
        for opened_campaign, repeats in selected_repeats
    }

    def start(path: Path) -> int:
        if tail is None:
            return 0
        return path.stat().st_size - sum(map(len, _read_last_lines(path, tail)))

    printer = _Printer()
    try:
        repeat = follow_log(
            [repeat for _, repeats in selected_repeats for repeat in repeats],
            printer.text,
            printer.state,
            run=run,
            floor=load(values["site_file"]).slurm.poll_floor,
            tail=start,
        )
    except NotALogError as error:
        where = ", ".join(map(str, paths.values()))
        raise UsageError(f"The log {error}.", where=where) from error
    log = find_newest_log(repeat)
    cautions = store.warn_about_writers(paths[repeat.watched.directory])
    return Result(warnings=(*cautions, *(_warn_failure(log) if log else ())))


def _read_failure(log: Log) -> Failure | None:
    end = log.repeat.record.attempt(log.attempt).end_state
    if end is None or end.kind is not Kind.FAILED:
        return None
    return read_failure(log.repeat, log.path, log.attempt)


def _warn_failure(log: Log) -> tuple[str, ...]:
    failure = _read_failure(log)
    return (f"Repeat {log.repeat.number} failed: {failure}",) if failure else ()

"""hpcbert logs."""

from __future__ import annotations

import codecs
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcbert.campaign import store
from hpcbert.cli import conflicts
from hpcbert.cli.campaigns import Opened, opened
from hpcbert.cli.conflicts import Conflict
from hpcbert.cli.output import Result, finish, printable
from hpcbert.config.decode import did_you_mean
from hpcbert.config.site import load
from hpcbert.errors import IncompleteError, UsageError
from hpcbert.flows.monitor import open_campaign
from hpcbert.logs.lines import NotALogError, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcbert.campaign.repeats import Repeat

_CONFLICTS = (
    Conflict(("tail",), lambda given: given["path_only"], "with --path"),
    Conflict(
        ("path_only",), lambda given: given["as_json"], "with --json, whose document names it"
    ),
)
_BLOCK = 1 << 16
_MOST = 1 << 24


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert logs --tail 20\n"
    "  hpcbert logs 3f9a1c --point bert-base_4n8g_fp32_b32 --repeat 2\n"
    "  less $(hpcbert logs 3f9a1c --repeat 2 --path)"
)
@click.argument("campaign", default="")
@click.option("--point", default="", metavar="KEY", help="Which point, bert-base_4n8g_fp32_b32.")
@click.option("--repeat", type=click.IntRange(1), help="Which repeat.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--path", "path_only", is_flag=True, help="Print where the log is, and no more.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--runs", default="", help="Directory of the campaigns.")
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
def logs(*, as_json: bool, path_only: bool, tail: int | None, **values: Any) -> None:
    """Print the log of a repeat.

    CAMPAIGN is a campaign's directory or archive, its id or a part of it; the newest one by
    default. Where several logs are meant, the one that was written to last is printed; of a
    requeued repeat, the newest attempt's. A repeat that wrote no log yet shows what its job script
    printed.

    With --json the document names the log, and holds the lines that --tail asks for.
    """

    def body() -> Result:
        conflicts.refuse(*_CONFLICTS)
        found, log = _find(**values)
        cautions = store.caution(found.shown)
        if as_json:
            lines = _last_lines(log.path, tail or 0)
            return Result(_data(log, lines, log.place(found)), warnings=cautions)
        if path_only and found.packed:
            raise UsageError(
                "What is in an archive has no path of its own.",
                where=str(found.shown),
                hint="Leave --path out, or unpack the archive.",
            )
        if path_only:
            return Result(text=str(log.path), warnings=cautions)
        _print(_last_lines(log.path, tail) if tail is not None else _blocks(log.path))
        return Result(warnings=(*cautions, *((log.warning,) if log.warning else ())))

    finish("logs", body, as_json=as_json)


@dataclass(frozen=True)
class Log:
    """A log and whose it is.

    Attributes:
        repeat: The repeat that wrote it.
        attempt: Which of its attempts.
        path: Where it is.
        warning: What a person should know about it.
    """

    repeat: Repeat
    attempt: int
    path: Path
    warning: str = ""

    def place(self, campaign: Opened) -> str:
        """Return where it is, for a person: in the campaign, or in the archive."""
        directory = self.repeat.watched.directory
        return str(campaign.shown / self.path.relative_to(directory))


def _find(
    *, campaign: str, point: str, repeat: int | None, runs: str, site_file: str
) -> tuple[Opened, Log]:
    (found,) = opened([campaign] if campaign else (), Path(runs or load(site_file).runs))
    watched = open_campaign(found.directory)
    meant = [one for one in watched.repeats if repeat in {None, one.number}]
    meant = [one for one in meant if point in {"", one.array.point.key}]
    if not meant:
        keys = [array.point.key for array in watched.campaign.measured]
        if point and point not in keys:
            raise UsageError(f"There is no point {point!r}.", hint=did_you_mean(point, keys))
        count = watched.campaign.protocol.repeats
        raise UsageError(
            "There is no such repeat.", hint=f"Repeats are numbered from 1 to {count}."
        )
    there = [log for one in meant if (log := _log(one)) is not None]
    if not there:
        raise IncompleteError(
            "There is no log yet.",
            where=str(found.shown),
            hint=f"See how far it is: hpcbert monitor --once {watched.campaign.id}",
        )
    return found, max(there, key=lambda log: log.path.stat().st_mtime)


def _log(repeat: Repeat) -> Log | None:
    """Return the newest attempt's log, or else what the job script printed, if either is there."""
    directory, array = repeat.watched.directory, repeat.array
    newest_attempt = repeat.record.newest().attempt
    for attempt in range(newest_attempt, -1, -1):
        path = store.log_path(directory, array, repeat.number, attempt)
        if path.is_file():
            return Log(repeat, attempt, path)
    warning = "Its ranks wrote no log yet: this is what the job script printed."
    number = "all" if array.together else repeat.number
    # As Slurm calls it, and the local queue.
    for name in (f"{repeat.job_id}.out", f"{array.job_id}_{array.point.key}_{number}.out"):
        path = directory / "slurm" / name
        if path.is_file():
            return Log(repeat, newest_attempt, path, warning)
    return None


def _data(log: Log, lines: Iterator[bytes], place: str) -> dict[str, Any]:
    return {
        "campaign": log.repeat.watched.campaign.id,
        "point": log.repeat.array.point.key,
        "repeat": log.repeat.number,
        "attempt": log.attempt,
        "path": place,
        "bytes": log.path.stat().st_size,
        "lines": [line.decode(errors="replace").rstrip("\n") for line in lines],
    }


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield a file's content as far as it reaches now."""
    descriptor, size = _opened(path)
    with os.fdopen(descriptor, "rb") as file:
        while size > 0 and (block := file.read(min(_BLOCK, size))):
            size -= len(block)
            yield block


def _last_lines(path: Path, count: int) -> Iterator[bytes]:
    """Yield the last lines of a file, read from its end; of endless lines only the last part."""
    descriptor, end = _opened(path)
    data = b""
    with os.fdopen(descriptor, "rb") as file:
        while end > 0 and data[:-1].count(b"\n") < count and len(data) < _MOST:
            start = max(0, end - _BLOCK)
            file.seek(start)
            data, end = file.read(end - start) + data, start
    yield from data.splitlines(keepends=True)[-count:] if count else ()


def _opened(path: Path) -> tuple[int, int]:
    try:
        return open_log(path)
    except NotALogError as error:
        raise UsageError(f"The log {error}.", where=str(path)) from error


def _print(pieces: Iterator[bytes]) -> None:
    """Print to stdout: byte by byte what the file holds, but nothing that steers a terminal."""
    text = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        if sys.stdout.isatty():
            click.echo(printable(text.decode(piece)), nl=False)
        else:
            sys.stdout.buffer.write(piece)
    sys.stdout.flush()

"""The table that monitor redraws in place on a terminal."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Literal

from hpcbert.cli.output import printable
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.states import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO, TextIO

    from rich.console import Console, Group
    from rich.text import Text

    from hpcbert.campaign.repeats import Repeat
    from hpcbert.flows.monitor import Detail, View
    from hpcbert.slurm.states import RepeatState

    Details = Callable[[Repeat, RepeatState, float], Detail]
    Lacks = Callable[[Repeat, RepeatState], object]

# Name, marks or state, and progress or the reason for waiting.
_COLUMNS = 3
# kind -> mark, the same without Unicode, style, its name in a count
MARKS = {
    Kind.SUCCEEDED: ("✓", "+", "green", "completed"),
    Kind.FAILED: ("✗", "x", "red", "failed"),
    Kind.RUNNING: ("▶", ">", "cyan", "running"),
    Kind.WAITING: ("·", ".", "dim", "waiting"),
    Kind.REQUEUED: ("↻", "r", "yellow", "requeued"),
    Kind.UNKNOWN: ("?", "?", "magenta", "unknown"),
    Kind.UNNEEDED: ("○", "o", "dim", "not needed"),
}


def console(file: IO[str], *, colour: bool | None) -> Console:
    """Return a rich console for a stream; with `colour` None, rich decides."""
    from rich.console import Console

    # rich's no_color keeps bold and dim; without a colour system rich prints no codes at all.
    system: Literal["auto"] | None = None if colour is False else "auto"
    return Console(file=file, color_system=system, highlight=False)


def draws(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which the cursor can move."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb", "unknown"}


def counts(view: View) -> str:
    """Return the number of repeats of each kind: `4 completed, 1 running`."""
    count = view.count()
    return ", ".join(f"{count[kind]} {mark[3]}" for kind, mark in MARKS.items() if kind in count)


def duration(seconds: float | None) -> str:
    """Return seconds as `H:MM:SS`."""
    if seconds is None:
        return ""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def before(state: RepeatState) -> str:
    """Return how earlier attempts ended: `attempt 0 was NODE_FAIL on n3`."""
    return "; ".join(
        f"attempt {one.attempt} was {one.word}" + (f" on {fold(one.nodes)}" if one.nodes else "")
        for one in state.earlier
    )


def draw(view: View, details: Details, lacks: Lacks, *, unicode: bool) -> Group:
    """Return all points by campaign, with a line for each repeat that runs or failed.

    Args:
        view: The states to show.
        details: Returns the progress of a running repeat.
        lacks: Returns what a failed repeat needed, if its log says so.
        unicode: Whether marks may be outside ASCII.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Text | Table] = []
    campaign = ""
    table = Table.grid()
    points: dict[tuple[str, str], list[Repeat]] = {}
    for repeat in view.repeats:
        name = repeat.watched.campaign.id, repeat.array.point.key
        points.setdefault(name, []).append(repeat)
    for repeats in points.values():
        if repeats[0].watched.campaign.id != campaign:
            campaign = repeats[0].watched.campaign.id
            table = Table.grid(padding=(0, 2, 0, 0))
            for _ in range(_COLUMNS):  # folded on a narrow screen, never cut
                table.add_column(overflow="fold")
            parts += [Text(f"campaign {campaign}", style="bold"), table]
        table.add_row(*_point(view, repeats, unicode=unicode))
        for row in _remarkable(view, repeats, details, lacks):
            table.add_row(*row)
    if view.trouble:
        trouble = f"Slurm does not answer: {printable(view.trouble)}"
        parts.append(Text(trouble, style="yellow"))
    return Group(*parts)


def _point(view: View, repeats: Sequence[Repeat], *, unicode: bool) -> tuple[Text, Text, Text]:
    from rich.text import Text

    point = repeats[0].array.point
    name = f"  {point.framework} {point.model} {point.shape} {point.precision}"
    name += f" b{point.batch}{' cpu' if point.device == 'cpu' else ''}"
    marks = Text()
    for repeat in repeats:
        mark, plain, style, _ = MARKS[view.states[repeat.key].kind]
        marks.append(mark if unicode else plain, style=style)
    waiting = [view.states[one.key] for one in repeats if view.states[one.key].kind == Kind.WAITING]
    first = waiting[0] if waiting else None
    words = "; ".join(filter(None, (first.detail, first.advice))) if first else ""
    why = f"waiting: {words}" if words else ""
    return Text(printable(name)), marks, Text(printable(why), style="dim")


def _remarkable(
    view: View, repeats: Sequence[Repeat], details: Details, lacks: Lacks
) -> Iterator[tuple[Any, ...]]:
    from rich.text import Text

    alike: dict[tuple[str, Kind, str], list[str]] = {}
    for repeat in repeats:
        state = view.states[repeat.key]
        name = f"repeat {repeat.number}"
        name += f" attempt {state.attempt}" if state.attempt else ""
        if state.kind == Kind.RUNNING:
            yield (
                Text(f"    {name}"),
                Text(state.word, style="cyan"),
                _how_far(view, state, details(repeat, state, view.time)),
            )
        elif state.kind in {Kind.FAILED, Kind.UNKNOWN, Kind.REQUEUED} or state.earlier:
            lack = str(lacks(repeat, state) or "")
            words = "; ".join(filter(None, (state.detail, lack, before(state))))
            alike.setdefault((state.word, state.kind, words), []).append(name)
    for (word, kind, words), names in alike.items():
        name = names[0] if len(names) == 1 else f"{len(names)} repeats"
        yield Text(f"    {name}"), Text(word, style=MARKS[kind][2]), Text(printable(words))


def _how_far(view: View, state: RepeatState, detail: Detail) -> Text:
    """Return nodes, iteration, rate, time used and estimated end, as far as known."""
    from rich.text import Text

    used = state.elapsed if state.start is None else max(0.0, view.time - state.start)
    limit = f" of {duration(state.limit)}" if state.limit else ""
    parts = [
        fold(state.nodes),
        "" if detail.iteration is None else f"{detail.iteration}/{detail.iterations}",
        "" if detail.throughput is None else f"{detail.throughput:.2f} samples/s",
        f"{duration(used)}{limit}" if used is not None else "",
        ""
        if detail.ends is None
        else f"ends {time.strftime('%H:%M', time.localtime(detail.ends))}",
        state.detail,
        before(state),
    ]
    return Text(printable("  ".join(part for part in parts if part)))

"""The pictures of the documents, as SVG: `make pages` writes them next to this file.

Words that the program has too (commands, states, events, sources, runtimes) come from its tables.
A picture follows the reader's light or dark theme and needs no font, script or other file.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args
from xml.sax.saxutils import escape

from hpcbert.cli.progress import MARKS
from hpcbert.config.site import Runtime
from hpcbert.slurm.states import Kind, Source

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = Path(__file__).resolve().parent
# Pixels: lines of text, the letters of a title and of other lines, and what is left around them.
LINE, TITLE, SMALL, PAD = 17, 14, 12, 12
# The widest that a letter of a sans-serif font is on average, as a share of the font's size.
WIDE = 0.6

_STYLE = """
text{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#1f2933}
.title{font-size:14px;font-weight:600}
.small{font-size:12px;fill:#52606d}
.band{font-size:12px;font-weight:600;fill:#52606d;letter-spacing:.04em}
.code{font-family:ui-monospace,"DejaVu Sans Mono",monospace}
.paper{fill:#fff}
.box{fill:#f5f7fa;stroke:#9aa5b1}
.main{fill:#e0f2f1;stroke:#00796b}
.good{fill:#e3f4e1;stroke:#2e7d32}
.bad{fill:#fdecea;stroke:#c62828}
.line{fill:none;stroke:#7b8794;stroke-width:1.5}
.head{fill:#7b8794}
@media (prefers-color-scheme:dark){
text{fill:#e4e7eb}.small,.band{fill:#b3bcc7}.paper{fill:#131820}
.box{fill:#1f2731;stroke:#616e7c}.main{fill:#0f3733;stroke:#4db6ac}
.good{fill:#17331a;stroke:#66bb6a}.bad{fill:#3b1a19;stroke:#ef7d76}
.line{stroke:#9aa5b1}.head{fill:#9aa5b1}}
"""


class Spot(NamedTuple):
    """A place in a picture, in pixels from its upper left corner."""

    x: float
    y: float


@dataclass(frozen=True)
class Box:
    """A box with a title and lines below it.

    Attributes:
        look: `box`, `main`, `good` or `bad`.
        code: Whether the title is something to type, or a word of the program's.
    """

    x: float
    y: float
    width: float
    title: str
    lines: tuple[str, ...] = ()
    look: str = "box"
    code: bool = False

    @property
    def height(self) -> float:
        """Pixels that the text takes, and the room around it."""
        return 2 * PAD + LINE * (1 + len(self.lines)) - 4

    @property
    def left(self) -> Spot:
        """The middle of its left side."""
        return Spot(self.x, self.y + self.height / 2)

    @property
    def right(self) -> Spot:
        """The middle of its right side."""
        return Spot(self.x + self.width, self.y + self.height / 2)

    @property
    def top(self) -> Spot:
        """The middle of its upper side."""
        return Spot(self.x + self.width / 2, self.y)

    @property
    def bottom(self) -> Spot:
        """The middle of its lower side."""
        return Spot(self.x + self.width / 2, self.y + self.height)

    def needed(self) -> float:
        """Return how wide the box must be for its text to fit, at least."""
        title = len(self.title) * TITLE * WIDE
        return 2 * PAD + max(title, *(len(line) * SMALL * WIDE for line in self.lines), 0)

    def svg(self) -> str:
        """Return it as SVG."""
        at = f'x="{self.x:g}" y="{self.y:g}" width="{self.width:g}" height="{self.height:g}"'
        parts = [f'<rect class="{self.look}" {at} rx="6"/>']
        kind = "title code" if self.code else "title"
        for number, line in enumerate((self.title, *self.lines)):
            spot = Spot(self.x + PAD, self.y + PAD + LINE * number + 10)
            parts.append(text(spot, line, "small" if number else kind))
        return "".join(parts)


def text(spot: Spot, words: str, kind: str = "small") -> str:
    """Return a line of text that begins at a spot."""
    return f'<text class="{kind}" x="{spot.x:g}" y="{spot.y:g}">{escape(words)}</text>'


def arrow(*spots: Spot) -> str:
    """Return an arrow through several spots; its head is at the last one."""
    way = " ".join(f"{spot.x:g},{spot.y:g}" for spot in spots)
    return f'<polyline class="line" points="{way}" marker-end="url(#head)"/>'


def picture(name: str, width: int, height: int, parts: Iterable[Box | str]) -> str:
    """Return a whole picture; its name is what a screen reader says."""
    drawn = "\n".join(part if isinstance(part, str) else part.svg() for part in parts)
    head = '<path class="head" d="M0,0L8,4L0,8z"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img">\n<title>{escape(name)}</title>\n'
        f"<style>{_STYLE}</style>\n"
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4"'
        f' orient="auto" markerUnits="userSpaceOnUse">{head}</marker></defs>\n'
        f'<rect class="paper" width="{width}" height="{height}" rx="8"/>\n{drawn}\n</svg>\n'
    )


def campaign() -> list[Box | str]:
    """The life of a campaign: what you type, the files, and the life of a repeat."""
    typed = [
        Box(20, 44, 170, "plan", ("shows the cost", "and what is missing"), "main", True),
        Box(
            220, 44, 190, "submit", ("one script and one job", "array for each point"), "main", True
        ),
        Box(440, 44, 166, "monitor", ("shows states and", "progress"), "main", True),
        Box(630, 44, 170, "collect", ("judges every repeat,", "prints the table"), "main", True),
        Box(830, 44, 170, "report", ("a page with figures,", "or an archive"), "main", True),
    ]
    files = [
        Box(220, 150, 190, "scripts, manifest", ("your request, and the", "ids of its jobs")),
        Box(440, 150, 166, "logs, status", ("written by the jobs", "while they run")),
        Box(630, 150, 170, "measurements", ("numbers, reasons and", "digests; the table")),
    ]
    kinds = {kind: f"{MARKS[kind][0]} {kind}" for kind in Kind}
    waiting = Box(50, 290, 150, kinds[Kind.WAITING], ("in Slurm's queue",))
    running = Box(270, 290, 140, kinds[Kind.RUNNING], ("a job has nodes",))
    good = Box(480, 266, 140, kinds[Kind.SUCCEEDED], ("exit status 0",), "good")
    bad = Box(480, 336, 140, kinds[Kind.FAILED], ("with its reason",), "bad")
    again = Box(165, 372, 140, kinds[Kind.REQUEUED], ("a node was lost",))
    valid = Box(730, 266, 210, "valid", ("counts in the median",), "good")
    invalid = Box(730, 336, 210, "invalid", ("left out, with its reason",), "bad")
    retry = Box(730, 412, 210, "retry", ("runs only what is invalid",), "main", True)
    return [
        text(Spot(20, 28), "WHAT YOU TYPE", "band"),
        *typed,
        *(arrow(one.right, two.left) for one, two in itertools.pairwise(typed)),
        text(Spot(20, 182), "FILES", "band"),
        *files,
        arrow(typed[1].bottom, files[0].top),
        arrow(files[1].top, typed[2].bottom),
        arrow(typed[3].bottom, files[2].top),
        text(Spot(20, 262), "THE LIFE OF A REPEAT", "band"),
        *(waiting, running, good, bad, again, valid, invalid, retry),
        arrow(waiting.right, running.left),
        arrow(running.right, Spot(440, running.right.y), Spot(440, good.left.y), good.left),
        arrow(running.right, Spot(440, running.right.y), Spot(440, bad.left.y), bad.left),
        arrow(running.bottom, Spot(running.bottom.x, again.right.y), again.right),
        arrow(again.left, Spot(waiting.bottom.x, again.left.y), waiting.bottom),
        arrow(good.right, valid.left),
        arrow(Spot(680, good.right.y), Spot(680, invalid.left.y), invalid.left),
        arrow(bad.right, Spot(680, bad.right.y), Spot(680, invalid.left.y), invalid.left),
        text(Spot(622, 287), "the gate"),
        arrow(invalid.bottom, retry.top),
        arrow(retry.left, Spot(30, retry.left.y), Spot(30, waiting.left.y), waiting.left),
    ]


# What the job script does, in its order: a title, what it means, and the event that it writes.
PHASES = (
    ("Take the job's nodes", "time limit, GPUs and ranks: #SBATCH lines", "start"),
    ("Check the baseline", "if all of its repeats failed, nothing runs", "held"),
    ("Resolve addresses", "node names, MASTER_ADDR, MASTER_PORT; no ssh", ""),
    ("Create the container", "on every node, and enter it once", "container"),
    ("Describe the nodes", "one fingerprint each: driver, GPUs, CPUs", ""),
    ("Start the ranks", "srun runs the program; the log grows", "step"),
    ("End the ranks", "if one fails, all of them end", "step-end"),
    ("Clean up", "and exit with the status of the step", "end"),
)
# Events that other runs don't have: a title, and when it comes.
OTHERS = (
    ("unneeded", ("--repeats auto: nothing runs,", "the median is known by now")),
    ("undecided", ("--repeats auto: the node can't", "decide, so the repeat runs")),
    ("signal", ("caught TERM or INT,", "at any time")),
    ("suspended", ("the job was paused for a while,", "at any time")),
)


def job() -> list[Box | str]:
    """The phases of a job script, and what it writes into the status file."""
    parts: list[Box | str] = [
        text(Spot(20, 28), "THE JOB SCRIPT", "band"),
        text(Spot(520, 28), "ITS STATUS FILE", "band"),
    ]
    step, before = 66, None
    for number, (title, what, event) in enumerate(PHASES):
        measured = event in {"step", "step-end"}
        box = Box(20, 44 + step * number, 360, title, (what,), "main" if measured else "box")
        parts.append(box)
        if before:
            parts.append(arrow(before.bottom, box.top))
        if event:
            line = Box(520, box.y + LINE / 2, 130, event, code=True)
            parts += [line, arrow(box.right, line.left)]
        before = box
    top, bottom = 44 + step * 5, 44 + step * 7 - 21
    parts.append(
        f'<path class="line" d="M400,{top}h10v{bottom - top}h-10"/>'
        + text(Spot(418, (top + bottom) / 2 + 4), "measured")
    )
    for number, (event, when) in enumerate(OTHERS):
        parts.append(Box(690, 110 + 2 * step * number, 260, event, when, code=True))
    return parts


# What each source knows, what makes hpcbert ask the next one, and what it costs.
SOURCES: dict[str, tuple[str, str, str]] = {
    "sacct": (
        "Slurm's accounting",
        "one query for all jobs of all campaigns",
        "no row yet, or a state from which Slurm may start the job again",
    ),
    "squeue": (
        "The controller's memory",
        "the jobs that wait or run now",
        "it forgets a job some minutes after its end",
    ),
    "status-file": (
        "The job's own status file",
        "needs no Slurm; the local queue's only source",
        "the job was killed before it could write its end",
    ),
    "manifest": (
        "The record of a retry",
        "how the replaced attempt had ended",
        "no record of how it ended",
    ),
}


def state() -> list[Box | str]:
    """The sources of a job's state, in the order in which hpcbert asks them."""
    parts: list[Box | str] = [
        text(Spot(20, 28), "ASKED IN THIS ORDER", "band"),
        text(Spot(620, 28), "SHOWN AS state_source", "band"),
    ]
    step = 116
    asked = [source for source in get_args(Source) if source in SOURCES]
    for number, source in enumerate(asked):
        who, what, doubt = SOURCES[source]
        box = Box(20, 44 + step * number, 360, who, (what,), "main")
        found = Box(620, box.y + LINE / 2, 150, source, (), "good", code=True)
        down = Spot(box.bottom.x, box.y + step)
        parts += [box, found, arrow(box.right, found.left), arrow(box.bottom, down)]
        parts += [
            text(Spot(430, box.right.y - 8), "certain"),
            text(Spot(box.bottom.x + 12, box.bottom.y + 34), doubt),
        ]
    last = Box(
        20,
        44 + step * len(asked),
        360,
        "None of them",
        ("UNKNOWN, never counted as a success",),
        "bad",
    )
    none = Box(620, last.y + LINE / 2, 150, "none", (), "bad", code=True)
    return [*parts, last, none, arrow(last.right, none.left)]


# By runtime: how a node gets the container, how a rank enters it, and what removes it.
RUNTIMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "none": (
        ("There is no container",),
        ("Runs on the host", "or in the virtual environment", "that prepare made"),
        ("Nothing to remove",),
    ),
    "pyxis": (
        ("A first step creates it", "srun --container-image", "--container-name"),
        ("Slurm's plugin puts it in", "srun --container-name", ""),
        ("A last step removes it", "enroot remove"),
    ),
    "enroot": (
        ("A first step creates it", "enroot create, from an image", "that was imported once"),
        ("Joins local rank 0,", "which has started it:", "enroot exec"),
        ("Local rank 0 removes it", "after scancel, too"),
    ),
    "apptainer": (
        ("A first step creates it", "mounted or unpacked from an", "image that was pulled once"),
        ("Joins local rank 0,", "which has started it:", "nsenter, or exec if setuid"),
        ("Local rank 0 removes it", "after scancel, too"),
    ),
}


def containers() -> list[Box | str]:
    """How ranks enter a container under each runtime."""
    rows = ("On every node", "Each rank", "At the end")
    parts: list[Box | str] = []
    wide, gap, tops = 240, 30, (76, 190, 304)
    for column, runtime in enumerate(get_args(Runtime)):
        x = 130 + column * (wide + gap)
        parts.append(text(Spot(x, 44), f'runtime = "{runtime}"', "title code"))
        before = None
        for top, row, lines in zip(tops, rows, RUNTIMES[runtime], strict=True):
            first, *rest = lines
            box = Box(x, top, wide, first, tuple(rest), "main" if row == "Each rank" else "box")
            parts.append(box)
            if before:
                parts.append(arrow(before.bottom, box.top))
            before = box
    for top, row in zip(tops, rows, strict=True):
        parts.append(text(Spot(20, top + 24), row, "band"))
    return parts


def drawn() -> dict[str, str]:
    """Return every picture by its file name."""
    return {
        "campaign.svg": picture("The life of a campaign", 1020, 480, campaign()),
        "job.svg": picture("The phases of a job script", 970, 598, job()),
        "state.svg": picture("Where job states come from", 800, 580, state()),
        "containers.svg": picture(
            "How ranks enter a container",
            130 + 270 * len(get_args(Runtime)),
            390,
            containers(),
        ),
    }


if __name__ == "__main__":
    for name, content in drawn().items():
        (FOLDER / name).write_text(content, encoding="utf-8")

"""Campaigns on disk, as submit leaves them and as jobs write on; how they are read."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.fingerprint import name_record
from hpcbert.campaign.foreign import CollectRequest, Recipes
from hpcbert.campaign.repeats import Key, TrackedCampaign
from hpcbert.cli.output import Result
from hpcbert.cli.tables import list_shortcomings
from hpcbert.commands.collect import CollectResult, collect
from hpcbert.model import Array, Campaign, Point, Protocol, Shape
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.tracker import Tracker
from hpcbert.script.rerun import Lock
from hpcbert.slurm.states import RepeatState, parse_state
from hpcbert.system.runner import Runner
from tests.kit import logs
from tests.kit.logs import ITERS, SKIP, log
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.slurm import T, sacct, squeue

Event = dict[str, Any]
STARTED: tuple[Event, ...] = (
    {"event": "start", "job": "7_1", "host": "n1", "nodelist": "n[1-2]", "pid": 4},
    {"event": "step"},
)


def ended(code: int = 0) -> tuple[Event, ...]:
    """Return the events of a job's end."""
    return tuple({"event": event, "exit": code} for event in ("step-end", "end"))


def status_file(path: Path, *events: Event, **common: Any) -> None:
    """Append events to a status file, as a job does; `common` gives their default values.

    Example: `status_file(path, *STARTED, *ended(code=1), time=1763717655)` is a job that failed.
    """
    with path.open("a") as file:
        file.writelines(f"{json.dumps({'attempt': 0, **common, **event})}\n" for event in events)


# Seconds after 1970, when the jobs of such a campaign write.
WRITTEN = 1763717655
_CAMPAIGN = {field.name for field in fields(Campaign)}


def array(campaign: str, shape: str, *, repeats: int, job_id: str, **changes: Any) -> Array:
    """Return one point of a campaign; with a job id, it is submitted."""
    point = Point("pytorch", "bert-tiny", Shape.parse(shape), "fp32", 4)
    log_name = f"logs/pytorch/bert/bz4/{shape}/bert_b4_fp32_{{repeat}}.log"
    intended = Array(
        point=point, name=f"hpcbert-{campaign}-{point.key}", repeats=tuple(range(1, repeats + 1)),
        script=f"scripts/{point.key}.sbatch", script_sha256="", log=log_name,
        state="submitted" if job_id else "intended", job_id=job_id,
        submitted="2026-11-21T10:00:00Z" if job_id else "",
    )  # fmt: skip
    return replace(intended, **changes)


@dataclass(frozen=True, eq=False)
class Built(TrackedCampaign):
    """A campaign on disk; a point is named by its shape, the first one otherwise."""

    def array(self, shape: str) -> Array:
        arrays = self.campaign.arrays
        return next(candidate for candidate in arrays if str(candidate.point.shape) == shape)

    def log_path(self, shape: str, repeat: int, attempt: int = 0) -> Path:
        return store.log_path(self.directory, self.array(shape), repeat, attempt)

    def status_path(self, shape: str, repeat: int) -> Path:
        return self.directory / self.array(shape).status(repeat)

    def log(self, shape: str, repeat: int, text: str, attempt: int = 0) -> Path:
        path = self.log_path(shape, repeat, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def mark(self, shape: str, repeat: int, *events: Event, **common: Any) -> None:
        """Append events to a repeat's status file; all of them have `common`."""
        status_file(self.status_path(shape, repeat), *events, **{"time": WRITTEN, **common})

    def started(self, shape: str, repeat: int, **common: Any) -> None:
        self.mark(shape, repeat, *STARTED, **common)

    def ended(self, shape: str, repeat: int, *, code: int = 0, **common: Any) -> None:
        self.mark(shape, repeat, *ended(code), **common)

    # The text of a log of the PyTorch reference whose clock rule gives a rate.
    text = staticmethod(logs.log)

    def complete(
        self, shape: str, repeat: int, rate: float, *, attempt: int = 0, **changes: Any
    ) -> "Built":
        """Let a repeat run to its end. Each prints different bytes: equal logs would be copies."""
        text = f"this is repeat {repeat}\n{self.text(shape, rate, **changes)}"
        self.log(shape, repeat, text, attempt)
        self.mark(shape, repeat, *STARTED, *ended(), attempt=attempt)
        return self

    def measure(
        self, repeat: int, begin: float, end: float, *, nodes: str = "n1", fine: bool = True,
        moved: float = 0.0, ahead: int = 0, start: float | None = None,
    ) -> "Built":  # fmt: skip
        """Let a repeat of the first point run between two moments, in seconds after WRITTEN.

        Its log begins then too, unless at `start`. The clock of its node is set by `moved` seconds
        meanwhile, and the controller's is `ahead`; one that is not `fine` has whole seconds only.
        """
        first: Event = {"event": "step"}
        step_end, script_end = ended()
        if fine:
            first |= {"at": WRITTEN + begin, "uptime": 50.0, "zone": "+0000", "ahead": ahead}
            uptime = 50.0 + end - begin - moved
            step_end = {**step_end, "at": WRITTEN + end, "uptime": uptime, "zone": "+0000"}
        shape = str(self.campaign.arrays[0].point.shape)
        host = nodes.replace("[", "").partition("-")[0]
        job = {"event": "start", "job": f"7_{repeat}", "host": host, "nodelist": nodes}
        self.mark(shape, repeat, job, first, time=int(WRITTEN + begin))
        self.mark(shape, repeat, step_end, script_end, time=int(WRITTEN + end))
        moment = WRITTEN + (begin if start is None else start)
        self.log(shape, repeat, self.text(shape, 10 + repeat / 10, start=moment))
        return self

    def finish(self, **facts: Any) -> "Built":
        """Let all repeats of all points run to their ends, at 10, 11, … samples/s a GPU."""
        for array in self.campaign.arrays:
            shape = array.point.shape
            for repeat in array.repeats:
                self.complete(str(shape), repeat, shape.gpus * (9.0 + repeat), **facts)
        return self

    def reach(self, repeat: int, iteration: int, attempt: int = 0) -> Path:
        """Let a repeat of the first point reach an iteration of 120, at 8 samples/s."""
        shape = str(self.campaign.arrays[0].point.shape)
        text = log(shape, 8.0, last=iteration, iters=120, start=T)
        return self.log(shape, repeat, text, attempt)

    def sacct(self, repeat: int, state: str, *, array: int = 0, **columns: Any) -> str:
        """Return a line of sacct about a repeat of one of its arrays."""
        return sacct(**{**self._columns(repeat, state, array), **columns})

    def squeue(self, repeat: int, state: str, *, array: int = 0, **columns: Any) -> str:
        """Return a line of squeue about a repeat of one of its arrays."""
        return squeue(**{**self._columns(repeat, state, array), **columns})

    def _columns(self, repeat: int, state: str, array: int) -> dict[str, Any]:
        own = self.campaign.arrays[array]
        job = {"job": own.element(repeat), "name": own.name}
        return {**job, "state": state, "nodes": "n[1-2]"}

    def lock(self) -> None:
        """Write the lock file that `submit --like` reads."""
        campaign = self.campaign
        shared = {field.name for field in fields(Lock)} & _CAMPAIGN
        lock = Lock(
            **{name: getattr(campaign, name) for name in shared},
            campaign=campaign.id, recipe=campaign.recipe_digest, preflight=False,
            together=any(array.together for array in campaign.measured),
            points=tuple(dict.fromkeys(array.point for array in campaign.measured)),
            options={}, env={}, inputs={}, files={}, settings={},
        )  # fmt: skip
        (self.directory / store.LOCKED).write_text(lock.text)

    def change(self, **changes: Any) -> "Built":
        changed = replace(self.campaign, **changes)
        store.write_manifest(self.directory, changed)
        return Built(self.directory, changed)


def campaign(
    runs: Path, *shapes: str, name: str = "20261121-pytorch-abc", repeats: int = 5,
    jobs: tuple[str, ...] = (), **changes: Any,
) -> Built:  # fmt: skip
    """Make a campaign in a directory of campaigns.

    Example: `campaign(tmp_path / "runs", "1n1g", "1n2g", repeats=3)` has two submitted points; its
    `complete("1n1g", 1, 8.0)` lets the first repeat of one run to its end, at 8 samples/s.

    `jobs` are the job ids of its points, 70, 71, … by default, empty if sbatch has not answered;
    without shapes, the points have 1, 2, … GPUs. `changes` are fields of the campaign, or of each
    of its arrays.
    """
    directory = runs / name
    store.create(directory)
    ids = jobs or tuple(str(70 + number) for number in range(len(shapes)))
    shapes = shapes or tuple(f"1n{number}g" for number in range(1, len(ids) + 1))
    of_campaign = {key: changes.pop(key) for key in _CAMPAIGN & set(changes)}
    arrays = tuple(
        array(name, shape, **{"repeats": repeats, "job_id": job, **changes})
        for shape, job in zip(shapes, ids, strict=True)
    )
    reference = Campaign(
        id=name, created="2026-11-21T09:56:40Z", hpcbert="0", user="nobody",
        command=("hpcbert", "submit"), scheduler="slurm", site="t", runtime="none", image="",
        framework="pytorch", recipe_digest="", protocol=Protocol(repeats, ITERS, SKIP),
        concurrent_repeats=1, concurrent_points=False, rehearse=False, arrays=arrays,
    )  # fmt: skip
    shutil.copy(TEMPLATES / "pytorch" / "recipe.toml", directory)
    return Built(directory, reference).change(**of_campaign)


def snapshot(watched: TrackedCampaign, *, run: Runner) -> Mapping[Key, RepeatState]:
    """Return the states at this moment."""
    tracker = Tracker([watched], SchedulerContext(run))
    tracker.poll()
    return tracker.states


def adopted(watched: TrackedCampaign, *, run: Runner, strict: bool = False) -> TrackedCampaign:
    """Return a campaign with the jobs of interrupted submissions."""
    backend = scheduler.create_scheduler(watched.campaign.scheduler, SchedulerContext(run))
    return backend.adopt_jobs(watched, strict=strict)


States = Callable[[TrackedCampaign], Mapping[tuple[str, int], RepeatState]]


def unreachable(watched: TrackedCampaign) -> dict[tuple[str, int], RepeatState]:
    raise AssertionError("the scheduler was asked")


def report_states(
    *words: str, source: str = "sacct", default: str = "COMPLETED", **more: Any
) -> States:
    """A scheduler with a state for each repeat, the default for further ones; each has `more`."""

    def states(watched: TrackedCampaign) -> dict[tuple[str, int], RepeatState]:
        repeat_states = {}
        for repeat in watched.repeats:
            number = repeat.key[1]
            word = words[number - 1] if number <= len(words) else default
            state = RepeatState(word, parse_state(word).kind, source, **more)  # type: ignore[arg-type]
            restarts = max(state.attempt, repeat.newest.attempt)
            repeat_states[repeat.key] = repeat.newest.complete(state, restarts=restarts)
        return repeat_states

    return states


def collect_campaigns(*paths: Path, states: States = lambda _: {}, **request: Any) -> CollectResult:
    """Collect campaigns, asking that scheduler; by default it knows nothing."""
    with mock.patch("hpcbert.commands.collect.ask_scheduler", states):
        return collect(paths, CollectRequest(**request), Recipes(()))


def find_exit_code(collection: CollectResult) -> int:
    return Result(errors=list_shortcomings(collection)).exit_code


def node(name: str = "n1", **changes: Any) -> dict[str, Any]:
    """Return what a node of eight A100 with InfiniBand says of itself.

    `host__kernel="6"` changes a key, None removes it.
    """
    data: dict[str, Any] = json.loads((REPOSITORY / "tests/kit/node.json").read_text())
    data["nodes"] = name
    for path, value in changes.items():
        place: Any = data
        *folders, last = path.split("__")
        for folder in folders:
            place = place[folder]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return data


def write_nodes(directory: Path, array: Array, repeat: int, *nodes: dict[str, Any]) -> None:
    """Write the file of one repeat's nodes; those that it has already stay, under other names."""
    path = name_record(directory, array.point.key, repeat, 0)
    path.parent.mkdir(exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    facts = {record["nodes"]: record for record in (*map(json.loads, lines), *nodes)}
    path.write_text("".join(f"{json.dumps(record)}\n" for record in facts.values()))

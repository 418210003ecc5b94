"""The runs of a campaign: which attempt counts, in which state it ended, what its log says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpcbert.campaign import evidence as proof
from hpcbert.campaign import store
from hpcbert.campaign.attempts import History, history
from hpcbert.campaign.clocks import Files, mistimed
from hpcbert.campaign.environment import Environments, compared
from hpcbert.campaign.fingerprint import Where
from hpcbert.campaign.likeness import Account, judged, stated
from hpcbert.campaign.memory import Memory
from hpcbert.campaign.neighbours import undisturbed
from hpcbert.campaign.standing import standing
from hpcbert.config.toml import read as read_toml
from hpcbert.logs import grammar as grammars
from hpcbert.logs.counted import counted
from hpcbert.logs.scan import Reading, read, read_on
from hpcbert.logs.setting import END, Setting, Window
from hpcbert.logs.sizes import stated_by
from hpcbert.model import Measured, Reason, Run
from hpcbert.results.reduce import Evidence, gate, group_of
from hpcbert.slurm.states import witness

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hpcbert.campaign.evidence import Held
    from hpcbert.campaign.fingerprint import Fingerprint
    from hpcbert.campaign.standing import States
    from hpcbert.logs.grammar import Grammar, Rule
    from hpcbert.model import Array, Campaign, Counted, Group, Point, Shape
    from hpcbert.slurm.states import RepeatState


_WRITTEN = "it was written to while it was read"


@dataclass(frozen=True)
class Repeat:
    """One repeat of a campaign, judged.

    Attributes:
        array: Name of its array.
        job_id: The array's job, as far as this state belongs to it.
        state: The scheduler's word on the attempt that counts.
        known: All its attempts; the newest need not be the one that counts.
        run: As it stands in a table.
        fingerprints: What its nodes were, as far as they wrote it down.
        facts: What its log states of itself.
    """

    array: str
    job_id: str
    state: RepeatState
    known: History
    run: Run
    fingerprints: tuple[Fingerprint, ...] = ()
    facts: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True)
class Gathered:
    """A campaign's points and what they were made of.

    Attributes:
        held: What is no longer as the evidence on record says.
        standard: Whether it is made by the recipe's default rule and the protocol's window.
        taken: The fingerprints of each point's valid runs, in the order of the points.
        stamps: Sizes and times of logs and status files before they were read.
    """

    points: tuple[Measured, ...]
    repeats: tuple[Repeat, ...]
    rule: Rule
    warnings: tuple[str, ...]
    held: Held
    standard: bool
    taken: tuple[tuple[Where, ...], ...] = ()
    stamps: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def states(self) -> dict[tuple[str, int], RepeatState]:
        """The states that it was made with, for making it again by another rule."""
        return {(one.array, one.run.repeat): one.known.told for one in self.repeats}


def gather(
    directory: Path,
    campaign: Campaign,
    *,
    rule: str,
    window: Window,
    states: States,
    beside: bool = True,
    trusted: bool = False,
) -> Gathered:
    """Judge every repeat of a campaign.

    Args:
        directory: The campaign's.
        campaign: Its manifest.
        rule: Name of a rule of its recipe, empty for the default.
        window: What to count instead of the protocol's window.
        states: Asks the scheduler; called only for what the directory doesn't know.
        beside: Whether to look at the campaigns beside it for runs that shared its nodes.
        trusted: Whether files count that are no longer what the evidence on record says.

    Raises:
        UsageError: There is no such rule, or the directory lacks its recipe.
    """
    recipe = directory / store.RECIPE
    values = read_toml(recipe)
    grammar = grammars.parse(values.get("log", {}), where=str(recipe))
    if length := _usual_length(values):
        grammar = grammar._replace(sequence_length=length)
    chosen = grammar.rule(rule)
    memory = Memory(directory)
    newest, warnings = standing(directory, campaign, states, memory)
    stamps = proof.stamps(directory)
    held = proof.hold(directory)
    changed = () if trusted else held.changed
    judge = _Judge(directory, campaign, grammar, chosen, window, changed=changed)
    repeats = {
        (array.name, number): judge.repeat(
            array,
            history(directory, campaign, (array, number), newest[array.name, number], memory),
        )
        for array, number in campaign.current
    }
    runs = _at_rest(directory, repeats, stamps)
    runs, notes = undisturbed(directory, campaign, runs, beside=beside)
    repeats = {key: replace(repeats[key], run=run) for key, run in runs.items()}
    repeats = _compared(directory, campaign, repeats)
    points: dict[Point, list[Run]] = {}
    for array, number in campaign.current:
        points.setdefault(array.point, []).append(repeats[array.name, number].run)
    measured = tuple(
        replace(_measured(point, group_of(point, points, chosen.name), runs), counted=judge.counted)
        for point, runs in points.items()
    )
    taken = tuple(_taken(one, repeats.values()) for one in measured)
    return Gathered(
        compared(zip(measured, taken, strict=True)),
        tuple(repeats.values()),
        chosen,
        (*chosen.warnings, *warnings, *notes),
        held,
        chosen == grammar.rule("") and window in {Window(), _whole(campaign)},
        taken,
        stamps,
    )


def _at_rest(
    directory: Path,
    repeats: Mapping[tuple[str, int], Repeat],
    before: Mapping[str, tuple[int, int]],
) -> dict[tuple[str, int], Run]:
    """Return the runs; none counts whose files were written to while they were read."""
    now = proof.stamps(directory)
    runs = {}
    for key, one in repeats.items():
        files = (one.run.log, one.known.counted.array.status(one.run.repeat))
        restless = [name for name in files if before.get(name) != now.get(name)]
        reasons = tuple(Reason("changed", f"{name}: {_WRITTEN}") for name in restless)
        spoilt = replace(one.run, throughput=None, valid=False, reasons=reasons)
        runs[key] = spoilt if restless and one.run.valid else one.run
    return runs


def _whole(campaign: Campaign) -> Window:
    """Return the protocol's window as one that was asked for."""
    return Window(campaign.protocol.skip, campaign.protocol.iters)


def _taken(point: Measured, repeats: Iterable[Repeat]) -> tuple[Where, ...]:
    """Return what nodes and logs say of the runs behind a point's numbers."""
    counts = [run for run in point.runs if run.valid]
    return tuple(
        where
        for one in repeats
        if any(one.run is run for run in counts)
        for where in _told(point.shape, one)
    )


def _told(shape: Shape, repeat: Repeat) -> tuple[Where, ...]:
    """Return what the nodes of one repeat are, and what its log states."""
    name, number = str(shape), repeat.run.repeat
    nodes = (Where(name, number, found) for found in repeat.fingerprints)
    return (*nodes, stated(name, number, dict(repeat.facts)))


def _compared(
    directory: Path, campaign: Campaign, repeats: Mapping[tuple[str, int], Repeat]
) -> dict[tuple[str, int], Repeat]:
    """Refuse those of a point's repeats that are copies, or none of the same experiment."""
    points: dict[Point, list[tuple[str, int]]] = {}
    for array, number in campaign.current:
        points.setdefault(array.point, []).append((array.name, number))
    accounts = [
        [
            Account(str(point.shape), one.run, directory / one.run.log, _told(point.shape, one))
            for one in (repeats[key] for key in keys)
        ]
        for point, keys in points.items()
    ]
    verdicts = judged(accounts, keep_first=False)
    runs = zip(points.values(), verdicts, strict=True)
    return {
        key: replace(repeats[key], run=run)
        for keys, own in runs
        for key, run in zip(keys, own, strict=True)
    }


def _measured(point: Point, group: Group, runs: list[Run]) -> Measured:
    """Put a point's runs together."""
    ordered = tuple(sorted(runs, key=lambda run: run.repeat))
    flags = ("accumulation",) if point.accumulation > 1 else ()
    return Measured(group, point.shape, len(ordered), ordered, flags)


class _Judge:
    """Judges the repeats of one campaign."""

    def __init__(
        self,
        directory: Path,
        campaign: Campaign,
        grammar: Grammar,
        rule: Rule,
        window: Window,
        *,
        changed: tuple[proof.Finding, ...],
    ) -> None:
        self.directory = directory
        self.campaign = campaign
        self.grammar = grammar
        self.rule = rule
        self.window = window
        self.changed = changed
        self.environments = Environments(directory)

    @property
    def counted(self) -> Counted:
        """Which part of each run is counted."""
        setting = self._setting(self.campaign.arrays[0].point)
        return counted(self.rule, setting.skip, setting.iters)

    def repeat(self, array: Array, known: History) -> Repeat:
        """Return one repeat with the attempt that counts."""
        number, state = known.number, known.counted.state
        path = store.log_path(self.directory, array, number, state.attempt)
        reading = Reading(None)
        if state.done and not self.campaign.rehearse:
            reader = read_on if self.window.iters == END else read
            reading = reader(path, self.grammar, self.rule, self._setting(array.point))
        evidence = Evidence(
            state=state.word,
            exit_code=state.step_exit,
            log=against(reading),
            over=state.done,
            detail=state.detail,
            rehearsed=self.campaign.rehearse,
            suspended=state.suspended,
        )
        reasons = (
            *gate(evidence),
            *self._doubled(array, number, state.attempt),
            *self._changed(known, str(path.relative_to(self.directory))),
        )
        if reading.throughput is not None:
            files = Files(store.status_path(self.directory, array, number), path)
            contained = self.campaign.runtime != "none"
            reasons += mistimed(files, state.attempt, self.grammar, contained=contained)
        found = self.environments.of(array.point.key, number, state.attempt)
        run = Run(
            repeat=number,
            attempt=state.attempt,
            throughput=None if reasons else reading.throughput,
            valid=not reasons,
            reasons=reasons,
            state=state.word,
            state_source=state.source,
            log=str(path.relative_to(self.directory)),
            nodes=state.nodes,
            environments=tuple((one.node, one.digest) for one in found),
            attempts=known.record(self.directory),
            flags=reading.flags,
        )
        return Repeat(
            array=array.name,
            job_id=array.job_id,
            state=state,
            known=known,
            run=run,
            fingerprints=found,
            facts=reading.facts,
        )

    def _doubled(self, array: Array, number: int, attempt: int) -> tuple[Reason, ...]:
        """Return why an attempt is spoilt that two jobs wrote to, be it that a person did it."""
        events = store.read_status(self.directory, array, number)
        jobs = witness(event for event in events if event.get("attempt") == attempt).jobs
        if len(jobs) < 2:  # noqa: PLR2004 - one job is as it should be
            return ()
        return (Reason("state", f"the jobs {' and '.join(jobs)} ran it at the same time"),)

    def _changed(self, known: History, log: str) -> tuple[Reason, ...]:
        """Return why a repeat does not count of which a file is not what was recorded."""
        array = known.counted.array
        env = f"env/{array.point.key}.{known.number}.{known.counted.state.attempt}."
        own = {log, array.status(known.number), array.script}
        found = (
            one
            for one in self.changed
            if one.path in own or one.path.startswith(env) or proof.concerns_all(one.path)
        )
        return tuple(Reason("changed", str(one)) for one in found)

    def _setting(self, point: Point) -> Setting:
        protocol = self.campaign.protocol
        known = Setting(
            nodes=point.shape.nodes,
            gpus_per_node=point.shape.gpus_per_node,
            gpus=point.shape.gpus,
            batch_size_per_device=point.batch_size_per_device,
            accumulation=point.accumulation,
            precision=point.precision,
            sequence_length=_sequence_length(point) or self.grammar.sequence_length or None,
            skip=protocol.skip if self.window.skip is None else self.window.skip,
            iters=protocol.iters if self.window.iters is None else self.window.iters,
            reach=protocol.iters,
        )
        return known._replace(**stated_by(point.model))


def _usual_length(recipe: Mapping[str, Any]) -> int:
    """Return what a recipe's option of that name is if nobody sets it; 0 without one."""
    options = recipe.get("options", {})
    option = options.get("sequence_length", {}) if isinstance(options, dict) else {}
    default = option.get("default", 0) if isinstance(option, dict) else 0
    return default if isinstance(default, int) else 0


def _sequence_length(point: Point) -> int | None:
    """Return what was asked for through the option of that name, if it was."""
    asked = dict(point.options).get("sequence_length")
    return asked if isinstance(asked, int) else None


def against(reading: Reading) -> tuple[Reason, ...]:
    """Return what a reading has against its log's number: a number or a reason, never neither."""
    if reading.missing:
        return (Reason("rule", f"nobody tells {reading.missing}, which the rule needs"),)
    return reading.reasons

"""The runs of a campaign: which attempt counts, in which state it ended, what its log says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcbert import store
from hpcbert.config.toml import read as read_toml
from hpcbert.errors import HpcbertError
from hpcbert.fingerprint import Where
from hpcbert.flows import evidence as proof
from hpcbert.flows.attempts import History, history, renewed
from hpcbert.flows.clocks import Files, mistimed
from hpcbert.flows.environment import Environments, compared
from hpcbert.flows.evidence import MEASUREMENTS, TABLE
from hpcbert.flows.likeness import Account, judged, stated
from hpcbert.flows.memory import SCHEMA, Memory, verdicts
from hpcbert.flows.neighbours import undisturbed
from hpcbert.logs import grammar as grammars
from hpcbert.logs.counted import counted
from hpcbert.logs.scan import Reading, read, read_on
from hpcbert.logs.setting import END, Setting
from hpcbert.model import Measured, Reason, Run
from hpcbert.reduce import Evidence, gate, group_of, tabulate
from hpcbert.report.document import tables_data
from hpcbert.slurm.ladder import from_witness, with_witness
from hpcbert.slurm.states import UNKNOWN, UNSUBMITTED, RepeatState, noted, parse, witness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from hpcbert.fingerprint import Fingerprint
    from hpcbert.logs.grammar import Grammar, Rule
    from hpcbert.logs.setting import Window
    from hpcbert.model import Array, Campaign, Counted, Group, Point, Shape
    from hpcbert.slurm.states import Witness
    from hpcbert.strict import Table

    States = Callable[[Path, Campaign], Mapping[tuple[str, int], RepeatState]]

_ALIVE = frozenset({"waiting", "running", "again"})
# Seconds after the end of a script within which the local queue adds its own line.
_LAST_WORD = 60.0


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
        taken: The fingerprints of each point's valid runs, in the order of the points.
    """

    points: tuple[Measured, ...]
    repeats: tuple[Repeat, ...]
    rule: Rule
    warnings: tuple[str, ...]
    taken: tuple[tuple[Where, ...], ...] = ()


def gather(
    directory: Path,
    campaign: Campaign,
    *,
    rule: str,
    window: Window,
    states: States,
    beside: bool = True,
) -> Gathered:
    """Judge every repeat of a campaign.

    Args:
        directory: The campaign's.
        campaign: Its manifest.
        rule: Name of a rule of its recipe, empty for the default.
        window: What to count instead of the protocol's window.
        states: Asks the scheduler; called only for what the directory doesn't know.
        beside: Whether to look at the campaigns beside it for runs that shared its nodes.

    Raises:
        UsageError: There is no such rule, or the directory lacks its recipe.
    """
    recipe = directory / store.RECIPE
    table = read_toml(recipe)
    grammar = grammars.parse(table.table("log").values, where=str(recipe))
    if length := _usual_length(table):
        grammar = grammar._replace(sequence_length=length)
    chosen = grammar.rule(rule)
    memory = Memory(directory)
    newest, warnings = _states(directory, campaign, states, memory)
    judge = _Judge(directory, campaign, grammar, chosen, window)
    repeats = {
        (array.name, number): judge.repeat(
            array,
            history(directory, campaign, (array, number), newest[array.name, number], memory),
        )
        for array, number in campaign.current
    }
    runs = {key: one.run for key, one in repeats.items()}
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
        taken,
    )


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


def _states(
    directory: Path, campaign: Campaign, ask: States, memory: Memory
) -> tuple[dict[tuple[str, int], RepeatState], tuple[str, ...]]:
    """Return the state of every repeat's newest attempt: on record, or asked for."""
    found: dict[tuple[str, int], RepeatState] = {}
    for array, number in campaign.current:
        known = _known(directory, campaign, array, number, memory)
        if known is not None:
            found[array.name, number] = known
    unknown = [(array, n) for array, n in campaign.current if (array.name, n) not in found]
    warnings: tuple[str, ...] = ()
    answers: Mapping[tuple[str, int], RepeatState] = {}
    if unknown:
        try:
            answers = ask(directory, campaign)
        except HpcbertError as error:
            warnings = (f"{campaign.id}: {error} States are what the jobs wrote themselves.",)
    for array, number in unknown:
        key = array.name, number
        told = answers.get(key) or _own_word(directory, array, number)
        found[key] = _standing(directory, array, number, told, memory)
    return found, warnings


def _standing(
    directory: Path, array: Array, number: int, told: RepeatState, memory: Memory
) -> RepeatState:
    """Return a state unless there is a verdict on the same attempt, which stands.

    If the repeat waits or runs in spite of it, that is an attempt of which the job has not written
    anything yet.
    """
    verdict = memory.verdict(array, number, told.attempt)
    if verdict is None:
        return told
    if told.done or told.kind == "unknown":
        return renewed(verdict, _witness(directory, array, number))
    return replace(told, attempt=told.attempt + 1)


def _known(
    directory: Path,
    campaign: Campaign,
    array: Array,
    number: int,
    memory: Memory,
) -> RepeatState | None:
    """Return a state that can't change any more and for which nobody has to be asked."""
    if array.state == "refused" or not (array.called or array.state == "submitted"):
        word = "REFUSED" if array.state == "refused" else UNKNOWN
        detail = array.error or UNSUBMITTED
        return RepeatState(word, parse(word).kind, "none", detail=detail)
    if campaign.scheduler == "local":
        own = _own_word(directory, array, number)
        return own if own.done else None
    seen = _witness(directory, array, number)
    verdict = memory.verdict(array, number, seen.attempt)
    if verdict is None or parse(verdict.word).returns:
        return None
    return renewed(verdict, seen)


def _witness(directory: Path, array: Array, number: int) -> Witness:
    return witness(store.read_status(directory, array, number), first=array.first_attempt)


def _own_word(directory: Path, array: Array, number: int) -> RepeatState:
    seen = _witness(directory, array, number)
    silent = RepeatState(UNKNOWN, "unknown", "none", detail="nothing says how it ended")
    return with_witness(from_witness(seen) or silent, seen)


class _Judge:
    """Judges the repeats of one campaign."""

    def __init__(
        self, directory: Path, campaign: Campaign, grammar: Grammar, rule: Rule, window: Window
    ) -> None:
        self.directory = directory
        self.campaign = campaign
        self.grammar = grammar
        self.rule = rule
        self.window = window
        self.environments = Environments(directory)

    @property
    def counted(self) -> Counted:
        """Which part of each run is counted."""
        setting = self._setting(self.campaign.arrays[0].point)
        return counted(self.rule, setting.skip, setting.iters)

    def repeat(self, array: Array, known: History) -> Repeat:
        """Return one repeat with the attempt that counts."""
        number, state = known.number, known.counting
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
        reasons = (*gate(evidence), *self._doubled(array, number, state.attempt))
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

    def _setting(self, point: Point) -> Setting:
        protocol = self.campaign.protocol
        return Setting(
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


def _usual_length(recipe: Table) -> int:
    """Return what a recipe's option of that name is if nobody sets it; 0 without one."""
    options = recipe.values.get("options", {})
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


def write(
    directory: Path, campaign: Campaign, gathered: Gathered, *, window: Window, now: float
) -> tuple[str, ...]:
    """Write what a campaign gave into it; return what is to be said about it, as sentences.

    table.json holds the tables; measurements.json every repeat with its state and number, and, once
    nothing waits or runs any more, digests of all that the numbers come from.
    """
    document = _measurements(campaign, gathered)
    record: dict[str, Any] | None
    warnings: tuple[str, ...] = ()
    table = {"schema": SCHEMA, **tables_data(tabulate(gathered.points))}
    try:
        store.write_json(directory / TABLE, table)
        if _over(directory, campaign, gathered, now=now):
            record, warnings = proof.renewed(directory, campaign, document, window=window, now=now)
        else:
            record = proof.kept(directory)
        document[proof.EVIDENCE] = record
        document[proof.SEAL] = proof.seal(document)
        store.write_json(directory / MEASUREMENTS, document)
    except HpcbertError as error:
        return (f"{error} The table is complete, it is only not kept.",)
    return warnings


def _over(directory: Path, campaign: Campaign, gathered: Gathered, *, now: float) -> bool:
    """Say whether no repeat waits or runs, and nobody writes to its files any more."""
    if any(one.known.newest.kind in _ALIVE for one in gathered.repeats):
        return False
    if campaign.scheduler != "local":
        return True
    submitted = (array for array in campaign.arrays if array.state == "submitted")
    seen = [
        witness(store.read_status(directory, array, number))
        for array in submitted
        for number in array.repeats
    ]
    # The local queue has the last word, unless it was killed.
    return all(one.state or now - (one.end or one.start or 0) > _LAST_WORD for one in seen)


def _measurements(campaign: Campaign, gathered: Gathered) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "campaign": campaign.id,
        "rule": gathered.rule.name,
        "protocol": asdict(campaign.protocol),
        "runs": [
            {
                "array": one.array,
                "job_id": one.job_id,
                "newest": one.known.newest.attempt,
                **asdict(one.run),
                "scheduler": noted(one.state),
                "verdicts": verdicts(one.known),
            }
            for one in gathered.repeats
        ],
    }

"""The `[log]` table of a recipe: how a framework's log becomes a throughput, as data.

A *record* is a kind of line, with its fields; a *rule* is a named way to turn the records of one
log into one number; a *fact* is a setting that the log states about itself. The format and the
reasoning behind it: docs/reference/log-grammar.md.

A part of a number is never read as the whole. A group like `([\\d.]+)` finds 4.987 in `4.987K`, 1
in `1,234.5` and 5.0 in `5.0abc`. Everything that touches a number is therefore taken with it, and
the text is then not a number. Only what the pattern itself has directly next to the group, as in
`([\\d.]+)K`, is known to the recipe and left out. A unit that the pattern does not have there is
taken with the number, too, unless it is samples per second: `([\\d.]+)` does not read the 65.5 of
`65.5 Ktokens/s`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import PurePath
from typing import Annotated, Any, Literal, NamedTuple

from hpcbert.errors import ConfigError, UsageError
from hpcbert.logs.setting import RECORDED, Setting
from hpcbert.system.decode import (
    GIVEN,
    Count,
    EncodedAs,
    Filled,
    Invalid,
    Range,
    check_choice,
    decode,
    did_you_mean,
)
from hpcbert.system.machine import list_entry_points, load_entry_point

_GROUP = re.compile(r"\(\?P<(\w+)>")
_BEFORE = re.compile(rb"(?:\d[\d.,]*|(?<![\w)\]])[+-])\Z")
# The bytes that _BEFORE can end with; most numbers touch other bytes.
_BEFORE_ENDS = b"0123456789.,+-"
_AFTER = re.compile(rb"(?:[eE][+-]?\d|[\w%]|[.,](?=\d))+| [kKMGT](?!\w)")
# A unit other than samples per second, or seconds.
_UNIT = re.compile(
    rb" ?\(?(?!(?:samples?|seq(?:uence)?s?|sentences|examples)/s(?:ec|econd)?\b)"
    rb"(?:[kKMGT] )?(?:[A-Za-z]*(?:/|[ _]per[ _])"
    rb"(?:[mu]?s|secs?|seconds?|min|minutes?|h|hours?|step|batch|iter\w*|GPU|gpu)|(?<= )[mun]s)\b"
)
# The same in a pattern.
_UNIT_IN_PATTERN = re.compile(r"/s|/\(|/min|\bms\b|\bs\b|\bsec|per[ _]")
# Longer than any number in a log, and short enough to show.
_REACH = 40


class NumberGroup(NamedTuple):
    """A group of a pattern that is a number.

    Attributes:
        before, after: Whether to check the line on that side of the group: not if the pattern has a
            letter, a digit or an underscore of its own there.
        unit: Whether to check for a unit: not if the pattern has one after the group.
    """

    name: str
    before: bool
    after: bool
    unit: bool

    def read(self, match: re.Match[bytes]) -> bytes:
        """Return the number with everything that touches it in the line."""
        start, end = match.span(self.name)
        text = match.string
        if self.before and start and text[start - 1] in _BEFORE_ENDS:
            unit_match = _BEFORE.search(text[max(0, start - _REACH) : start])
            start -= len(unit_match[0]) if unit_match else 0
        if self.after and (unit_match := _AFTER.match(text, end, end + _REACH)):
            end = unit_match.end()
        if self.unit and (unit_match := _UNIT.match(text, end, end + _REACH)):
            end = unit_match.end()
        return text[start:end]


def find_number_groups(pattern: str, names: Container[str]) -> tuple[NumberGroup, ...]:
    """Return the groups of a pattern that are numbers, and how far to check each."""
    number_groups = []
    for group in _GROUP.finditer(pattern):
        after = _end_of_group(pattern, group.start())
        # An optional letter, as in `(…)K?`, ends nothing.
        is_optional = pattern[after + 1 : after + 2] in ("?", "*", "{")
        has_own_text = _is_literal(pattern, after) and not is_optional
        if group[1] in names:
            before = not _is_literal(pattern, group.start() - 1)
            unit = not _UNIT_IN_PATTERN.search(pattern, after, after + _REACH)
            number_groups.append(NumberGroup(group[1], before, not has_own_text, unit))
    return tuple(number_groups)


def _is_literal(pattern: str, position: int) -> bool:
    """Return whether a place in a pattern has a letter, digit or underscore without a backslash."""
    character = pattern[position : position + 1] if position >= 0 else ""
    if not (character.isalnum() or character == "_"):
        return False
    backslashes = len(pattern[:position]) - len(pattern[:position].rstrip("\\"))
    return backslashes % 2 == 0


def _end_of_group(pattern: str, start: int) -> int:
    """Return the place after a group: the first parenthesis that completes a pattern ends it."""
    for match in re.compile(r"\)").finditer(pattern, start):
        with suppress(re.error):
            re.compile(pattern[start : match.end()].encode())
            return match.end()
    return len(pattern)


# --- Where a number begins and ends, so that a part is never read as the whole --------------------

# What a log may state: all of a run's setting except the protocol.
FACTS = tuple(name for name in Setting._fields if name not in {"skip", "iters", "reach", "sources"})
REHEARSAL = b"HPCBERT REHEARSAL"

_GROUPS = ("iteration", "loss", "nan", "rank", "rate", "seconds", "sequence_length", "time")
# Facts that are words; other groups of a fact are numbers.
TEXT_FACTS = (
    "batch_unit", "precision", "model", "padding", "optimizer", "weights", "attention", "xla",
    "version", "device", "device_kind",
)  # fmt: skip
# Forms of `Record.time` that are numbers.
_NUMERIC_TIMES = ("epoch", "epoch-ms", "elapsed", "elapsed-hours")
# The keys of a rule by its kind, in addition to those that every rule has.
_KEYS = {
    "rate": "field factor scope unit over_ranks average trim rolling after until",
    "step-rate": "field factor batch over_ranks average trim after until",
    "step-time": "field factor batch over_ranks average trim after until",
    "elapsed": "field factor batch over_ranks after until",
    "clock": "over_ranks after until",
    "footer": "field factor scope unit which",
}
_KIND_KEYS = frozenset(" ".join(_KEYS.values()).split())
# Defaults of a kind.
_DEFAULTS = {
    "rate": {"field": "rate"},
    "step-rate": {"field": "rate"},
    "footer": {"field": "rate"},
    "step-time": {"average": "harmonic"},
}


def _encode_line_text(text: str) -> bytes:
    if not text or "\n" in text or "\r" in text:
        raise Invalid("must be a text within one line that every record has")
    return text.encode()


def _compile(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode(), re.MULTILINE)
    except re.error as error:
        raise Invalid(f"is not a regular expression: {error}") from error


def _compile_folded(text: str) -> re.Pattern[bytes]:
    return re.compile(_compile(text).pattern, re.MULTILINE | re.IGNORECASE)


def _check_name(text: str) -> str:
    if not text or PurePath(text).name != text:
        raise Invalid("must be the name of a file")
    return text


_Bytes = Annotated[bytes, EncodedAs(str, str.encode)]
_AtLeast0 = Annotated[int, Range(0)]


@dataclass(frozen=True)
class LineKind:
    """A kind of line.

    Attributes:
        contains: Text that every such line has; searched before the pattern is tried.
        match: The form of the line; its named groups are the line's fields.
    """

    contains: Annotated[bytes, EncodedAs(str, _encode_line_text)]
    match: Annotated[re.Pattern[bytes], EncodedAs(str, _compile)]

    def has(self, field: str) -> bool:
        """Return whether the pattern has a group of this name."""
        return field in self.match.groupindex

    def _numbers(self, word_groups: tuple[str, ...]) -> tuple[NumberGroup, ...]:
        names = [name for name in self.match.groupindex if name not in word_groups]
        return find_number_groups(self.match.pattern.decode(), names)


@dataclass(frozen=True)
class Record(LineKind):
    """One kind of line that is printed repeatedly.

    Attributes:
        ignore: Texts that mark a line as not such a record.
        first: The number printed for the first iteration, 0 or 1.
        every: Iterations from one record to the next; 0: found from the log.
        ranks: Who prints it: `one` rank, one per `node`, or one per `gpu`.
        repeated: What to do if an iteration is printed again inside the window: `refuse` the log,
            `count` it as one more executed step, or `ignore` it.
        counts: What an iteration is: an optimizer step (`steps`) or one of its `micro-batches`; or
            what all steps so far took, from which they follow: `samples` or `tokens`.
        irregular: Whether records depend on events, and do not come every so many iterations.
    """

    name: str
    ignore: tuple[_Bytes, ...] = ()
    first: _AtLeast0 = 1
    every: _AtLeast0 = 0
    lines: Count = 1
    time: Literal[
        "", "epoch", "epoch-ms", "date-time", "month-day", "time-of-day", "ctime", "elapsed",
        "elapsed-hours",
    ] = ""  # fmt: skip
    ranks: Literal["one", "node", "gpu"] = "one"
    repeated: Literal["refuse", "count", "ignore"] = "refuse"
    counts: Literal["steps", "micro-batches", "samples", "tokens"] = "steps"
    irregular: bool = False

    def __post_init__(self) -> None:
        if self.has("time") != bool(self.time):
            raise Invalid(
                "must say the form of the `time` group: "
                "epoch, epoch-ms, date-time, month-day, time-of-day, ctime, elapsed, elapsed-hours",
                key="time",
            )
        if self.ranks != "one" and (self.lines > 1 or self.repeated != "refuse"):
            raise Invalid("can't be joined with `lines` or `repeated`: order is lost", key="ranks")

    @cached_property
    def numbers(self) -> tuple[NumberGroup, ...]:
        """Those of its fields that are numbers."""
        return self._numbers(("loss",) if self.time in _NUMERIC_TIMES else ("loss", "time"))

    @property
    def counts_steps(self) -> bool:
        """Whether its number counts steps or micro-batches, and not what they took."""
        return self.counts not in ("samples", "tokens")

    @property
    def is_elapsed(self) -> bool:
        """Whether its time counts from the program's start, and is not a moment."""
        return self.time in ("elapsed", "elapsed-hours")


@dataclass(frozen=True)
class Bound:
    """One end of the window.

    Attributes:
        by: What is counted: `iteration`, or `record` for the lines themselves.
        at: A number, or the protocol's `skip` or `iters`.
    """

    by: str
    at: int | str

    def resolve(self, *, skip: int, iters: int) -> int:
        """Return the bound as a number: its own, or the protocol's `skip` or `iters`."""
        if isinstance(self.at, int):
            return self.at
        return skip if self.at == "skip" else iters


_Position = _AtLeast0 | Literal["skip", "iters"]


def _parse_bound(default: str, value: int | str | dict[str, int | str]) -> Bound:
    if not isinstance(value, dict):
        return Bound("iteration", value)
    if len(value) > 1:
        raise Invalid("is not known", key="iteration")
    return Bound(*next(iter(value.items()), ("iteration", default)))


_BOUND = _Position | dict[Literal["record", "iteration"], _Position]


@dataclass(frozen=True)
class Rule:
    """A named way to turn one log into one throughput.

    Attributes:
        scope: What a printed rate covers.
        unit: What a printed rate counts: `samples`, `tokens`, or `GB/s`, which is not a throughput
            and becomes a reason, never a number in a table.
        factor: Factor to multiply the number by: 1000 for thousands, 0.001 for milliseconds.
            Units and products of batch sizes are within its range.
        batch: What one counted step trains: the `global` batch, or the share of a node
            (`per-node`) or of a device (`per-gpu`) if steps are summed over those.
        trim: How many of the lowest and of the highest numbers a mean leaves out.
        rolling: Records over which the program averages a printed rate if its log does not state
            the fact `rate_window`; 0: a rate is of its own record alone.
        over_ranks: How to combine the ranks' numbers for one iteration: `median`, `mean` or `sum`.
        which: Of several footers: the `first`, the `last`, or the `only` one.
        after: The last record that is not measured.
        until: The last one that is.
        caution: How upstream's number is known to be wrong; a warning whenever the rule is used.
        tolerance: Share by which another rule of the same log may differ; 0: the grammar's.
        side: On which side of the others the tolerance lets its number be: `above`, if it leaves
            some of the time out, `below`, if it includes more; on the other, the grammar's holds.
    """

    name: str
    kind: Annotated[str, partial(check_choice, tuple(_KEYS))]
    record: Record
    field: str = "seconds"
    scope: Literal["global", "per-gpu", "per-rank", "per-node"] = "global"
    unit: Literal["samples", "tokens", "GB/s"] = "samples"
    factor: Annotated[float, Range(1e-9, 1e9, "must be positive, 1e-09 to 1e+09")] = 1.0
    batch: Literal["global", "per-node", "per-gpu"] = "global"
    average: Literal["mean", "median", "harmonic"] = "mean"
    trim: _AtLeast0 = 0
    rolling: _AtLeast0 = 0
    over_ranks: Literal["median", "mean", "sum"] = "median"
    which: Literal["first", "last", "only"] = "only"
    after: Annotated[Bound, EncodedAs(_BOUND, partial(_parse_bound, "skip"))] = Bound(
        "iteration", "skip"
    )
    until: Annotated[Bound, EncodedAs(_BOUND, partial(_parse_bound, "iters"))] = Bound(
        "iteration", "iters"
    )
    caution: str = ""
    tolerance: Annotated[float, Range(0, math.inf)] = 0.0
    side: Literal["both", "above", "below"] = "both"
    cross_check: bool = True

    @classmethod
    def narrowed(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the annotations of the keys that a rule of this kind does not have."""
        own_keys = _KEYS.get(str(values.get("kind")), "").split()
        return dict.fromkeys(_KIND_KEYS.difference(own_keys), Annotated[Any, GIVEN])

    def __post_init__(self) -> None:
        if self.kind == "custom":
            return
        if self.trim and self.average == "median":
            raise Invalid("changes no median", key="trim")
        units = {self.after.by, self.until.by} if self.kind != "footer" else set()
        for name in (self.field, *(units & {"iteration"})):
            if not self.record.has(name):
                raise Invalid(
                    f"{self.record.name!r} has no group {name!r}, which this rule needs",
                    did_you_mean(name, self.record.match.groupindex),
                    key="record",
                )
        if "record" in units and self.record.ranks != "one":
            raise Invalid("can't count records that several ranks print", key="after")
        if self.over_ranks == "sum" and (self.kind != "rate" or self.scope != "global"):
            raise Invalid("can only sum a rate of `global` scope", key="over_ranks")

    @property
    def is_comparable(self) -> bool:
        """Whether its number is a throughput that other rules may confirm."""
        return self.cross_check and self.unit != "GB/s" and self.kind != "custom"

    @property
    def is_printed(self) -> bool:
        """Whether the program computes the rate itself, from a batch size that it knows."""
        return self.kind in ("rate", "footer")

    @cached_property
    def evidence(self) -> tuple[bytes, str]:
        """Text and field that it reads: rules with the same ones can't confirm each other."""
        return self.record.contains, self.field

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that users of this rule must know."""
        return (f"rule {self.name}: {self.caution}",) if self.caution else ()


@dataclass(frozen=True)
class Fact(LineKind):
    """A line in which the run states its own configuration; its groups are names among FACTS.

    Attributes:
        values: The meaning of the log's words: `True` reads as `fp16`.
        lists: Whether the text is a list of numbers, `0,1,2,3`, and the fact how many they are.
        counts: `gpus` or `nodes` if each of them prints the line once; empty: no such line.
        least: With fewer such lines, nothing is counted: then not all of them print it.
        assumed: Why the line suggests its facts but does not state them: they hold where nothing
            states them and no earlier fact of the grammar suggests another value, and `collect`
            prints them as assumptions; empty if it states them.
    """

    values: Mapping[str, str] = field(default_factory=dict, hash=False)
    lists: bool = False
    counts: Literal["", "nodes", "gpus"] = ""
    least: Count = 1
    assumed: str = ""

    def __post_init__(self) -> None:
        for name in self.match.groupindex:
            if name not in FACTS:
                message = f"has a group {name!r}, which is not a fact"
                raise Invalid(message, did_you_mean(name, FACTS), key="match")
        if not self.match.groupindex and not self.counts:
            raise Invalid(f"needs a named group: {', '.join(FACTS)}", key="match")

    @cached_property
    def numbers(self) -> tuple[NumberGroup, ...]:
        """Those of its groups that are numbers."""
        return self._numbers(TEXT_FACTS)


# The line in which rank 0 of a job states what the ranks were started with: rank.bash.
STARTED = "hpcbert: ranks start with "
_STARTED = ["nodes", "gpus", "batch_size_per_device", "accumulation", "precision", "xla", "model"]
_STARTED_WITH = "|".join(rf"{name}=(?P<{name}>[\w-]+)" for name in (*_STARTED, *RECORDED))
STARTED_FACT = Fact(STARTED.encode(), re.compile(rf" (?:{_STARTED_WITH})(?= |$)".encode()))


@dataclass(frozen=True)
class Skip(LineKind):
    """A line about optimizer steps that were executed and thrown away.

    A group `count` holds how many steps, `total` how many since the start; without either it is
    one.
    """

    def __post_init__(self) -> None:
        for name in self.match.groupindex:
            if name not in ("count", "total"):
                message = f"has a group {name!r}, which is neither `count` nor `total`"
                raise Invalid(message, key="match")


@dataclass(frozen=True)
class OtherProgram(LineKind):
    """A line of another program with similar records, which the rules would misread."""

    program: Filled


@dataclass(frozen=True)
class FailureWords:
    """A sign of what a failed run lacked: words of its log, or an exit status.

    Attributes:
        kind: `device-oom`: memory of the device, which a smaller batch needs less of; `host-oom`:
            memory of the host.
        match: The form of the line, in upper or lower case.
        source: Source of the words: a project's file at a commit, or an issue that shows them.
        exits: Exit statuses of the program that mean it, whatever its log has.
    """

    kind: Literal["device-oom", "host-oom"]
    source: Filled
    contains: Annotated[bytes, EncodedAs(str, _encode_line_text)] = b""
    match: Annotated[re.Pattern[bytes], EncodedAs(str, _compile_folded)] = re.compile(b"")
    exits: tuple[Annotated[int, Range(1, 255)], ...] = ()

    def __post_init__(self) -> None:
        if bool(self.contains) != bool(self.match.pattern):
            raise Invalid("belongs to `contains`, and that to it", key="match")
        if not (self.contains or self.exits):
            raise Invalid("is needed, or `exits`", key="contains")


@dataclass(frozen=True)
class Grammar:
    """How a framework's logs are read.

    Attributes:
        records: All kinds of lines; those with a `loss` are checked with any rule.
        rules: The first is the default.
        reader: Name of the entry point that reads a log instead of the grammar; empty for none.
        sequence_length: Tokens in a sample if the log doesn't say, and the value that a campaign's
            log must have if no option requested another; 0 if unknown.
        packing: Largest average number of samples that may be packed into one; 1 for no packing.
        rehearsal: Text that marks a log as a rehearsal.
        signs: Texts of which the program prints at least one, where others have similar records;
            empty if its records are its own.
        settings: Names of files with facts in the folder of the log.
        ends: Texts of lines that the program prints at the end of a run.
        tolerance: Share by which a rule's number may differ from another's of the same log.
        factor: How many times faster or slower than the window's median one record may be.
            For the reasons, see docs/explanation/numbers.md, "Two ways to one number".
        shortest: A window with fewer iterations is flagged as short.
        shortest_seconds: So is a window on GPUs that takes less; 0: no limit.
        accumulation: Micro-batches per step of a program with a fixed number; 0: unknown.
        skipped: Lines about skipped optimizer steps.
        others: Lines of other programs: a log with one is refused.
        pauses: Texts of lines about a checkpoint or an evaluation, after which a record, or the
            next one, may be slow; or texts of a record's own line.
        failures: Words that say what a failed run lacked; the first one in the log counts.
    """

    records: tuple[Record, ...]
    rules: tuple[Rule, ...]
    facts: tuple[Fact, ...] = ()
    reader: Annotated[str, GIVEN] = ""
    sequence_length: _AtLeast0 = 0
    packing: Count = 1
    rehearsal: _Bytes = REHEARSAL
    signs: tuple[_Bytes, ...] = ()
    ends: tuple[_Bytes, ...] = ()
    settings: tuple[Annotated[str, _check_name], ...] = ()
    tolerance: Annotated[float, Range(1e-9, math.inf, "must be above 0")] = 0.1
    factor: Annotated[float, Range(1.001, math.inf, "must be above 1")] = 15.0
    shortest: Count = 10
    shortest_seconds: _AtLeast0 = 0
    accumulation: Count = 0
    pauses: tuple[_Bytes, ...] = ()
    skipped: tuple[Skip, ...] = ()
    others: tuple[OtherProgram, ...] = ()
    failures: tuple[FailureWords, ...] = ()

    def __post_init__(self) -> None:
        if self.reader:
            return
        for key, entries in (("records", self.records), ("rules", self.rules)):
            names = [entry.name for entry in entries]
            if not names:
                note = "; the first is the default" if key == "rules" else ""
                raise Invalid(f"must hold at least one {key.removesuffix('s')}{note}", key=key)
            duplicate = max(names, key=names.count)
            if names.count(duplicate) > 1:
                raise Invalid(f"has two named {duplicate!r}", key=key)
        for record in self.records:
            known_groups = {*_GROUPS, *(rule.field for rule in self.rules if rule.record is record)}
            for name in record.match.groupindex:
                if name not in known_groups:
                    message = f"{record.name!r} has a group {name!r} that no rule reads"
                    raise Invalid(message, did_you_mean(name, known_groups), key="records")
        if b"" in self.pauses:
            raise Invalid("must not hold an empty text", key="pauses")

    @cached_property
    def texts(self) -> tuple[bytes, ...]:
        """The texts to search lines for, in order: those of all kinds of lines, then pauses."""
        kinds = (*self.records, *self.asides)
        return (*(kind.contains for kind in kinds), *self.pauses)

    @cached_property
    def asides(self) -> tuple[Fact | Skip | OtherProgram, ...]:
        """The kinds of lines that are not records."""
        return (*self.all_facts, *self.skipped, *self.others)

    @cached_property
    def all_facts(self) -> tuple[Fact, ...]:
        """The recipe's facts, and those that every job of hpcbert prints."""
        return (*self.facts, STARTED_FACT)

    @property
    def accumulates(self) -> bool:
        """Whether the program can accumulate gradients: then its log states the number."""
        fact_names = {name for fact in self.facts for name in fact.match.groupindex}
        return bool(fact_names & {"accumulation", "global_batch_size"})

    def rule(self, name: str = "") -> Rule:
        """Return the rule with a name, or the default for an empty one.

        Raises:
            UsageError: The rule does not exist.
        """
        rules_by_name = {rule.name: rule for rule in self.rules}
        if name and name not in rules_by_name:
            raise UsageError(f"There is no rule {name!r}.", hint=did_you_mean(name, rules_by_name))
        return rules_by_name[name] if name else self.rules[0]

    def independent(self, chosen: Rule) -> tuple[Rule, ...]:
        """Return the rules to compare with the chosen one: those that read another field."""
        rules = [rule for rule in self.rules if rule.is_comparable]
        is_compared = chosen.is_comparable
        return tuple(rule for rule in rules if is_compared and rule.evidence != chosen.evidence)

    def preferring(self, name: str) -> Grammar:
        """Return the grammar with another default rule.

        Raises:
            UsageError: The rule does not exist.
        """
        default = self.rule(name)
        return replace(self, rules=(default, *(rule for rule in self.rules if rule != default)))


# Functions outside hpcbert that read logs: entry points of this group, and how recipes name them.
_READERS, _READER = "hpcbert.grammars", "entry-point:"


def find_reader(name: str) -> Callable[..., Any]:
    """Return the function of an installed package that reads logs, by its entry point's name.

    Raises:
        ConfigError: No installed package offers the name, or what it offers can't be imported.
    """
    message = f"log.grammar = {_READER + name!r} can't be used"
    entry_points = list_entry_points(_READERS)
    if name not in entry_points:
        raise ConfigError(
            f"{message}: no installed package has an entry point of that name in the group "
            f"{_READERS}.",
            hint=f"There are: {', '.join(sorted(entry_points)) or 'none'}. Install its package in "
            "hpcbert's environment.",
        )
    try:
        function: Callable[..., Any] = load_entry_point(entry_points[name])
    except ImportError as error:
        hint = "Install its package in hpcbert's environment again."
        raise ConfigError(f"{message}: {error}.", hint=hint) from error
    return function


def _entry_point_name(reader: str) -> str:
    """Return the name of an entry point: a recipe can have nothing else imported."""
    name = reader.removeprefix(_READER)
    if not name or name == reader:
        hint = f"Offer the function as an entry point in the group {_READERS}."
        raise Invalid(f"must read {_READER}NAME, not {reader!r}", hint)
    return name


@dataclass(frozen=True)
class _ExternalReader:
    """The `[log]` table of a recipe that brings its own reader."""

    grammar: Annotated[str, _entry_point_name]


def parse(values: Mapping[str, Any], *, where: str) -> Grammar:
    """Read a `[log]` table strictly.

    Raises:
        ConfigError: A key is unknown, missing or doesn't fit the others.
    """
    table = decode(dict[str, Any], values, file=where, path="log")
    if table.get("grammar", "") != "":
        reader = decode(_ExternalReader, table, file=where, path="log").grammar
        empty_record = Record(b"", re.compile(b""), "")
        rule = Rule(reader, "custom", empty_record, "")
        return Grammar((), (rule,), reader=reader)
    table.pop("grammar", None)
    read = partial(decode, file=where)
    records: Any = read(tuple[Record, ...], table.get("records", ()), path="log.records")
    tables: Any = read(tuple[dict[str, Any], ...], table.get("rules", ()), path="log.rules")
    rules = tuple(
        _decode_rule(rule_table, records, where=where, path=f"log.rules[{number}]")
        for number, rule_table in enumerate(tables if records else (), start=1)
    )
    return decode(Grammar, table, file=where, path="log", records=records, rules=rules)


def _decode_rule(
    values: dict[str, Any], records: tuple[Record, ...], *, where: str, path: str
) -> Rule:
    kind, records_by_name = str(values.get("kind")), {record.name: record for record in records}
    name_annotation: Any = Annotated[str, partial(check_choice, tuple(records_by_name))]
    record_name = decode(
        name_annotation, values.get("record", records[0].name), file=where, path=f"{path}.record"
    )
    table = {**_DEFAULTS.get(kind, {}), **values}
    extra_fields: dict[str, Any] = {"record": records_by_name[record_name]}
    if kind == "clock":
        extra_fields["field"] = "time"
    return decode(Rule, table, file=where, path=path, **extra_fields)

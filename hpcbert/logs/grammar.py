"""The `[log]` table of a recipe: how a framework's log becomes a throughput, as data.

A *record* is a kind of line, with its fields; a *rule* is a named way to turn the records of one
log into one number; a *fact* is a setting that the log states about itself. The format and the
reasoning behind it: docs/reference/log-grammar.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbert.config.decode import did_you_mean
from hpcbert.config.strict import Table
from hpcbert.errors import UsageError
from hpcbert.logs.boundary import Number, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = ("rate", "step-rate", "step-time", "elapsed", "clock", "footer")
SCOPES = ("global", "per-gpu", "per-rank", "per-node")
UNITS = ("samples", "tokens", "GB/s")
CLOCKS = ("epoch", "epoch-ms", "date-time", "month-day", "time-of-day", "ctime")
FACTS = (
    "nodes",
    "gpus_per_node",
    "gpus",
    "batch_size_per_device",
    "accumulation",
    "global_batch_size",
    "packing",
    "precision",
    "sequence_length",
    "model",
    "hidden_size",
    "layers",
    "version",
    "device",
)
COUNTED = ("nodes", "gpus")
REHEARSAL = "HPCBERT REHEARSAL"
# Why these: docs/explanation/numbers.md, "Two ways to one number".
TOLERANCE, FACTOR, SHORTEST = 0.1, 15.0, 10

_GROUPS = ("iteration", "loss", "nan", "rank", "rate", "seconds", "time")
_WORDS = ("loss", "time")
_TEXTS = ("precision", "model", "version", "device")
_FIELDS = {"rate": "rate", "step-rate": "rate", "footer": "rate"}
_PROTOCOL = ("skip", "iters")


class Record(NamedTuple):
    """One kind of line.

    Attributes:
        contains: Text that every such line has; looked for before the pattern is tried.
        pattern: What the line looks like; its named groups are the record's fields.
        ignore: Texts that make a line no such record after all.
        first: What is printed for the first iteration, 0 or 1.
        every: Iterations from one record to the next; 0: read off the log.
        lines: How many lines the record may take.
        time: Form of the `time` field, one of CLOCKS.
        ranks: Who prints it: `one` rank, one on each `node`, or one for each `gpu`.
        repeated: What the same iteration printed again inside the window means: `refuse` the
            log, `count` it as one more step that was executed, or `ignore` it.
        counts: What an iteration is: an optimizer step (`steps`) or one of its `micro-batches`.
        irregular: Whether records come when something happens, and not every so many iterations.
        numbers: Those of its fields that are numbers.
    """

    name: str
    contains: bytes
    pattern: re.Pattern[bytes]
    ignore: tuple[bytes, ...]
    first: int
    every: int
    lines: int
    time: str
    ranks: str
    repeated: str
    counts: str
    irregular: bool = False
    numbers: tuple[Number, ...] = ()

    def has(self, field: str) -> bool:
        """Say whether the record has a field."""
        return field in self.pattern.groupindex


class Bound(NamedTuple):
    """One end of the window.

    Attributes:
        by: What is counted: `iteration`, or `record` for the lines themselves.
        at: A number, or the protocol's `skip` or `iters`.
    """

    by: str
    at: int | str

    def resolve(self, *, skip: int, iters: int) -> int:
        """Return the number it stands for under a protocol."""
        if isinstance(self.at, int):
            return self.at
        return skip if self.at == "skip" else iters


class Rule(NamedTuple):
    """A named way to turn one log into one throughput.

    Attributes:
        kind: One of KINDS.
        record: The records it reads.
        field: The field with the number.
        scope: What a printed rate stands for, one of SCOPES.
        unit: What a printed rate counts: `samples`, `tokens`, or `GB/s`, which is no throughput and
            ends as a reason, never as a number in a table.
        factor: What the number is to be multiplied by: 1000 for thousands, 0.001 for milliseconds.
        batch: What is trained in one counted step: the `global` batch, or the share of a node
            (`per-node`) or of a device (`per-gpu`) where steps are summed over those.
        average: Over the window: `mean`, `median` or `harmonic`.
        trim: How many of the lowest and how many of the highest numbers a mean leaves out.
        over_ranks: Over what the ranks print for one iteration: `median`, `mean` or `sum`.
        which: Of several footers: the `first`, the `last`, or the `only` one.
        after: The last record that does not count.
        until: The last one that does.
        caution: How upstream's number is known to be wrong; a warning wherever the rule is used.
        tolerance: By how much of it another rule of the same log may differ; 0: the grammar's.
        cross_check: Whether it is held against the others at all.
    """

    name: str
    kind: str
    record: Record
    field: str
    scope: str = "global"
    unit: str = "samples"
    factor: float = 1.0
    batch: str = "global"
    average: str = "mean"
    trim: int = 0
    over_ranks: str = "median"
    which: str = "only"
    after: Bound = Bound("iteration", "skip")
    until: Bound = Bound("iteration", "iters")
    caution: str = ""
    tolerance: float = 0.0
    cross_check: bool = True

    @property
    def is_printed(self) -> bool:
        """Whether the program makes the rate itself, from a batch size that it knows."""
        return self.kind in ("rate", "footer")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person who uses this rule must know."""
        return (f"rule {self.name}: {self.caution}",) if self.caution else ()


class Fact(NamedTuple):
    """A line in which the run states its own configuration.

    Attributes:
        contains, pattern: As of a record; the pattern's groups are names among FACTS.
        values: What the log's words mean: `True` reads as `fp16`.
        divide: What a number is divided by: 128 where samples are given in tokens.
        counts: `gpus` or `nodes` where each of them prints the line once; empty: no such line.
        least: Fewer such lines count nothing: then not all of them print it.
        numbers: Those of its groups that are numbers.
    """

    contains: bytes
    pattern: re.Pattern[bytes]
    values: tuple[tuple[str, str], ...] = ()
    divide: int = 1
    counts: str = ""
    least: int = 1
    numbers: tuple[Number, ...] = ()


class Skip(NamedTuple):
    """A line that tells of optimizer steps which were executed and thrown away.

    Attributes:
        contains, pattern: As of a record. A group `count` holds how many steps, `total` how many
            since the start; without either it is one.
    """

    contains: bytes
    pattern: re.Pattern[bytes]


class Grammar(NamedTuple):
    """How a framework's logs are read.

    Attributes:
        records: All kinds of lines; those with a `loss` are checked whatever the rule.
        rules: The first is the default.
        reader: `module:function` or `entry-point:name` that reads a log in the grammar's
            stead; empty for none.
        sequence_length: Tokens in a sample where the log doesn't say, and what a campaign's log
            must say where no option has asked for another; 0 if unknown.
        packing: Samples that may be packed into one on average, at most; 1 where none are.
        rehearsal: Text that marks a log as a rehearsal.
        tolerance: By how much of it a rule's number may differ from another's of the same log.
        factor: How many times faster or slower than the window's median one record of it may be.
        shortest: Iterations below which a window is flagged as short.
        accumulation: Micro-batches in a step of a program that can't do otherwise; 0: unknown.
        skipped: Lines that tell of skipped optimizer steps.
        pauses: Texts of lines after which a record, or the one after it, may be slow: of a
            checkpoint or an evaluation; or of a record's own line.
    """

    records: tuple[Record, ...]
    rules: tuple[Rule, ...]
    facts: tuple[Fact, ...] = ()
    reader: str = ""
    sequence_length: int = 0
    packing: int = 1
    rehearsal: bytes = REHEARSAL.encode()
    tolerance: float = TOLERANCE
    factor: float = FACTOR
    shortest: int = SHORTEST
    accumulation: int = 0
    pauses: tuple[bytes, ...] = ()
    skipped: tuple[Skip, ...] = ()

    @property
    def accumulates(self) -> bool:
        """Whether the program can accumulate gradients: it then states how often."""
        stated = {name for fact in self.facts for name in fact.pattern.groupindex}
        return bool(stated & {"accumulation", "global_batch_size"})

    def rule(self, name: str = "") -> Rule:
        """Return the rule of a name, the default for an empty one.

        Raises:
            UsageError: There is none of that name.
        """
        named = {rule.name: rule for rule in self.rules}
        if name and name not in named:
            raise UsageError(f"There is no rule {name!r}.", hint=did_you_mean(name, named))
        return named[name] if name else self.rules[0]


def parse(values: Mapping[str, Any], *, where: str) -> Grammar:
    """Read a `[log]` table strictly.

    Args:
        values: The table as TOML gave it.
        where: The file, for messages.

    Raises:
        ConfigError: A key is unknown, missing or doesn't fit the others.
    """
    table = Table({"log": values}, where=where).table("log")
    reader = table.get("grammar", str, "")
    if reader:
        return _read_elsewhere(table, reader)
    records = tuple(_record(one) for one in table.tables("records"))
    _unique(table, "records", [record.name for record in records])
    if not records:
        raise table.error("records", "must hold at least one record.")
    rules = tuple(_rule(one, records) for one in table.tables("rules"))
    _unique(table, "rules", [rule.name for rule in rules])
    if not rules:
        raise table.error("rules", "must hold at least one rule; the first is the default.")
    _no_stray_groups(table, records, rules)
    grammar = Grammar(
        records=records,
        rules=rules,
        facts=tuple(_fact(one) for one in table.tables("facts")),
        sequence_length=table.at_least("sequence_length", 0, 0),
        packing=table.at_least("packing", 1, 1),
        rehearsal=table.get("rehearsal", str, REHEARSAL).encode(),
        tolerance=_share(table, TOLERANCE),
        factor=_above(table, "factor", FACTOR, 1),
        shortest=table.at_least("shortest", 1, SHORTEST),
        accumulation=table.at_least("accumulation", 1, 0),
        skipped=tuple(_skip(one) for one in table.tables("skipped")),
        pauses=tuple(text.encode() for text in table.items("pauses", str)),
    )
    table.close()
    if b"" in grammar.pauses:
        raise table.error("pauses", "must not hold an empty text.")
    return grammar


def _read_elsewhere(table: Table, reader: str) -> Grammar:
    module, _, function = reader.partition(":")
    if not module or not function:
        what = "must read module:function, or entry-point:name"
        raise table.error("grammar", f"{what}, not {reader!r}.")
    table.close()
    nothing = Record("", b"", re.compile(b""), (), 1, 0, 1, "", "one", "refuse", "steps")
    return Grammar((), (Rule(function, "custom", nothing, ""),), reader=reader)


def _unique(table: Table, key: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise table.error(key, f"has two named {twice[0]!r}.")


def _no_stray_groups(table: Table, records: tuple[Record, ...], rules: tuple[Rule, ...]) -> None:
    for record in records:
        known = {*_GROUPS, *(rule.field for rule in rules if rule.record is record)}
        for name in record.pattern.groupindex:
            if name not in known:
                message = f"{record.name!r} has a group {name!r} that no rule reads."
                raise table.error("records", message, did_you_mean(name, known))


def _pattern(table: Table) -> re.Pattern[bytes]:
    text = table.need("match", str)
    try:
        return re.compile(text.encode(), re.MULTILINE)
    except re.error as error:
        raise table.error("match", f"is no regular expression: {error}.") from error


def _share(table: Table, usual: float) -> float:
    return _above(table, "tolerance", usual, 0)


def _above(table: Table, key: str, usual: float, low: float) -> float:
    value = table.get(key, float, usual)
    if value != usual and not value > low:
        raise table.error(key, f"must be above {low:g}, not {value:g}.")
    return value


def _contains(table: Table) -> bytes:
    text = table.need("contains", str)
    if not text or "\n" in text or "\r" in text:
        raise table.error("contains", "must be a text within one line that every record has.")
    return text.encode()


def _record(table: Table) -> Record:
    record = Record(
        name=table.need("name", str),
        contains=_contains(table),
        pattern=_pattern(table),
        ignore=tuple(text.encode() for text in table.items("ignore", str)),
        first=table.at_least("first", 0, 1),
        every=table.at_least("every", 0, 0),
        lines=table.at_least("lines", 1, 1),
        time=table.choice("time", ("", *CLOCKS), ""),
        ranks=table.choice("ranks", ("one", "node", "gpu"), "one"),
        repeated=table.choice("repeated", ("refuse", "count", "ignore"), "refuse"),
        counts=table.choice("counts", ("steps", "micro-batches"), "steps"),
        irregular=table.get("irregular", bool, default=False),
    )
    table.close()
    epochs = record.time in ("epoch", "epoch-ms")
    words = ("loss",) if epochs else _WORDS
    names = [name for name in record.pattern.groupindex if name not in words]
    record = record._replace(numbers=numbers(record.pattern.pattern.decode(), names))
    if record.has("time") != bool(record.time):
        raise table.error("time", f"must say the form of the `time` group: {', '.join(CLOCKS)}.")
    if record.ranks != "one" and (record.lines > 1 or record.repeated != "refuse"):
        raise table.error("ranks", "can't be joined with `lines` or `repeated`: order is lost.")
    return record


def _rule(table: Table, records: tuple[Record, ...]) -> Rule:
    kind = table.choice("kind", KINDS)
    names = [record.name for record in records]
    record = records[names.index(table.choice("record", names, names[0]))]
    rule = Rule(
        name=table.need("name", str),
        kind=kind,
        record=record,
        field="time" if kind == "clock" else table.get("field", str, _FIELDS.get(kind, "seconds")),
        caution=table.get("caution", str, ""),
        tolerance=_share(table, 0.0),
        cross_check=table.get("cross_check", bool, default=True),
        **_meaning(table, kind),
        **_reduction(table, kind),
        **_window(table, kind),
    )
    table.close()
    _check_fields(table, rule)
    return rule


# Of what is printed to samples per second: units and products of batch sizes are within it.
_FACTOR = (1e-9, 1e9)


def _meaning(table: Table, kind: str) -> dict[str, Any]:
    """Read what the printed number stands for."""
    if kind == "clock":
        return {}
    factor = table.get("factor", float, 1.0)
    if not _FACTOR[0] <= factor <= _FACTOR[1]:
        low, high = _FACTOR
        raise table.error("factor", f"must be positive, {low:g} to {high:g}, not {factor:g}.")
    if kind in ("rate", "footer"):
        return {
            "factor": factor,
            "scope": table.choice("scope", SCOPES, "global"),
            "unit": table.choice("unit", UNITS, "samples"),
        }
    batch = table.choice("batch", ("global", "per-node", "per-gpu"), "global")
    return {"factor": factor, "batch": batch}


def _reduction(table: Table, kind: str) -> dict[str, Any]:
    """Read how several numbers become one."""
    if kind == "footer":
        return {"which": table.choice("which", ("first", "last", "only"), "only")}
    over_ranks = {"over_ranks": table.choice("over_ranks", ("median", "mean", "sum"), "median")}
    if kind in ("elapsed", "clock"):
        return over_ranks
    usual = "harmonic" if kind == "step-time" else "mean"
    average = table.choice("average", ("mean", "median", "harmonic"), usual)
    trim = table.at_least("trim", 0, 0)
    if trim and average == "median":
        raise table.error("trim", "changes no median.")
    return {**over_ranks, "average": average, "trim": trim}


def _window(table: Table, kind: str) -> dict[str, Any]:
    if kind == "footer":
        return {}
    return {"after": _bound(table, "after", "skip"), "until": _bound(table, "until", "iters")}


def _bound(table: Table, key: str, usual: str) -> Bound:
    if not isinstance(table.values.get(key), dict):
        return Bound("iteration", _position(table, key, usual))
    inner = table.table(key)
    by = "record" if inner.has("record") else "iteration"
    bound = Bound(by, _position(inner, by, usual))
    inner.close()
    return bound


def _position(table: Table, key: str, usual: str) -> int | str:
    if isinstance(table.values.get(key, ""), str):
        return table.choice(key, _PROTOCOL, usual)
    return table.at_least(key, 0, 0)


def _check_fields(table: Table, rule: Rule) -> None:
    """Refuse a rule that its record can't serve."""
    needs = [rule.field]
    by = {bound.by for bound in (rule.after, rule.until)} if rule.kind != "footer" else set()
    if "iteration" in by:
        needs.append("iteration")
    for field in needs:
        if not rule.record.has(field):
            message = f"{rule.record.name!r} has no group {field!r}, which this rule needs."
            hint = did_you_mean(field, rule.record.pattern.groupindex)
            raise table.error("record", message, hint)
    if "record" in by and rule.record.ranks != "one":
        raise table.error("after", "can't count records that several ranks print.")
    if rule.over_ranks == "sum" and (rule.kind != "rate" or rule.scope != "global"):
        raise table.error("over_ranks", "can only sum a rate of `global` scope.")


def _skip(table: Table) -> Skip:
    skip = Skip(contains=_contains(table), pattern=_pattern(table))
    table.close()
    for name in skip.pattern.groupindex:
        if name not in ("count", "total"):
            message = f"has a group {name!r}, which is neither `count` nor `total`."
            raise table.error("match", message)
    return skip


def _fact(table: Table) -> Fact:
    fact = Fact(
        contains=_contains(table),
        pattern=_pattern(table),
        values=tuple(table.mapping("values", str).items()),
        divide=table.at_least("divide", 1, 1),
        counts=table.choice("counts", ("", *COUNTED), ""),
        least=table.at_least("least", 1, 1),
    )
    table.close()
    counts = [name for name in fact.pattern.groupindex if name not in _TEXTS]
    fact = fact._replace(numbers=numbers(fact.pattern.pattern.decode(), counts))
    for name in fact.pattern.groupindex:
        if name not in FACTS:
            message = f"has a group {name!r}, which is no fact."
            raise table.error("match", message, did_you_mean(name, FACTS))
    if not fact.pattern.groupindex and not fact.counts:
        raise table.error("match", f"needs a named group: {', '.join(FACTS)}.")
    return fact

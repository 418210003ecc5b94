"""Reading one log by one rule: bytes in, one pass, no further than needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from hpcbert.logs.arithmetic import CannotReduceError, count_completed
from hpcbert.logs.crosscheck import CrossCheck, measure_last
from hpcbert.logs.fields import (
    FactValue,
    LogFacts,
    check_loss,
    is_copy,
    read_fields,
    record_lines,
    record_matches,
    show_text,
    whole_matches,
    whole_number,
)
from hpcbert.logs.grammar import Fact, Grammar, Record, Rule, Skip, find_reader
from hpcbert.logs.input_wait import find_input_notes, read_input_notes
from hpcbert.logs.lines import (
    BEGINNING,
    LINE,
    Line,
    NotALogError,
    checksum_beginning,
    cut_line,
    find_labelled_ranks,
    find_lines,
    first_line_end,
    has_text,
    rank_of,
    read_ends,
    read_pieces,
)
from hpcbert.logs.setting import END, LABELS, Setting, UnknownError, derive_packing, model_name
from hpcbert.logs.stamps import MeasuredSpan, measure_span
from hpcbert.logs.window import (
    CoverageCheck,
    Entry,
    RestartCheck,
    SkippedSteps,
    Track,
    make_collector,
)
from hpcbert.model import Note, Reason, Steps


class Reading(NamedTuple):
    """The result of one log by one rule.

    Attributes:
        throughput: Samples per second over all GPUs; None if there is a reason or a setting is
            missing.
        iteration: Iterations completed when the log, or the reading of it, ended.
        setting: What was known beforehand, with the log's own facts.
        missing: An unknown setting that a number would need; empty if none.
        facts: What the log states about itself, as far as it was read.
        foreign: Whether the log has no line of the framework at all.
        last: The last record of the rule, in the unit of its window's end.
        flags: Warnings about the number: `short-window` if it covers fewer iterations than
            the recipe requires.
        notes: The numbers behind a flag.
        unchecked: Those of LABELS that nothing in the log confirms.
        steps: The durations of its iterations, as far as the rule's records have them.
        beginning: As `lines.checksum_beginning` returns it; None if unknown.
        closed: Whether the log has a line that the program prints at the end of a run.
        assumed: Settings that lines suggest but do not state: name, value and reason.
    """

    throughput: float | None
    iteration: int = 0
    found: int = 0
    setting: Setting = Setting()
    missing: str = ""
    reasons: tuple[Reason, ...] = ()
    facts: tuple[tuple[str, int | str], ...] = ()
    foreign: bool = False
    last: int = 0
    flags: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    unchecked: tuple[str, ...] = ()
    steps: Steps | None = None
    beginning: int | None = None
    measured: MeasuredSpan = MeasuredSpan()
    closed: bool = False
    assumed: tuple[tuple[str, FactValue, str], ...] = ()

    @property
    def stated_facts(self) -> tuple[tuple[str, int | str], ...]:
        """The facts of the run, and the sizes of its samples, as (name, value)."""
        names = ("sequence_length", "packing", "predictions", "vocab_size")
        sizes = {name: getattr(self.setting, name) for name in names}
        known_sizes = {name: size for name, size in sizes.items() if size}
        return tuple({**known_sizes, **dict(self.facts)}.items())


def read(path: Path, grammar: Grammar, rule: Rule, setting: Setting) -> Reading:
    """Read a log as far as its rule and the gate need it.

    Never raises, whatever the path leads to.

    Args:
        setting: What is known beforehand; the log must agree with it.
    """
    if grammar.reader:
        reading: Reading = find_reader(grammar.reader)(path, setting)
        return reading
    scan = _Scan(grammar, rule, setting)
    try:
        scan.read(path)
    except NotALogError as error:
        return Reading(None, setting=setting, reasons=(Reason("no-log", f"{path.name} {error}"),))
    reading = scan.conclude()
    if reading.throughput is None:
        return reading
    notes = find_input_notes(*scan.log_ends) if scan.log_ends else read_input_notes(path)
    if not notes:
        return reading
    flags = (*reading.flags, *(note.flag for note in notes))
    return reading._replace(flags=flags, notes=(*reading.notes, *notes))


def read_to_end(path: Path, grammar: Grammar, rule: Rule, setting: Setting) -> Reading:
    """Read a log as `read` does, with a window that extends to the rule's last record.

    It takes two readings: only the end of a log says where it ends.
    """
    if rule.kind in {"footer", "custom"} or rule.until.at != "iters":
        return read(path, grammar, rule, setting)
    reading = read(path, grammar, rule, setting._replace(iters=END, reach=0))
    if reading.reasons and reading.reasons[0].code != "incomplete":
        return reading
    begin = rule.after.resolve(skip=setting.skip, iters=reading.last)
    if reading.last > begin:
        return read(path, grammar, rule, setting._replace(iters=reading.last))
    detail = f"the log ends at {rule.until.by} {reading.last}: no window begins after {begin}"
    return reading._replace(reasons=(Reason("incomplete", detail),), missing="")


class _CompleteError(Exception):
    """A record is past the window and the run's end: the rest of the log is not needed."""


class _Scan:
    """The state of one reading.

    Once the collector is done and the run's last iteration was seen, the reading is complete. It is
    over when a record is past that end, or when a problem means that there can't be a number.
    """

    def __init__(self, grammar: Grammar, rule: Rule, setting: Setting) -> None:
        self.grammar = grammar
        self.rule = rule
        self.setting = setting
        self.iteration = 0
        self.rehearsal = False
        self.foreign = True
        self.closed = False
        self._begun = False
        self.facts = LogFacts()
        self.problem: Reason | None = None
        # A setting without which iterations can't be counted.
        self._unknown = ""
        # A record of the rule came without the field that the rule reads.
        self._bare = False
        self.collector = make_collector(rule, setting)
        # Records of several lines that begin at the end of the last piece.
        self._held: list[tuple[Record, Line]] = []
        self._cross_check = CrossCheck(grammar, self.collector)
        self._coverage = CoverageCheck(grammar, rule)
        # By record: the previous one, to distinguish a second copy of it from a step of its own.
        self._last: dict[str, tuple[float | None, dict[str, bytes]]] = {}
        # By record: how many of the next ones may be slow without contradicting the others.
        self._paused: dict[str, int] = {}
        self._skipped = SkippedSteps()
        self._restart = RestartCheck(grammar)
        self._beginning = b""
        # The log's head and tail, as `read_ends` returns them, if they were needed.
        self.log_ends: tuple[bytes, bytes] | None = None
        # Tokens in a sample, of the window's records that print it.
        self._lengths: set[int] = set()
        # The ranks that mpirun's labels name.
        self._ranks: set[bytes] = set()
        # The line of the current record, and those of the window's ends.
        self._line = b""
        self._ends = b"", b""

    @property
    def _counting(self) -> Setting:
        """The setting by which records of samples or tokens count iterations."""
        setting = self.setting.settled(self.facts.values)[0]
        if setting.sequence_length is None and self.grammar.sequence_length:
            setting = setting._replace(sequence_length=self.grammar.sequence_length)
        return setting

    @property
    def _inside(self) -> bool:
        """Whether the window is open; a closing line's window is the whole run."""
        is_open = self.collector.begun and not self.collector.done
        return is_open or self.rule.kind == "footer"

    @property
    def _complete(self) -> bool:
        """Whether the rule's records, and the last iteration of the run, have been seen."""
        return self.collector.done and self.iteration >= self.setting.reach

    def read(self, path: Path) -> None:
        """Take a log, and the files of settings beside it, as far as needed.

        Raises:
            NotALogError: It can't be read.
        """
        for name in self.grammar.settings:
            file = path.with_name(name)
            if file != path:
                with suppress(NotALogError), closing(read_pieces(file)) as pieces:
                    self.take(pieces)
        with closing(read_pieces(path)) as pieces:
            noted_pieces = self._note_beginning(pieces)
            self.take(noted_pieces)
            # The rest of the log's beginning, to compare it with other logs'.
            with suppress(NotALogError):
                while len(self._beginning) < BEGINNING and next(noted_pieces, b""):
                    pass
        if not self.problem:
            self._read_closing(path)

    def _note_beginning(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for data in pieces:
            if len(self._beginning) < BEGINNING:
                self._beginning += data[:BEGINNING]
            yield data

    def take(self, pieces: Iterable[bytes]) -> None:
        """Take pieces until the result is known, or until nothing can become a number."""
        try:
            if not self.problem:
                self._take_pieces(pieces)
        except CannotReduceError as error:
            self.problem = error.reason
        except UnknownError as error:
            self._unknown = str(error)
        except _CompleteError:
            pass

    def _take_pieces(self, pieces: Iterable[bytes]) -> None:
        """Take pieces.

        The loss of the last iteration may be printed after its record: once complete, reading
        continues to the next iteration, but no further than the next piece.
        """
        is_last = False
        for data in pieces:
            self._read_piece(data)
            if is_last:
                return
            is_last = self._complete
        # The log ends inside a record of several lines: the part that is there may be all of it.
        for record, begun_line in self._held:
            self._record(record, begun_line, first_line_end(begun_line.text))

    def _read_piece(self, data: bytes) -> None:
        # One search for all texts: the text that was found decides how to read its line.
        grammar = self.grammar
        records = grammar.records
        self._ranks |= find_labelled_ranks(data)
        self.rehearsal = self.rehearsal or has_text(data, grammar.rehearsal)
        self._note_end(data)
        held_records, self._held = self._held, []
        for record, begun_line in held_records:
            # Continue with the record at the end of the last piece.
            joined = begun_line.text + b"\n" + data[: record.lines * LINE]
            self._record_at(record, joined, 0, first_line_end(joined))
        current_start, was_inside = -1, False
        for start, index, _, end in find_lines(data, grammar.texts):
            if start != current_start and grammar.skipped:
                # A line about skipped steps concerns those before its own record.
                current_start, was_inside = start, self._inside
            if index < len(records):
                self._record_at(records[index], data, start, end)
            else:
                self._aside(index - len(records), cut_line(data, start, end)[0], inside=was_inside)

    def _note_end(self, data: bytes) -> None:
        # A thousand ranks may print more than the log's last bytes after the program's own end.
        self.closed = self.closed or any(has_text(data, text) for text in self.grammar.ends)

    def _aside(self, index: int, line: Line, *, inside: bool) -> None:
        """Take a line with a fact, skipped steps, another program's text or a pause."""
        kinds = self.grammar.asides
        kind = kinds[index] if index < len(kinds) else None
        if isinstance(kind, Fact):
            self._restart.add(kind, line, self.iteration, inside=self._inside)
            self.facts.add(kind, line)
        elif isinstance(kind, Skip):
            self._skipped.add(kind, line, inside=inside)
        elif kind is None:
            self._pause()
        elif matches := whole_matches(kind.match, line):
            text = show_text(matches[0][0])
            detail = f"{text!r} is a line of {kind.program}, which is not read"
            raise CannotReduceError("format", detail)

    def _pause(self) -> None:
        """Note that the next record may be slow, and the first one after that.

        Two: a program may write its checkpoint before or after it reads the clock.
        """
        self._paused = {record.name: 2 for record in self.grammar.records}

    def _record_at(self, record: Record, data: bytes, start: int, end: int) -> None:
        line, count = cut_line(data, start, end, record.lines, record.contains)
        if count < record.lines:
            self._held.append((record, line))
        else:
            self._record(record, line, end - start)

    def _record(self, record: Record, line: Line, first_length: int) -> None:
        if record.ignore and any(text in line.text for text in record.ignore):
            return
        matches = whole_matches(record.match, line)
        pauses = self.grammar.pauses
        if pauses and matches and any(text in line.text for text in pauses):
            self._pause()
        if record.lines > 1:
            # The lines that follow are read again, each as the first of its own record.
            matches = [match for match in matches[:1] if match.start() <= first_length]
        self._line = line.text
        # Launchers label lines with a rank; if one rank prints, the label means nothing.
        rank = None if record.ranks == "one" else rank_of(line.text)
        for match in matches:
            self._match(record, match, rank)

    def _match(self, record: Record, match: re.Match[bytes], rank: int | None) -> None:
        self.foreign = False
        fields = read_fields(match, record.numbers)
        iteration: float | None = None
        if "iteration" in fields:
            # From here on iterations are completed ones, whatever the program counts.
            setting = self.setting if record.counts_steps else self._counting
            iteration = count_completed(record, whole_number(fields["iteration"]), setting)
        elif record.has("iteration"):
            # A run has one without it at its beginning only.
            if self._begun:
                raise CannotReduceError("window", "a run begins again: the log has more than one")
            self._begun = True
        # The rule's own record, or a later iteration's: another record of the last iteration,
        # perhaps with its loss, may follow.
        completed = int(iteration or 0)
        if self._complete and (record is self.rule.record or self.iteration < completed):
            raise _CompleteError
        self.iteration = max(self.iteration, completed)
        check_loss(fields, self.iteration)
        self._take(record, iteration, fields, rank)

    def _take(
        self, record: Record, iteration: float | None, fields: dict[str, bytes], rank: int | None
    ) -> None:
        """Take a record, unless it is a second copy, or a torn one, of a counted step."""
        if record.repeated == "count":
            previous_record = self._last.get(record.name)
            self._last[record.name] = (iteration, fields)
            if previous_record and is_copy(previous_record, (iteration, fields)):
                return
        was_inside, pauses = self._inside, self._paused.get(record.name, 0)
        self._paused[record.name] = max(0, pauses - 1)
        text = fields.get(self.rule.field)
        is_own = record is self.rule.record
        self._bare = self._bare or (is_own and text is None)
        if is_own and text is not None:
            entry = self.collector.track.add(iteration, text, paused=pauses > 0)
            # After the window, the run goes on to its own end.
            if not self.collector.done:
                self._collect(entry, whole_number(fields["rank"]) if "rank" in fields else rank)
        # The record that the window begins after may be of its first iterations, too.
        if "sequence_length" in fields and (was_inside or self._inside):
            self._lengths.add(whole_number(fields["sequence_length"]))
        self._cross_check.add(record, iteration, fields, paused=pauses > 0)
        self._coverage.add(record, iteration)

    def _read_closing(self, path: Path) -> None:
        """Take the closing lines that the reading did not reach, to compare the number with them.

        Raises:
            NotALogError: The log can't be read any more.
        """
        footers = (rule for rule in self.grammar.rules if rule.kind == "footer")
        rules = tuple(dict.fromkeys((*footers, *self._cross_check.closing)))
        if not (rules or self.grammar.ends):
            return
        self.log_ends = read_ends(path)
        tail = self.log_ends[1]
        self._note_end(tail)
        rules = tuple(rule for rule in rules if has_text(tail, rule.record.contains))
        if not rules:
            return
        starts = [start for start, _ in record_lines(tail, self.rule.record)]
        last_record_start = max(starts, default=0)
        for rule in rules:
            line_starts = []
            for start, line in record_lines(tail, rule.record):
                for match in whole_matches(rule.record.match, line):
                    fields = read_fields(match, rule.record.numbers)
                    line_starts += [start] if rule.field in fields else []
                    if rule.field in fields and rule in self._cross_check.closing:
                        self._cross_check.close(rule, fields[rule.field])
            # A rate that is also printed between records does not mean that the run has ended.
            if line_starts and not self.grammar.ends:
                self.closed = self.closed or min(line_starts) >= last_record_start

    def _collect(self, entry: Entry, rank: int | None) -> None:
        if len(self.collector.track.entries) == 1:
            self.collector.begin(self.setting.settled(self.facts.values)[0])
        self.collector.add(entry, rank)
        if self.collector.found:
            self._ends = self._ends[0] or self._line, self._line
        elif self.rule.kind == "clock":
            # A clock's window begins at the record before its first one.
            self._ends = self._line, b""

    def conclude(self) -> Reading:
        """Return the result of the pieces that were taken."""
        if len(self._lengths) == 1:
            (self.facts.values["sequence_length"],) = self._lengths
        setting, reasons = self._settled(self.setting)
        assumed = self._list_assumed(setting)
        setting = setting.settled({name: value for name, value, _ in assumed})[0]
        throughput, missing = None, ""
        if self.rehearsal:
            reasons = (Reason("rehearsal", "the log is a replayed sample; nothing was trained"),)
        elif self.problem and not (reasons and self.problem.code == "rule"):
            reasons = (self.problem,)
        elif self._unknown:
            missing = self._unknown
        elif not reasons:
            throughput, missing, reasons = self._reduce(setting)
        reading = Reading(
            throughput=None,
            iteration=self.iteration,
            found=self.collector.found,
            setting=setting,
            missing=missing,
            reasons=reasons,
            facts=tuple(self.facts.values.items()),
            foreign=self.foreign,
            last=self.collector.last,
            beginning=checksum_beginning(self._beginning),
            closed=self.closed,
            assumed=assumed,
        )
        if reasons or not throughput:
            return reading
        first_line, last_line = self._ends
        first_line = b"" if self.rule.kind == "footer" else first_line
        flags, notes = self._list_flags(throughput, setting)
        return reading._replace(
            throughput=throughput,
            flags=flags,
            notes=notes,
            unchecked=self._unchecked(),
            steps=self._cross_check.steps(setting),
            measured=measure_span(first_line, last_line, self.rule.record, self._beginning),
        )

    def _list_flags(
        self, throughput: float, setting: Setting
    ) -> tuple[tuple[str, ...], tuple[Note, ...]]:
        notes = []
        if unevenness := self._cross_check.unevenness(throughput, setting):
            notes.append(unevenness)
        rate_count = setting.rate_window or self.rule.rolling
        if self.rule.rolling and rate_count > 1:
            notes.append(Note("rolling", f"each rate is the mean of the last {rate_count} records"))
        flags = [note.flag for note in notes]
        if self._counted < self.grammar.shortest or self._is_short(throughput, setting):
            flags.append("short-window")
        if self._skipped.count or self.collector.repeats:
            flags.append("overflow-steps")
        return tuple(flags), tuple(notes)

    def _list_assumed(self, setting: Setting) -> tuple[tuple[str, FactValue, str], ...]:
        """Return what lines suggest and nothing states; of several kinds the grammar's first."""
        assumed: dict[str, tuple[str, FactValue, str]] = {}
        for fact in self.grammar.facts:
            for name, value in self.facts.suggested.get(fact, {}).items():
                if getattr(setting, name) is None:
                    assumed.setdefault(name, (name, value, fact.assumed))
        return tuple(assumed.values())

    def _reduce(self, setting: Setting) -> tuple[float | None, str, tuple[Reason, ...]]:
        throughput, reach = None, setting.reach
        bare = Reason("rule", f"lines have no {self.rule.field}, which {self.rule.name} reads")
        # First: a log that is cut off is incomplete, whatever else its window lacks.
        has_iterations = any(record.has("iteration") for record in self.grammar.records)
        if has_iterations and self.iteration < reach:
            detail = f"the log ends at iteration {self.iteration} of {reach}"
            return None, "", (bare if self._bare else Reason("incomplete", detail),)
        try:
            if not self.collector.track.entries:
                self.collector.begin(setting)
            throughput = self.collector.reduce(setting)
            # The number may be that of a batch with packed samples.
            is_of_batch = self.rule.kind in ("clock", "step-time")
            is_stated = setting.global_batch_size is not None or setting.packing is not None
            if is_of_batch and self.grammar.packing > 1 and not is_stated:
                return None, "packing", ()
            return throughput, "", self._doubts(throughput, setting)
        except CannotReduceError as error:
            return None, "", (bare if self._bare else error.reason,)
        except UnknownError as error:
            return throughput, str(error), ()

    def _unchecked(self) -> tuple[str, ...]:
        """Return the labels that the log does not state and would not contradict if wrong."""
        facts, setting = self.facts.with_counts(self.setting), self._settled(self.setting)[0]
        if len(self._ranks) == setting.gpus:
            facts["gpus"] = setting.gpus
        stated_setting = Setting().settled(facts)[0]
        return tuple(
            label
            for label, name in LABELS.items()
            if getattr(stated_setting, name) is None
            and (label != "model" or not model_name(stated_setting))
            and (label != "sequence_length" or setting.sequence_length)
            and (label != "nodes" or (setting.gpus or 0) > 1)
            and (label in {"model", "precision"} or self._allows_other(label, setting))
        )

    def _allows_other(self, label: str, assumed_setting: Setting) -> bool:
        """Return whether the log would also agree with another value of a label."""
        if getattr(assumed_setting, LABELS[label]) is None:
            return True  # It is assumed.
        base_setting, name = self.setting, LABELS[label]
        if getattr(base_setting, name) is None:
            base_setting = base_setting._replace(**{name: getattr(assumed_setting, name)})
        for other_setting in base_setting.with_other(label):
            setting, reasons = self._settled(other_setting)
            try:
                if reasons:
                    continue
                # Coverage and restarts do not depend on what is tried here.
                throughput = self.collector.reduce(setting)
                if not self._cross_check.reasons(throughput, setting):
                    return True
            except (CannotReduceError, UnknownError):
                continue  # The log knows better.
        return False

    def _settled(self, setting: Setting) -> tuple[Setting, tuple[Reason, ...]]:
        """Return a setting with everything that the log states, and their contradictions."""
        try:
            facts = self.facts.with_counts(setting)
        except CannotReduceError as error:
            setting, contradictions = setting.settled(self.facts.values)
            detail = "; ".join((error.reason.detail, *contradictions))
            return setting, (Reason(error.reason.code, detail),)
        if len(self._lengths) > 1:
            lengths = f"samples have {min(self._lengths)} to {max(self._lengths)} tokens"
            detail = f"{lengths} inside the window: measure where they are equal"
            return setting, (Reason("config", detail),)
        # Only if the number does not depend on it: elsewhere it must be known, not guessed.
        is_independent = self.rule.kind == "footer" or self.rule.record.counts == "samples"
        if is_independent and setting.packing is None:
            setting = setting._replace(packing=derive_packing(facts, self.grammar.packing))
        expected, fixed = setting.accumulation, self.grammar.accumulation
        setting, contradictions = setting.settled(facts)
        disagreements = [*contradictions]
        states_step = "accumulation" in facts or "global_batch_size" in facts
        if fixed and expected not in (None, fixed) and not states_step:
            disagreements.append(
                f"the program has accumulation = {fixed} only, expected {expected}"
            )
        count, gpus, nodes = len(self._ranks), setting.gpus, setting.nodes
        # Ranks may be missing from a log, or from the part of it that was read.
        has_all_ranks = count > 1 and max(map(int, self._ranks)) == count - 1
        are_nodes_unknown = nodes is None and count < (gpus or 0)
        if has_all_ranks and gpus and count not in {gpus, nodes} and not are_nodes_unknown:
            disagreements.append(
                f"mpirun labels {count} ranks, expected one for each of {gpus} GPUs or each node"
            )
        if setting.sequence_length is None and self.grammar.sequence_length:
            setting = setting._replace(sequence_length=self.grammar.sequence_length)
        if setting.accumulation is None and fixed:
            setting = setting._replace(accumulation=fixed)
        if not disagreements:
            return setting, ()
        if packing_factor := derive_packing(setting._asdict(), self.grammar.packing):
            disagreements.append(f"if samples are packed, use --set packing={packing_factor}")
        return setting, (Reason("config", "; ".join(disagreements)),)

    def _doubts(self, throughput: float, setting: Setting) -> tuple[Reason, ...]:
        self._coverage.check(setting)
        self._restart.check()
        return self._cross_check.reasons(throughput, setting)

    def _is_short(self, throughput: float, setting: Setting) -> bool:
        """Return whether the GPUs' window takes less time than the recipe wants."""
        if self.facts.values.get("device_kind") != "gpu":
            return False
        try:
            samples = self._counted * setting.batch("global", micro=False)
        except UnknownError:
            return False
        return samples / throughput < self.grammar.shortest_seconds

    @property
    def _counted(self) -> int:
        """Return the iterations that the number covers: for a closing line, the whole run."""
        if self.collector.covered:
            return self.collector.covered
        if not self.iteration:
            return self.grammar.shortest
        reach = self.setting.iters - self.setting.skip if self.setting.reach else self.iteration
        return min(self.iteration, reach)


class Progress(NamedTuple):
    """The progress of a run by the last lines of its log; None if they don't say.

    Attributes:
        throughput: Samples per second over all GPUs, of the last record or two: to watch, not a
            result.
        notes: Flags that its input sets so far, with the numbers behind them.
    """

    iteration: int | None = None
    throughput: float | None = None
    notes: tuple[Note, ...] = ()


def read_progress(path: Path, grammar: Grammar) -> Progress:
    """Read the end of a log that may still grow, and its beginning for what it says about itself.

    Never raises, whatever the path leads to.
    """
    # A rule with a rate in each record needs the last one; a clock needs two.
    rules = sorted(grammar.rules, key=lambda rule: rule.kind == "clock")
    rule = next((rule for rule in rules if rule.kind not in ("footer", "custom")), None)
    if rule is None:
        return Progress()
    try:
        head, tail = read_ends(path)
    except NotALogError:
        return Progress()
    head_scan = _Scan(grammar, rule, Setting())
    head_scan.take([head])
    setting = head_scan.conclude().setting
    track = Track(rule)
    iteration: float | None = None
    for record in grammar.records:
        for match in record_matches(tail, record):
            fields = read_fields(match, ())
            if "iteration" in fields:
                iteration = None
                with suppress(CannotReduceError, UnknownError):
                    number = whole_number(fields["iteration"])
                    iteration = count_completed(record, number, setting)
            if record is rule.record and rule.field in fields:
                track.add(iteration, fields[rule.field], paused=False)
    return Progress(
        iteration=None if iteration is None else int(iteration),
        throughput=measure_last(track, setting),
        notes=find_input_notes(head, tail),
    )


# --- Which framework's log a file is, and where its records are ----------------------------------

# A framework's lines appear near the beginning of its log.
_MAX_BYTES = 1 << 23
# A framework with similar lines matches fewer lines, and rarely as many.
_ENOUGH_RECORDS = 20
_FAR_FEWER = 4
_TEXT = frozenset((*b"\t\n\r\x1b\b\f", *range(0x20, 0x100)))
_BINARY = 0.1


def find_frameworks(
    path: Path, grammars: Mapping[str, Grammar], assumed: str = ""
) -> tuple[str, ...]:
    """Return the frameworks whose lines a log has, those with the most of them.

    Never raises, whatever the path leads to.

    Args:
        assumed: The assumed framework; if it has about as many lines, there are no others.
    """
    counts = dict.fromkeys(grammars, 0)
    # To say what a log looks like, similar records are enough.
    unsigned = {name for name, grammar in grammars.items() if grammar.signs and not assumed}
    excluded: set[str] = set()
    bytes_read = 0
    with suppress(NotALogError), closing(read_pieces(path)) as pieces:
        for piece in pieces:
            for name, grammar in grammars.items():
                count = counts[name] + _count_records(piece, grammar)
                counts[name] = min(count, _ENOUGH_RECORDS)
                if any(sign in piece for sign in grammar.signs):
                    unsigned.discard(name)
                texts = tuple(other.contains for other in grammar.others) if not assumed else ()
                for start, index, _, end in find_lines(piece, texts):
                    if whole_matches(grammar.others[index].match, cut_line(piece, start, end)[0]):
                        excluded.add(name)
            bytes_read += len(piece)
            if bytes_read > _MAX_BYTES or max(counts.values(), default=0) == _ENOUGH_RECORDS:
                break
    counts |= dict.fromkeys(unsigned | excluded, 0)
    highest_count = max(counts.values(), default=0)
    if counts.get(assumed, 0) * _FAR_FEWER >= highest_count:
        return ()
    return tuple(name for name, count in counts.items() if highest_count and count == highest_count)


def _count_records(piece: bytes, grammar: Grammar) -> int:
    """Return the number of a grammar's records in a piece of a log, counted up to a limit."""
    count = 0
    for record in grammar.records:
        for _, line in record_lines(piece, record):
            is_ignored = any(text in line.text for text in record.ignore)
            count += bool(not is_ignored and whole_matches(record.match, line))
            if count >= _ENOUGH_RECORDS:
                return count
    return count


def explain_unread(path: Path, framework: str, similar_frameworks: tuple[str, ...]) -> Reason:
    """Return the reason for a log with few lines of a framework, or none."""
    message = f"{path.name} has no line of {framework}"
    if similar_frameworks:
        names = " or ".join(similar_frameworks)
        return Reason("format", f"{message}, but looks like a log of {names}")
    detail = f"{message}: the run ended before the first, or it is another format"
    return find_obstacle(path) or Reason("incomplete", detail)


def find_obstacle(path: Path) -> Reason | None:
    """Return why a file can't be the log of any program; None if it is a text."""
    try:
        head = read_ends(path)[0]
        is_empty = path.stat().st_size == 0
    except (OSError, NotALogError) as error:
        return Reason("no-log", f"{path.name} {error}")
    if is_empty:
        return Reason("incomplete", f"{path.name} is empty")
    # A file of only zero bytes has nothing left to read.
    if not head or sum(byte not in _TEXT for byte in head) > _BINARY * len(head):
        detail = f"{path.name} is not a text file; if it is compressed, unpack it first"
        return Reason("format", detail)
    return None


def find_places(path: Path, record: Record, setting: Setting) -> list[int]:
    """Return the completed iterations at a log's records of one kind, in order."""
    places: set[int] = set()
    with suppress(NotALogError), closing(read_pieces(path)) as pieces:
        for piece in pieces:
            for match in record_matches(piece, record):
                if not record.has("iteration"):
                    places.add((len(places) + 1) * (record.every or 1))
                elif match["iteration"] is not None:
                    with suppress(CannotReduceError, UnknownError):
                        number = whole_number(match["iteration"])
                        places.add(int(count_completed(record, number, setting)))
    return sorted(places)

"""The sample log of each recipe gives what the recipe says, and nothing done to it another number.

Launchers, terminals, full disks, repeated and foreign lines, midnight: a variant may still give the
sample's number, or a reason.
"""

import re
from collections import Counter
from datetime import datetime, timedelta, timezone
from functools import cache
from statistics import fmean, harmonic_mean, median
from typing import Any, NamedTuple

import pytest

from hpcbert.logs.grammar import Record, Rule
from hpcbert.logs.scan import Reading, read
from tests.kit.cases import read_constant
from tests.kit.needs import not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import Reader, grammar, load, sample, setting

_SAME = 1e-9
# A number may move by what one step of a hundred does to it, and by no more.
_SMALL = 0.02
# A unit in a record: its words before the number, or right after it.
_UNIT = re.compile(
    r"(?i)(?:samples?|seq\w*|sentences|examples?|exp|steps?|bandwidth)\S{0,3}[ /_]*(?:per)?[ /_]*s(?:ec|\b|')"
    r"|\(ms\\?\)|\bms(?:/|,)|\bbandwidth\b"
)
# Programs that print a number without a unit: the pattern then has all that may follow it.
_BARE = {("oneflow", "step"), ("oneflow-models", "step"), ("mlperf-bert", "tracked")}
# What upstreams print of an evaluation, in the words of their training lines.
EVALUATIONS: list[str] = read_constant(__file__, "EVALUATIONS")
# What a program might print after a number, or a later version of it: a space or none before it.
UNITS: list[str] = read_constant(__file__, "UNITS")
# Lines as launchers and terminals show them.
LINES: dict[str, str] = read_constant(__file__, "LINES")
# What a request or a path says of a run, each with another value than any sample's.
LABELS: dict[str, int | str] = read_constant(__file__, "LABELS")
# Forms of times that are numbers, with their units in a second; and of the others.
_SCALES = {"epoch": 1.0, "epoch-ms": 1000.0, "elapsed": 1.0, "elapsed-hours": 1 / 3600}
_FORMS = {
    "date-time": "%Y-%m-%d %H:%M:%S",
    "month-day": "%m%d %H:%M:%S",
    "time-of-day": "%H:%M:%S",
    "ctime": "%b %d %H:%M:%S",
}


class LogEntry(NamedTuple):
    """A line of the sample that is a record."""

    record: Record
    match: re.Match[bytes]

    def get(self, name: str) -> bytes | None:
        return self.match.groupdict().get(name)

    @property
    def iterations(self) -> int | None:
        text = self.get("iteration")
        return None if text is None else int(text) + 1 - self.record.first


class Sample(NamedTuple):
    """A recipe's sample: its records in the order of the log, and those inside the window."""

    data: bytes
    skip: int
    iters: int
    entries: list[LogEntry]

    def of_rule(self, rule: Rule) -> list[LogEntry]:
        """Return the rule's records inside the window, its middle first.

        A rule that counts lines rather than iterations has its window after the lines it skips.
        """
        entries = [entry for entry in self.entries if entry.record is rule.record]
        if rule.kind != "footer" and rule.after.by == "record":
            entries = entries[rule.after.resolve(skip=self.skip, iters=self.iters) :]
        return self.select(entries)

    @property
    def inside(self) -> list[LogEntry]:
        return self.select(self.entries)

    def select(self, entries: list[LogEntry]) -> list[LogEntry]:
        inside = [entry for entry in entries if self.skip < (entry.iterations or 0) < self.iters]
        half = len(inside) // 2
        return inside[half:] + inside[:half]

    def find_line(self, entry: LogEntry) -> tuple[int, int]:
        """Return where a record's line begins, and where the line after it does."""
        start = self.data.rfind(b"\n", 0, entry.match.start()) + 1
        end = self.data.find(b"\n", entry.match.end())
        return start, len(self.data) if end < 0 else end + 1

    def replace(self, entry: LogEntry, name: str, text: bytes) -> bytes:
        start, end = entry.match.span(name)
        return self.data[:start] + text + self.data[end:]


@cache
def take(name: str) -> Sample:
    data, log, settings = sample(name), grammar(name), setting(name)
    entries = [
        LogEntry(record, match)
        for record in log.records
        for match in record.match.finditer(data)
        if not any(text in match[0] for text in record.ignore)
    ]
    entries.sort(key=lambda entry: entry.match.start())
    return Sample(data, settings.skip, settings.iters, entries)


@cache
def list_rules(name: str) -> list[tuple[Rule, float]]:
    path, log = TEMPLATES / name / "sample.log", grammar(name)
    values = [(rule, read(path, log, rule, setting(name)).throughput) for rule in log.rules]
    return [(rule, value) for rule, value in values if value is not None]


def check(reading: Reading, value: float, tolerance: float = _SAME) -> None:
    """Check that a reading is the right number or none with a reason: any other number is a lie."""
    if reading.throughput is None:
        assert reading.reasons or reading.missing
    else:
        assert reading.throughput == pytest.approx(value, rel=tolerance), reading


def check_steps(reading: Reading, rule: Rule) -> None:
    """Check that the number follows from the times of the steps."""
    steps = reading.steps
    if steps is None:  # Closing lines tell of no step.
        assert rule.kind in ("footer", "custom")
        return
    assert len(steps.iterations) == len(steps.seconds)
    assert sorted(steps.iterations) == list(steps.iterations)
    assert steps.iterations[-1] == steps.until
    batch = reading.setting.batch("global", micro=rule.record.counts == "micro-batches")
    rates = [batch / seconds for seconds in steps.measured]
    middle = {"median": median, "harmonic": harmonic_mean}.get(rule.average, fmean)(rates)
    if rule.kind in {"clock", "elapsed"}:
        middle = harmonic_mean(rates)
    assert middle == pytest.approx(reading.throughput, rel=0.02)


def add_labels(sample: Sample) -> bytes:
    """Return the sample as `srun -l` prints it, each rank's records under its number."""
    ranks, counts = {}, Counter[tuple[str, int | None]]()
    for entry in sample.entries:
        key = entry.record.name, entry.iterations
        ranks[sample.find_line(entry)[0]] = counts[key] if entry.record.ranks != "one" else 0
        counts[key] += 1
    labelled, at = [], 0
    for line in sample.data.splitlines(keepends=True):
        labelled.append(b" %2d: " % ranks.get(at, 0) + line)
        at += len(line)
    return b"".join(labelled)


def split_line(line: bytes) -> bytes:
    """Return a line as `srun -l` prints it: 1,024 bytes, then others, then the rest."""
    parts = [line[at : at + 1024] for at in range(0, len(line), 1024)] or [b""]
    return b"\n 1: of another rank\n".join(b" 0: " + part for part in parts) + b"\n"


def delay_stamps(sample: Sample, first: LogEntry, delay: timedelta) -> bytes:
    """Return the sample with the stamps of one record and all that follow it set off."""
    data = sample.data
    for entry in reversed(sample.entries):
        text = entry.get("time")
        if not text or entry.match.start() < first.match.start():
            continue
        if scale := _SCALES.get(entry.record.time):
            seconds, point, fraction = text.partition(b".")
            shifted = b"%d" % int(int(seconds) + delay.total_seconds() * scale) + point + fraction
        else:
            shifted = format_stamp(entry, parse_stamp(entry) + delay)
        data = data[: entry.match.start("time")] + shifted + data[entry.match.end("time") :]
    return data


def parse_stamp(entry: LogEntry) -> datetime:
    text = entry.match["time"].decode().replace("T", " ").replace(",", ".")
    stamp, _, fraction = text.partition(".")
    form = _FORMS[entry.record.time]
    if entry.record.time == "ctime":
        stamp, form, fraction = text[-20:], f"{form} %Y", ""
    elif "%Y" not in form:
        stamp, form = f"2023 {stamp}", f"%Y {form}"
    moment = datetime.strptime(stamp, form).replace(tzinfo=timezone.utc)
    return moment + timedelta(microseconds=int(fraction.ljust(6, "0")[:6] or 0))


def format_stamp(entry: LogEntry, moment: datetime) -> bytes:
    text = entry.match["time"].decode()
    if entry.record.time == "ctime":
        return moment.strftime("%a %b %d %H:%M:%S %Y").encode()[-len(text) :]
    written = moment.strftime(_FORMS[entry.record.time])
    written = written.replace(" ", "T") if "T" in text else written
    mark = "," if "," in text else "."
    _, _, fraction = text.replace(",", ".").partition(".")
    digits = f"{moment.microsecond:06d}"[: len(fraction)]
    return (written + (mark + digits if fraction else "")).encode()


def test_the_sample_gives_what_the_recipe_declares(name, tmp_path):
    """A bandwidth is told, and is no throughput; each number is read with its unit."""
    recipe, rules = load(name), grammar(name).rules
    declared = dict(recipe.sample.throughput) if recipe.sample else {}
    is_bandwidth = all(rule.unit == "GB/s" for rule in rules)
    assert bool(list_rules(name)) != is_bandwidth
    assert is_bandwidth or not declared or rules[0].name in declared
    for rule in rules:
        reading = Reader(name, tmp_path).read(sample(name), rule.name)
        if rule.name in declared:
            assert reading.throughput == pytest.approx(declared[rule.name], rel=5e-5), reading
            assert not reading.reasons
            assert "short-window" not in reading.flags
            check_steps(reading, rule)
        elif declared or is_bandwidth:
            assert reading.throughput is None, f"{rule.name} gives {reading.throughput}, undeclared"
            assert (rule.unit == "GB/s") == ("GB/s" in str(reading.reasons[0]))
        if rule.field != "time" and rule.kind != "custom" and rule.unit != "GB/s":
            record = rule.record
            text = record.contains.decode() + " " + record.match.pattern.decode()
            assert bool(_UNIT.search(text)) != ((name, record.name) in _BARE), text
        wide = rule.tolerance > grammar(name).tolerance
        assert not wide or rule.side != "both", "every wide tolerance has its side"


def test_a_log_that_is_cut_or_printed_twice_gives_no_other_number(name, tmp_path):
    """Cut at lines' ends, and within the fields of records; twice: by two runs, or by two ranks."""
    base, data = take(name), sample(name)
    ends, lag = [match.end() for match in re.finditer(rb"\n", data)], 3
    many = max(2, min(10, 200_000 // len(data)))  # Long samples take longer to read.
    cuts = ends[:: max(1, len(ends) // many)] + ends[-many // 3 :]
    for entry in base.entries[:: max(1, len(base.entries) * 6 // many)] + base.entries[-1:]:
        for start, end in map(entry.match.span, entry.match.groupdict()):
            cuts += [start + 1, end - 1, end, end + 1]
    lines = data.splitlines(keepends=True)
    late = zip(lines + [b""] * lag, [b""] * lag + lines, strict=True)
    twice = [data * 2, b"".join(line * 2 for line in lines)]
    twice += [b"".join(b"0: " + line + b"1: " + line for line in lines)]
    twice += [b"".join(line + late_line for line, late_line in late)]
    for rule, value in list_rules(name):
        for text in [*(data[:at] for at in cuts), *twice]:
            check(Reader(name, tmp_path).read(text, rule.name), value)


def test_what_launchers_and_terminals_do_to_a_log_gives_no_other_number(name, tmp_path):
    """What every cluster does gives the same one: `docker run -t` ends lines as terminals do."""
    base, data, ends = take(name), sample(name), (b"\n", b"\r\n", b"\r\r\n")
    bar = b"Iteration:  61%|######    | 703/1148 [02:05<01:20,  5.53it/s]"
    lines, glued = data.split(b"\n")[:-1], data
    for start in sorted({base.find_line(entry)[0] for entry in base.entries}, reverse=True):
        glued = glued[:start] + bar + b"\0" + glued[start:]
    any_of = [data.rstrip(b"\n"), data.replace(b"\n", b"\r"), data + b"\0" * 4096]
    any_of += [glued.replace(b"\0", b""), glued.replace(b"\0", b"\r")]
    any_of += [b"".join(split_line(line + b" " + b"x" * 1100) for line in lines)]
    labelled, split = add_labels(base), [split_line(b"x" * 1000 + b" " + line) for line in lines]
    shown = {key: b"".join(form.encode() % line for line in lines) for key, form in LINES.items()}
    others = [shown.pop(key) for key in ("dated labels", "labels of pdsh", "labels of mpirun")]
    mixed = b"".join(line + ends[n % 3] for n, line in enumerate(lines))
    for rule, value in list_rules(name):
        read_log = Reader(name, tmp_path).read
        for text in [*any_of, *others[:2]]:
            check(read_log(text, rule.name), value)
        for text in [*shown.values(), labelled, mixed]:
            assert read_log(text, rule.name).throughput == pytest.approx(value, rel=_SAME)
        # `srun -l` in a terminal: the parts of a line that it cut end there, too.
        for text in (labelled, others[2], b"".join(split)):
            plain = read_log(text, rule.name)
            check(plain, value)
            assert read_log(text.replace(b"\n", b"\r\n"), rule.name) == plain, rule.name


def test_lines_that_are_lost_copied_or_foreign_give_no_other_number(name, tmp_path):
    """A buffer is written twice, whole or torn, with the time of the line before; an evaluation."""
    base, data = take(name), sample(name)
    middle = base.find_line(base.inside[0])[0] if base.inside else len(data) // 2
    middle = data.rfind(b"\n", 0, middle) + 1
    foreign = [line.encode() + b"\n" for line in EVALUATIONS]
    for rule, value in list_rules(name):
        logs = [data[:middle] + line + data[middle:] for line in foreign]
        logs.append(data + b"".join(foreign))
        for entry in base.of_rule(rule)[:1]:
            start, end = base.find_line(entry)
            logs.append(data[:start] + data[end:])
            for torn in (end, entry.match.end() - 3, (start + end) // 2):
                copy = data[start:torn].rstrip(b"\n") + b"\n"
                logs += [data[:at] + copy + data[at:] for at in (start, end)]
        for text in logs:
            check(Reader(name, tmp_path).read(text, rule.name), value)


def test_numbers_that_are_broken_or_of_another_unit_give_no_other_number(name, tmp_path):
    base, read_log = take(name), Reader(name, tmp_path).read
    entries = base.inside[:1] or base.entries[:1]
    fields = [(entry, key) for entry in entries for key in ("rate", "seconds", "iteration")]
    for rule, value in list_rules(name):
        for entry, key in fields:
            for form in ("%sK", "%s K", "%sM", "1,%s", "%s.4", "%sabc", "-%s", "%s%%", "%se3"):
                if shown := entry.get(key):
                    text = base.replace(entry, key, form.encode() % shown)
                    tolerance = _SMALL if "e" in form else _SAME
                    check(read_log(text, rule.name), value, tolerance)
        matching = [entry for entry in base.entries if entry.record is rule.record]
        matching = [entry for entry in matching if rule.field != "time" and entry.get(rule.field)]
        for unit in UNITS if matching else ():
            changed = base.data
            for entry in reversed(matching):
                end = entry.match.end(rule.field)
                changed = changed[:end] + unit.encode() + changed[end:]
            reading = read_log(changed, rule.name)
            check(reading, value)
            assert rule.kind == "footer" or reading.throughput is None, unit
        inside = [entry for entry in base.inside if entry in matching and rule.kind != "footer"]
        for entry in inside[:2]:
            for factor in (0.01, 100):  # out of proportion
                number = b"%.6f" % (float(entry.match[rule.field]) * factor)
                text = base.replace(entry, rule.field, number)
                tolerance = _SMALL if rule.average == "median" else _SAME
                check(read_log(text, rule.name), value, tolerance)


def test_a_window_that_is_not_whole_or_a_lost_loss_gives_no_number(name, tmp_path):
    base = take(name)
    short = [base.data[: base.find_line(entry)[1]] for entry in base.inside[:3]]
    lost = [entry for entry in base.inside if entry.record.name != "evaluation"]
    empty, spoilt = base.data, []
    for start in sorted({base.find_line(entry)[0] for entry in lost}, reverse=True):
        empty = empty[:start] + empty[empty.find(b"\n", start) + 1 :]
    for key, words in {"loss": (b"nan", b"NaN", b"inf", b"-inf"), "nan": (b"1",)}.items():
        entries = [entry for entry in base.inside or base.entries if entry.get(key)]
        spoilt += [base.replace(entry, key, word) for entry in entries[:1] for word in words]
    for rule, _ in list_rules(name):
        for text in [*short, *([empty] if lost else []), *spoilt]:
            reading = Reader(name, tmp_path).read(text, rule.name)
            reasons = {reason.code for reason in reading.reasons}
            assert reading.throughput is None, rule.name
            assert reasons
            assert text is not empty or reasons <= {"window", "incomplete"}
            assert text not in spoilt or "loss" in reasons


def test_an_iteration_that_is_printed_again_counts_as_the_grammar_says(name, tmp_path):
    """A step whose gradients overflow is printed again under its number, and takes its time."""
    base = take(name)
    for rule, value in list_rules(name):
        entries = base.of_rule(rule)
        if rule.kind == "footer" or not entries:
            continue
        start, end = base.find_line(entries[0])
        line = bytearray(base.data[start:end])
        key = next(key for key in ("time", "rate", "seconds", "loss") if entries[0].get(key))
        last = entries[0].match.end(key) - 1 - start
        line[last : last + 1] = b"%d" % ((int(line[last : last + 1]) + 1) % 10)
        again = base.data[:end] + bytes(line) + base.data[end:]
        reading = Reader(name, tmp_path).read(again, rule.name)
        if rule.record.repeated != "count" or reading.throughput is None:
            check(reading, value)
        elif rule.kind == "clock" and rule.until.by == "iteration":
            steps = base.iters - base.skip
            assert reading.throughput == pytest.approx(value * (steps + 1) / steps, rel=_SAME)
        else:
            # One more rate among a hundred, or a window of lines that ends a line earlier.
            assert reading.throughput == pytest.approx(value, rel=_SMALL)


def test_midnight_changes_nothing_and_a_clock_that_jumps_gives_no_other_number(name, tmp_path):
    base, read_log = take(name), Reader(name, tmp_path).read
    stamped = [entry for entry in base.inside if entry.get("time")]
    for rule, value in list_rules(name):
        for hours in (1, -1, 40) if stamped else ():
            text = delay_stamps(base, stamped[0], timedelta(hours=hours))
            check(read_log(text, rule.name), value)
        matching = [entry for entry in stamped if entry.record is rule.record]
        if rule.kind == "clock" and matching and matching[0].record.time in _FORMS:
            at = parse_stamp(matching[0])
            midnight = at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
            late = delay_stamps(base, base.entries[0], midnight - at)
            assert late != base.data
            assert read_log(late, rule.name).throughput == pytest.approx(value, rel=1e-6)
        half = read_log(base.data[: len(base.data) // 2], rule.name)
        assert half.throughput is not None or half.steps is None


def test_a_label_that_the_log_contradicts_refuses_it(name, tmp_path):
    """By any rule, with a reason that names both values; a double is another value."""
    settings, read = setting(name), Reader(name, tmp_path).read
    for rule, _ in list_rules(name):
        stated = read(sample(name), rule.name).setting
        for label, unlike in LABELS.items():
            value = getattr(stated, label)
            others = [unlike, *([2 * value] if isinstance(value, int) else [])]
            for other in filter(None, others if value else ()):
                is_shape = label in ("nodes", "gpus_per_node")
                values: dict[str, Any] = {**({"gpus": None} if is_shape else {}), label: other}
                wrong = settings._replace(**values).settled({})[0]
                reading = read(sample(name), rule.name, wrong)
                assert reading.throughput is None, f"{rule.name}: {label} = {other}, not {value}"
                detail = "; ".join(map(str, reading.reasons))
                if {reason.code for reason in reading.reasons} == {"window"}:
                    continue  # More or fewer ranks print than were expected.
                assert {reason.code for reason in reading.reasons} == {"config"}, detail
                shown = {str(other), str(wrong.gpus) if label == "gpus_per_node" else ""}
                assert shown & {*re.findall(r"[\w.-]+", detail)}, detail


def test_the_first_line_of_a_job_alone_refuses_a_wrong_label(name, tmp_path):
    """Of programs that print none of it, labels are right or refused all the same."""
    if not list_rules(name):
        not_applicable(f"{name} has no throughput")
    line, _, remaining = sample(name).partition(b"\n")
    assert line.startswith(b"hpcbert: ranks start with ")
    for field in (b"nodes", b"gpus", b"batch_size_per_device", b"accumulation", b"precision"):
        value = re.search(rb" %s=(\w+)" % field, line)
        assert value is not None
        if value[1] == b"fp8":  # computed inside a run in 16 bits: both words are right
            continue
        other = b"bf16" if field == b"precision" else b"%d" % (2 * int(value[1]))
        moved = line.replace(value[0], b" %s=%s" % (field, other)) + b"\n" + remaining
        reading = Reader(name, tmp_path).read(moved)
        assert reading.throughput is None, field
        assert other.decode() in str(reading.reasons[0])


def test_a_closing_line_that_disagrees_is_a_contradiction(name, tmp_path):
    closing = [rule for rule, _ in list_rules(name) if rule.kind == "footer" and rule.cross_check]
    steps = [rule for rule, _ in list_rules(name) if rule.kind != "footer"]
    if not closing or not steps:
        not_applicable(f"{name} has no closing line to hold against its steps")
    for footer in closing:
        match = footer.record.match.search(sample(name))
        assert match is not None
        text = b"%.4f" % (float(match[footer.field]) * 3)
        wrong = take(name).replace(LogEntry(footer.record, match), footer.field, text)
        for rule in (*steps, footer):
            reading = Reader(name, tmp_path).read(wrong, rule.name)
            assert {reason.code for reason in reading.reasons} == {"contradiction"}, rule.name
            message = str(reading.reasons[0])
            assert footer.name in message
            assert len(re.findall(r"[\d.]+ samples/s|and \S+ [\d.]+", message)) >= 2


@pytest.mark.parametrize(
    ("factor", "agrees"), [(1.0, True), (1.4, True), (1 / 1.4, False), (0.8, False)]
)
def test_deepspeed_s_rate_which_leaves_loading_out_is_never_below_its_clock(
    factor, *, agrees, tmp_path
):
    """A clock 44 % above the rate gave 7,063.68 samples/s where 4,913.86 were right."""
    data = re.sub(
        rb"SamplesPerSec=([\d.]+)",
        lambda match: b"SamplesPerSec=%.6f" % (float(match[1]) * factor),
        sample("deepspeed"),
    )
    for rule in ("dlperf-rate", "dlperf-time"):
        reading = Reader("deepspeed", tmp_path).read(data, rule)
        assert [reason.code for reason in reading.reasons] == ([] if agrees else ["contradiction"])

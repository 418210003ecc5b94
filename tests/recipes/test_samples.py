"""The sample log of each recipe gives what the recipe says, and nothing done to it another number.

Launchers, terminals, full disks, repeated and foreign lines, midnight: a variant may still give the
sample's number, or a reason. What the program prints of its own run is in the recipe's README.
"""

import re
from collections import Counter
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate
from statistics import fmean, harmonic_mean, median
from typing import Any, NamedTuple

import pytest
import tomli

from hpcbert.logs.fields import LogFacts
from hpcbert.logs.grammar import FACTS, Record
from hpcbert.logs.lines import Line
from tests.kit.cases import read_constant
from tests.kit.needs import not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import HERE, NAMES, grammar, load, printed, read, sample, setting

COUNTING = {name: fact for name in NAMES for fact in grammar(name).facts if fact.counts}
_SMALL = 0.02


class LogEntry(NamedTuple):
    """A line of the sample that is a record."""

    record: Record
    match: re.Match[bytes]

    def get(self, name):
        return self.match.groupdict().get(name)

    @property
    def iterations(self):
        text = self.get("iteration")
        return None if text is None else int(text) + 1 - self.record.first


class Sample:
    """A recipe's sample: its records in the order of the log, and the numbers of its rules."""

    def __init__(self, name, folder):
        self.data, self.setting = sample(name), setting(name)
        self.read = partial(read, name, folder)
        entries = [
            LogEntry(record, match)
            for record in grammar(name).records
            for match in record.match.finditer(self.data)
            if not any(text in match[0] for text in record.ignore)
        ]
        self.entries = sorted(entries, key=lambda entry: entry.match.start())
        self.inside = self.select(self.entries)
        # Rules that differ in the number of lines alone read them in the same way.
        ways: dict[Any, Any] = {}
        for rule in grammar(name).rules:
            way = (rule.kind, rule.record.name, rule.average, rule.after.by, rule.until.by)
            if (rate := self.read(self.data, rule.name).throughput) is not None:
                ways.setdefault(way, (rule, rate))
        self.rules = list(ways.values())

    def select(self, entries):
        """Return the records inside the window, its middle first."""
        reach = range(self.setting.skip + 1, self.setting.iters)
        inside = [entry for entry in entries if entry.iterations in reach]
        return inside[len(inside) // 2 :] + inside[: len(inside) // 2]

    def of_rule(self, rule):
        """Return the rule's records inside the window, of a rule that counts lines after those it skips."""
        entries = [entry for entry in self.entries if entry.record is rule.record]
        if rule.kind != "footer" and rule.after.by == "record":
            window = {"skip": self.setting.skip, "iters": self.setting.iters}
            entries = entries[rule.after.resolve(**window) :]
        return self.select(entries)

    def find_line(self, entry):
        """Return where a record's line begins, and where the line after it does."""
        start = self.data.rfind(b"\n", 0, entry.match.start()) + 1
        end = self.data.find(b"\n", entry.match.end())
        return start, len(self.data) if end < 0 else end + 1

    def replace(self, entry, name, text):
        start, end = entry.match.span(name)
        return self.data[:start] + text + self.data[end:]

    def check(self, text, rule, rate, tolerance=1e-9):
        """Check that a text gives the right number, or none with a reason: any other number is a lie."""
        reading = self.read(text, rule.name)
        if reading.throughput is None:
            assert reading.reasons or reading.missing
        else:
            assert reading.throughput == pytest.approx(rate, rel=tolerance), reading
        return reading


@pytest.fixture(scope="module")
def log(name, tmp_path_factory):
    return Sample(name, tmp_path_factory.mktemp("log"))


def test_the_sample_gives_what_the_recipe_declares(name, log):
    """A bandwidth is told, and is no throughput; each number is read with its unit."""

    def check_steps(reading, rule):
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

    # A unit in a record: its words before the number, or right after it.
    unit = re.compile(
        r"(?i)(?:samples?|seq\w*|sentences|examples?|exp|steps?|bandwidth)\S{0,3}[ /_]*(?:per)?[ /_]*s(?:ec|\b|')"
        r"|\(ms\\?\)|\bms(?:/|,)|\bbandwidth\b"
    )
    # Programs that print a number without a unit: the pattern then has all that may follow it.
    bare = {("oneflow", "step"), ("oneflow-models", "step"), ("mlperf-bert", "tracked")}
    recipe, rules = load(name), grammar(name).rules
    declared = dict(recipe.sample.throughput) if recipe.sample else {}
    is_bandwidth = all(rule.unit == "GB/s" for rule in rules)
    assert bool(log.rules) != is_bandwidth
    assert is_bandwidth or not declared or rules[0].name in declared
    for rule in rules:
        reading = log.read(log.data, rule.name)
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
            assert bool(unit.search(text)) != ((name, record.name) in bare), text
        wide = rule.tolerance > grammar(name).tolerance
        assert not wide or rule.side != "both", "every wide tolerance has its side"


def test_a_log_that_is_cut_or_printed_twice_gives_no_other_number(log):
    """Cut at lines' ends, and within the fields of records; twice: by two runs, or by two ranks."""
    data, lag = log.data, 3
    ends = [match.end() for match in re.finditer(rb"\n", data)]
    many = max(2, min(10, 200_000 // len(data)))  # Long samples take longer to read.
    cuts = ends[:: max(1, len(ends) // many)] + ends[-many // 3 :]
    for entry in log.entries[:: max(1, len(log.entries) * 6 // many)] + log.entries[-1:]:
        for start, end in map(entry.match.span, entry.match.groupdict()):
            cuts += [start + 1, end - 1, end, end + 1]
    lines = data.splitlines(keepends=True)
    late = zip(lines + [b""] * lag, [b""] * lag + lines, strict=True)
    twice = [data * 2, b"".join(line * 2 for line in lines)]
    twice += [b"".join(b"0: " + line + b"1: " + line for line in lines)]
    twice += [b"".join(line + late_line for line, late_line in late)]
    for rule, rate in log.rules:
        for text in [*(data[:at] for at in cuts), *twice]:
            log.check(text, rule, rate)


def test_what_launchers_and_terminals_do_to_a_log_gives_no_other_number(log):
    """What every cluster does gives the same one: `docker run -t` ends lines as terminals do."""

    def split_line(line):
        """Return a line as `srun -l` prints it: 1,024 bytes, then others, then the rest."""
        parts = [line[at : at + 1024] for at in range(0, len(line), 1024)] or [b""]
        return b"\n 1: of another rank\n".join(b" 0: " + part for part in parts) + b"\n"

    data, lines, ends = log.data, log.data.split(b"\n")[:-1], (b"\n", b"\r\n", b"\r\r\n")
    bar = b"Iteration:  61%|######    | 703/1148 [02:05<01:20,  5.53it/s]"
    glued, ranks, labelled = data, {}, b""
    counts: Counter[tuple[str, int | None]] = Counter()
    for entry in log.entries:
        key = entry.record.name, entry.iterations
        ranks[log.find_line(entry)[0]] = counts[key] if entry.record.ranks != "one" else 0
        counts[key] += 1
    for start in sorted(ranks, reverse=True):
        glued = glued[:start] + bar + b"\0" + glued[start:]
    any_of = [data.rstrip(b"\n"), data.replace(b"\n", b"\r"), data + b"\0" * 4096]
    any_of += [glued.replace(b"\0", b""), glued.replace(b"\0", b"\r")]
    any_of += [b"".join(split_line(line + b" " + b"x" * 1100) for line in lines)]
    split = b"".join(split_line(b"x" * 1000 + b" " + line) for line in lines)
    # As `srun -l` prints it, each rank's records under its number.
    printed = data.splitlines(keepends=True)
    for start, line in zip(accumulate(map(len, printed), initial=0), printed, strict=False):
        labelled += b" %2d: " % ranks.get(start, 0) + line
    forms = read_constant(__file__, "LINES")
    shown = {key: b"".join(form.encode() % line for line in lines) for key, form in forms.items()}
    risky = [shown.pop(key) for key in ("dated labels", "labels of pdsh", "labels of mpirun")]
    mixed = b"".join(line + ends[n % 3] for n, line in enumerate(lines))
    for rule, rate in log.rules:
        for text in [*any_of, *risky[:2]]:
            log.check(text, rule, rate)
        for text in [*shown.values(), labelled, mixed]:
            assert log.read(text, rule.name).throughput == pytest.approx(rate, rel=1e-9)
        # `srun -l` in a terminal: the parts of a line that it cut end there, too.
        for text in (labelled, risky[2], split):
            plain = log.check(text, rule, rate)
            assert log.read(text.replace(b"\n", b"\r\n"), rule.name) == plain, rule.name


def test_lines_that_are_lost_copied_or_foreign_give_no_other_number(log):
    """A buffer is written twice, whole or torn, with the time of the line before; an evaluation."""
    data = log.data
    middle = log.find_line(log.inside[0])[0] if log.inside else len(data) // 2
    middle = data.rfind(b"\n", 0, middle) + 1
    foreign = [line.encode() + b"\n" for line in read_constant(__file__, "EVALUATIONS")]
    for rule, rate in log.rules:
        texts = [data[:middle] + line + data[middle:] for line in foreign]
        texts.append(data + b"".join(foreign))
        for entry in log.of_rule(rule)[:1]:
            start, end = log.find_line(entry)
            texts.append(data[:start] + data[end:])
            for torn in (end, entry.match.end() - 3, (start + end) // 2):
                copy = data[start:torn].rstrip(b"\n") + b"\n"
                texts += [data[:at] + copy + data[at:] for at in (start, end)]
        for text in texts:
            log.check(text, rule, rate)


def test_numbers_that_are_broken_or_of_another_unit_give_no_other_number(log):
    entries = log.inside[:1] or log.entries[:1]
    fields = [(entry, key) for entry in entries for key in ("rate", "seconds", "iteration")]
    for rule, rate in log.rules:
        for entry, key in fields:
            for form in ("%sK", "%s K", "%sM", "1,%s", "%s.4", "%sabc", "-%s", "%s%%", "%se3"):
                if shown := entry.get(key):
                    text = log.replace(entry, key, form.encode() % shown)
                    log.check(text, rule, rate, _SMALL if "e" in form else 1e-9)
        matching = [entry for entry in log.entries if entry.record is rule.record]
        matching = [entry for entry in matching if rule.field != "time" and entry.get(rule.field)]
        for unit in read_constant(__file__, "UNITS") if matching else ():
            changed = log.data
            for entry in reversed(matching):
                end = entry.match.end(rule.field)
                changed = changed[:end] + unit.encode() + changed[end:]
            reading = log.check(changed, rule, rate)
            assert rule.kind == "footer" or reading.throughput is None, unit
        inside = [entry for entry in log.inside if entry in matching and rule.kind != "footer"]
        for entry in inside[:2]:
            for factor in (0.01, 100):  # out of proportion
                number = b"%.6f" % (float(entry.match[rule.field]) * factor)
                text = log.replace(entry, rule.field, number)
                log.check(text, rule, rate, _SMALL if rule.average == "median" else 1e-9)


def test_a_window_that_is_not_whole_or_a_lost_loss_gives_no_number(log):
    short = [log.data[: log.find_line(entry)[1]] for entry in log.inside[:3]]
    lost = [entry for entry in log.inside if entry.record.name != "evaluation"]
    empty, spoilt = log.data, []
    for start in sorted({log.find_line(entry)[0] for entry in lost}, reverse=True):
        empty = empty[:start] + empty[empty.find(b"\n", start) + 1 :]
    for key, words in {"loss": (b"nan", b"NaN", b"inf", b"-inf"), "nan": (b"1",)}.items():
        entries = [entry for entry in log.inside or log.entries if entry.get(key)]
        spoilt += [log.replace(entry, key, word) for entry in entries[:1] for word in words]
    for rule, _ in log.rules:
        for text in [*short, *([empty] if lost else []), *spoilt]:
            reading = log.read(text, rule.name)
            reasons = {reason.code for reason in reading.reasons}
            assert reading.throughput is None, rule.name
            assert reasons
            assert text is not empty or reasons <= {"window", "incomplete"}
            assert text not in spoilt or "loss" in reasons


def test_an_iteration_that_is_printed_again_counts_as_the_grammar_says(log):
    """A step whose gradients overflow is printed again under its number, and takes its time."""
    for rule, rate in log.rules:
        entries = log.of_rule(rule)
        if rule.kind == "footer" or not entries:
            continue
        start, end = log.find_line(entries[0])
        line = bytearray(log.data[start:end])
        key = next(key for key in ("time", "rate", "seconds", "loss") if entries[0].get(key))
        last = entries[0].match.end(key) - 1 - start
        line[last : last + 1] = b"%d" % ((int(line[last : last + 1]) + 1) % 10)
        again = log.data[:end] + bytes(line) + log.data[end:]
        # One more rate among a hundred, or a window of lines that ends a line earlier.
        expected, tolerance = rate, _SMALL
        if rule.record.repeated != "count" or log.read(again, rule.name).throughput is None:
            tolerance = 1e-9
        elif rule.kind == "clock" and rule.until.by == "iteration":
            steps = log.setting.iters - log.setting.skip
            expected, tolerance = rate * (steps + 1) / steps, 1e-9
        log.check(again, rule, expected, tolerance)


def test_midnight_changes_nothing_and_a_clock_that_jumps_gives_no_other_number(log):
    def delay_stamps(first, seconds):
        """Return the sample with the stamps of one record and all that follow it set off."""
        data = log.data
        for entry in reversed(log.entries[log.entries.index(first) :]):
            if not entry.get("time"):
                continue
            seconds_part, fraction, *_ = re.split(r"([.,]\d+|)$", entry.get("time").decode())
            if form := forms.get(entry.record.time):
                stamp = datetime.strptime(f"{seconds_part} +0000", f"{form} %z")
                seconds_part = (stamp + timedelta(seconds=seconds)).strftime(form)
            else:
                seconds_part = int(seconds_part) + int(seconds * scales[entry.record.time])
            start, end = entry.match.span("time")
            data = data[:start] + f"{seconds_part}{fraction}".encode() + data[end:]
        return data

    # Forms of times; and units in a second of those that are numbers.
    forms = {"date-time": "%Y-%m-%d %H:%M:%S", "month-day": "%m%d %H:%M:%S"}
    scales = {"epoch": 1.0, "epoch-ms": 1000.0, "elapsed": 1.0, "elapsed-hours": 1 / 3600}
    stamped = [entry for entry in log.inside if entry.get("time")]
    for rule, rate in log.rules:
        for hours in (1, -1, 40) if stamped else ():
            log.check(delay_stamps(stamped[0], 3600 * hours), rule, rate)
        matching = [entry for entry in stamped if entry.record is rule.record]
        if rule.kind == "clock" and matching and matching[0].record.time in forms:
            clock = re.findall(rb"(\d\d):(\d\d):(\d\d)", matching[0].get("time"))[0]
            hour, minute, second = map(int, clock)
            midnight = 86400 - 3600 * hour - 60 * minute - second
            late = delay_stamps(log.entries[0], midnight)
            assert late != log.data
            assert log.read(late, rule.name).throughput == pytest.approx(rate, rel=1e-6)
        half = log.read(log.data[: len(log.data) // 2], rule.name)
        assert half.throughput is not None or half.steps is None


def test_a_label_that_the_log_contradicts_refuses_it(log):
    """By any rule, with a reason that names both values; a double is another value."""
    for rule, _ in log.rules:
        stated = log.read(log.data, rule.name).setting
        for label, unlike in read_constant(__file__, "LABELS").items():
            value = getattr(stated, label)
            wrong_values = [unlike, *([2 * value] if isinstance(value, int) else [])]
            for other in filter(None, wrong_values if value else ()):
                is_shape = label in ("nodes", "gpus_per_node")
                values = {**({"gpus": None} if is_shape else {}), label: other}
                wrong = log.setting._replace(**values).settled({})[0]
                reading = log.read(log.data, rule.name, wrong)
                assert reading.throughput is None, f"{rule.name}: {label} = {other}, not {value}"
                detail = "; ".join(map(str, reading.reasons))
                if {reason.code for reason in reading.reasons} == {"window"}:
                    continue  # More or fewer ranks print than were expected.
                assert {reason.code for reason in reading.reasons} == {"config"}, detail
                shown = {str(other), str(wrong.gpus) if label == "gpus_per_node" else ""}
                assert shown & {*re.findall(r"[\w.-]+", detail)}, detail


def test_a_closing_line_that_disagrees_is_a_contradiction(name, log):
    closing = [rule for rule, _ in log.rules if rule.kind == "footer" and rule.cross_check]
    steps = [rule for rule, _ in log.rules if rule.kind != "footer"]
    if not closing or not steps:
        not_applicable(f"{name} has no closing line to hold against its steps")
    for footer in closing:
        match: Any = footer.record.match.search(log.data)
        text = b"%.4f" % (float(match[footer.field]) * 3)
        wrong = log.replace(LogEntry(footer.record, match), footer.field, text)
        for rule in (*steps, footer):
            reading = log.read(wrong, rule.name)
            assert {reason.code for reason in reading.reasons} == {"contradiction"}, rule.name
            message = str(reading.reasons[0])
            assert footer.name in message
            assert len(re.findall(r"[\d.]+ samples/s|and \S+ [\d.]+", message)) >= 2


def read_refusal(name, folder, data, settings):
    """Return what a reading by the default rule says against the configuration; empty if nothing."""
    reading = read(name, folder, data, settings=settings)
    assert reading.throughput is None or not reading.reasons
    return "; ".join(reason.detail for reason in reading.reasons if reason.code == "config")


def test_the_table_of_a_readme_is_what_the_grammar_reads(name):
    lines: dict[str, list[str]] = {}
    for fact in grammar(name).facts:
        text = fact.contains.decode().strip().replace("|", r"\|")
        for group in fact.match.groupindex:
            lines.setdefault(group, []).append(f"`{text}`")
        if fact.counts:
            lines.setdefault(fact.counts, []).append(f"`{text}` from every rank")
    page = (TEMPLATES / name / "README.md").read_text()
    table = page.partition("\n## Facts in a log\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    rows = dict(listed)
    assert len(rows) == len(listed), "a fact is listed twice"
    printed_rows = {fact: line for fact, line in rows.items() if not line.startswith("not printed")}
    assert printed_rows == {fact: ", ".join(dict.fromkeys(texts)) for fact, texts in lines.items()}
    assert list(rows) == [fact for fact in FACTS if fact in rows], "in the order of the facts"
    # What a README must say of every program: that it is read, or that it is not printed.
    assert {*rows} >= {
        *("nodes", "gpus", "batch_size_per_device", "global_batch_size", "precision"),
        *("sequence_length", "model", "version"),
    }


def test_every_fact_has_a_line_and_one_that_says_otherwise_refuses_the_run(name, tmp_path):
    """A log with the line is no run with another value, and both are named."""

    def read_values(line):
        """Return what a line states, by the fact that reads it and its name."""
        values: dict[Any, Any] = {}
        for fact in facts:
            if fact.contains in line and fact.match.search(line):
                stated = LogFacts()
                stated.add(fact, Line(line))
                read_facts = stated.values | stated.suggested.get(fact, {})
                values |= {(fact, group): value for group, value in read_facts.items()}
        return values

    stated: dict[Any, Any] = {}
    facts = grammar(name).facts
    # Lines of facts that a sample's run had no reason to print, each with what it states.
    unprinted = tomli.loads((HERE / "facts.toml").read_text()).get(name, {})
    for line in [*map(str.encode, unprinted), *sample(name).splitlines()]:
        for pair, value in read_values(line).items():
            stated.setdefault(pair, (line, value))
    assert {(fact, group) for fact in facts for group in fact.match.groupindex} <= {*stated}
    for text, values in unprinted.items():
        assert {pair[1]: value for pair, value in read_values(text.encode()).items()} == values
    for (_, group), (line, value) in stated.items():
        # Of texts, the first one in a log stands: `collect` tells runs apart that differ in them.
        if group in ("version", "device"):
            continue
        wrong: Any = "tf32" if isinstance(value, str) else value * 2 + 1
        settings = setting(name)._replace(**{group: wrong})
        detail = read_refusal(name, tmp_path, line + b"\n" + printed(name), settings)
        if line in printed(name):
            assert str(value) in detail
            assert str(wrong) in detail
        else:
            # The user's word outweighs a line that only suggests its fact.
            assert detail or any(
                fact.assumed and group in fact.match.groupindex
                for fact in facts
                if fact.match.search(line)
            )


@pytest.mark.parametrize("recipe", COUNTING)
def test_ranks_that_speak_are_counted(recipe, tmp_path):
    """A log with half or twice the ranks is not the run that was asked for."""
    fact, lines = COUNTING[recipe], printed(recipe).splitlines(keepends=True)
    spoken = [line for line in lines if fact.contains in line and fact.match.search(line)]
    settings = setting(recipe)
    settings = settings if settings.gpus else settings._replace(gpus=len(spoken))
    assert len(spoken) == settings.gpus != 1
    text = b"".join(line for line in lines if line not in spoken)
    twice = read_refusal(recipe, tmp_path, b"".join(spoken * 2) + text, settings)
    assert {str(len(spoken)), str(2 * len(spoken))} <= {*re.findall(r"\d+", twice)}
    if len(spoken) // 2 >= fact.least:
        # Where a line states the number, fewer ranks have only torn lines.
        facts = grammar(recipe).facts
        patterns = [other.match for other in facts if fact.counts in other.match.groupindex]
        silent = [line for line in lines if not any(pattern.search(line) for pattern in patterns)]
        half = spoken[::2] + [line for line in silent if line not in spoken]
        refusal = read_refusal(recipe, tmp_path, b"".join(half), settings)
        assert {str(len(spoken)), str(len(spoken) // 2)} <= {*re.findall(r"\d+", refusal)}
    if not fact.match.pattern.startswith(b"^") and b".*" not in fact.match.pattern:
        glued = b"".join(line.rstrip(b"\n") for line in spoken) + b"\n"
        assert not read_refusal(recipe, tmp_path, glued + text, settings)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("silent", [b"", b" n_gpu: 8,"], ids=["stated", "only-told"])
def test_torn_lines_do_not_refuse_a_run_whose_number_does_not_need_them(count, silent, tmp_path):
    """Ranks that write at once tear each other's lines: five of eight, of a whole run."""

    def tear_lines(recipe, count):
        """Return a sample in which some of the lines that every rank prints are torn apart."""
        fact, data = COUNTING[recipe], printed(recipe)
        for line in [line for line in data.splitlines(True) if fact.match.search(line)][:count]:
            data = data.replace(line, line.replace(fact.contains, fact.contains[:4] + b"\n:::"), 1)
        return data

    data = tear_lines("mlperf-bert", count)
    data = data.replace(silent, b"") if silent else data
    for rule in grammar("mlperf-bert").rules:
        reading = read("mlperf-bert", tmp_path, data, rule.name)
        untorn = read("mlperf-bert", tmp_path, sample("mlperf-bert"), rule.name)
        assert reading.throughput == untorn.throughput, rule.name
        assert reading.setting.gpus == 8
    line = next(line for line in data.splitlines(True) if b"init_start" in line)
    more = line + sample("mlperf-bert")
    assert "9 lines say" in read_refusal("mlperf-bert", tmp_path, more, setting("mlperf-bert"))
    # Where only they state the GPUs, seven of eight may be a run on seven.
    for recipe in ("ngc-tf1", "ngc-pytorch", "oneflow-models"):
        fact = COUNTING[recipe]
        ranks = len(fact.match.findall(printed(recipe)))
        reading = read(recipe, tmp_path, tear_lines(recipe, 1))
        assert reading.throughput is None or ranks - 1 < fact.least, recipe

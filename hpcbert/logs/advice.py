"""Which rules and windows give a number for a log that has none by the chosen ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

from hpcbert.logs.arithmetic import CannotReduceError, count_completed
from hpcbert.logs.fields import (
    has_field,
    record_lines,
    record_matches,
    whole_matches,
    whole_number,
)
from hpcbert.logs.grammar import Grammar, Rule
from hpcbert.logs.lines import NotALogError, cut_line, find_lines, read_ends, read_pieces
from hpcbert.logs.scan import read
from hpcbert.logs.setting import Setting, UnknownError
from hpcbert.model import Reason

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


_SHOWN = 3


def advise(
    path: Path, grammar: Grammar, rule: Rule, setting: Setting, reason: str, *, to_end: bool
) -> str:
    """Return the reason for a missing number, with the options that would give one.

    Never raises because of the file's content.

    Args:
        to_end: Whether windows extend to the end of each run, instead of an iteration.
    """
    places_by_record = _find_places(path, grammar, setting)
    record_texts = [
        f"{name} at {_format_places(places)}" for name, places in places_by_record.items() if places
    ]
    if record_texts and not places_by_record[rule.record.name] and rule.kind != "footer":
        reason = f"the log has no record {rule.record.name}, which rule {rule.name} reads"
    parts = [reason]
    if record_texts:
        parts.append(f"it has {', '.join(record_texts)}")
    options = _find_options(path, grammar, setting, places_by_record, to_end=to_end)
    if shown_options := list(islice(options, _SHOWN)):
        parts.append(f"type {', or '.join(shown_options)}")
    return "; ".join(parts)


def find_record(path: Path, grammar: Grammar, rule: Rule, setting: Setting) -> int:
    """Return the iterations at a rule's first record after the warm-up; else the warm-up's."""
    places = _find_places(path, grammar, setting)[rule.record.name]
    return next((place for place in places[:-1] if place >= setting.skip), setting.skip)


def _find_places(path: Path, grammar: Grammar, setting: Setting) -> dict[str, list[int]]:
    """Return the completed iterations at each kind of record, in order."""
    places: dict[str, set[int]] = {record.name: set() for record in grammar.records}
    with suppress(NotALogError), closing(read_pieces(path)) as pieces:
        for piece in pieces:
            for record in grammar.records:
                for match in record_matches(piece, record):
                    numbers = places[record.name]
                    if not record.has("iteration"):
                        numbers.add((len(numbers) + 1) * (record.every or 1))
                    elif has_field(match, "iteration"):
                        with suppress(CannotReduceError, UnknownError, ValueError):
                            number = whole_number(match["iteration"])
                            numbers.add(int(count_completed(record, number, setting)))
    return {
        name: sorted(place for place in numbers if place >= 0) for name, numbers in places.items()
    }


def _format_places(places: Sequence[int]) -> str:
    shown_places = [*map(str, places[:2]), "…", str(places[-1])] if len(places) > _SHOWN else places
    return f"iteration{'s' if len(places) > 1 else ''} {', '.join(map(str, shown_places))}"


def _find_options(
    path: Path,
    grammar: Grammar,
    setting: Setting,
    places: Mapping[str, Sequence[int]],
    *,
    to_end: bool,
) -> Iterator[str]:
    """Yield the options that give a number: rules without a caution, and their windows."""
    for rule in grammar.rules if not grammar.reader else ():
        if rule.caution and not rule.cross_check:
            continue
        for skip, iters in _choose_windows(rule, setting, places[rule.record.name]):
            window_setting = setting._replace(skip=skip, iters=iters, reach=iters)
            if read(path, grammar, rule, window_setting).throughput:
                window = f" --skip {skip} --iters {'end' if to_end else iters}" if iters else ""
                yield f"--rule {rule.name}{window}"
                break


def _choose_windows(
    rule: Rule, setting: Setting, places: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield windows that begin and end at records: after the warm-up, else after the first."""
    if rule.kind == "footer":
        yield setting.skip, 0
        return
    if rule.after.by == "record" and places:
        yield setting.skip, places[-1]
        return
    later_places = [place for place in places if place >= setting.skip] or places
    if later_places and later_places[0] < places[-1]:
        yield later_places[0], places[-1]

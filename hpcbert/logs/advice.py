"""Which rules and windows give a number for a log that has none by the chosen ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from hpcbert.logs.fields import DIGITS, has_field, whole_matches
from hpcbert.logs.grammar import Grammar, Record, Rule
from hpcbert.logs.lines import NotALogError, cut_line, find_lines, read_pieces
from hpcbert.logs.scan import read
from hpcbert.logs.setting import Setting

_SHOWN = 3


def advise(
    path: Path, grammar: Grammar, rule: Rule, setting: Setting, reason: str, *, to_end: bool
) -> str:
    """Return why a log has no number by a rule, and what to type instead.

    Never raises because of the file's content.

    Args:
        path: The log.
        grammar: How it is read.
        rule: The chosen rule.
        setting: What the user and the path state.
        reason: The reason, as reading found it.
        to_end: Whether windows extend to the end of each run, instead of an iteration.
    """
    places_by_record = _find_places(path, grammar)
    record_texts = [
        f"{name} at {_format_places(places_of_record)}"
        for name, places_of_record in places_by_record.items()
        if places_of_record
    ]
    if record_texts and not places_by_record[rule.record.name] and rule.kind != "footer":
        reason = f"the log has no record {rule.record.name}, which rule {rule.name} reads"
    options = [
        f"--rule {name}" + (f" --skip {skip} --iters {'end' if to_end else iters}" if iters else "")
        for name, skip, iters in _find_options(path, grammar, setting, places_by_record)
    ][:_SHOWN]
    parts = [reason, *([f"it has {', '.join(record_texts)}"] if record_texts else [])]
    return "; ".join([*parts, *([f"type {', or '.join(options)}"] if options else [])])


def _find_places(path: Path, grammar: Grammar) -> dict[str, list[int]]:
    """Return the completed iterations at each kind of record, in order."""
    places: dict[str, set[int]] = {record.name: set() for record in grammar.records}
    with suppress(NotALogError), closing(read_pieces(path)) as pieces:
        for piece in pieces:
            for record in grammar.records:
                for start, _, _, end in find_lines(piece, (record.contains,)):
                    line, _ = cut_line(piece, start, end, record.lines)
                    for match in whole_matches(record.match, line):
                        place = _completed_iteration(match, record, len(places[record.name]))
                        places[record.name] |= {place} if place >= 0 else set()
    return {name: sorted(record_places) for name, record_places in places.items()}


def _completed_iteration(match: re.Match[bytes], record: Record, count_before: int) -> int:
    if not record.has("iteration"):
        return (count_before + 1) * (record.every or 1)
    if not has_field(match, "iteration") or len(match["iteration"]) > DIGITS:
        return -1
    return int(match["iteration"]) + 1 - record.first


def _format_places(places: Sequence[int]) -> str:
    shown_places = [*map(str, places[:2]), "…", str(places[-1])] if len(places) > _SHOWN else places
    return f"iteration{'s' if len(places) > 1 else ''} {', '.join(map(str, shown_places))}"


def _find_options(
    path: Path, grammar: Grammar, setting: Setting, places: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, int, int]]:
    """Yield the rules that give a number, with their windows; those without caution only."""
    for rule in grammar.rules if not grammar.reader else ():
        if rule.caution and not rule.cross_check:
            continue
        for skip, iters in _choose_windows(rule, setting, places[rule.record.name]):
            window_setting = setting._replace(skip=skip, iters=iters, reach=iters)
            if read(path, grammar, rule, window_setting).throughput:
                yield rule.name, skip, iters
                break


def _choose_windows(
    rule: Rule, setting: Setting, places: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield windows that begin and end at records: after the warm-up, else after the first."""
    if rule.kind == "footer":
        yield setting.skip, 0
        return
    later_places = [place for place in places if place >= setting.skip] or places
    if later_places and later_places[0] < places[-1]:
        yield later_places[0], places[-1]

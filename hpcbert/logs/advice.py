"""Which rules and windows give a number for a log that has none by the chosen ones."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from hpcbert.logs.fields import DIGITS, has_field, whole_matches
from hpcbert.logs.lines import NotALogError, bodies, cut_line, find_lines
from hpcbert.logs.scan import read

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hpcbert.logs.grammar import Grammar, Record, Rule
    from hpcbert.logs.setting import Setting

_SHOWN = 3


def advice(
    path: Path, grammar: Grammar, rule: Rule, setting: Setting, detail: str, *, to_end: bool
) -> str:
    """Return why a log has no number by a rule, and what to type instead.

    Never raises because of the file's content.

    Args:
        path: The log.
        grammar: How it is read.
        rule: The chosen rule.
        setting: What the user and the path state.
        detail: The reason, as reading found it.
        to_end: Whether windows extend to the end of each run, instead of an iteration.
    """
    places = _places(path, grammar)
    texts = [f"{name} at {_listed(place)}" for name, place in places.items() if place]
    if texts and not places[rule.record.name] and rule.kind != "footer":
        detail = f"the log has no record {rule.record.name}, which rule {rule.name} reads"
    options = [
        f"--rule {name}" + (f" --skip {skip} --iters {'end' if to_end else iters}" if iters else "")
        for name, skip, iters in _options(path, grammar, setting, places)
    ][:_SHOWN]
    parts = [detail, *([f"it has {', '.join(texts)}"] if texts else [])]
    return "; ".join([*parts, *([f"type {', or '.join(options)}"] if options else [])])


def _places(path: Path, grammar: Grammar) -> dict[str, list[int]]:
    """Return the completed iterations at each kind of record, in order."""
    places: dict[str, set[int]] = {record.name: set() for record in grammar.records}
    with suppress(NotALogError), closing(bodies(path)) as pieces:
        for data in pieces:
            for record in grammar.records:
                for start, _, _, end in find_lines(data, (record.contains,)):
                    line, _ = cut_line(data, start, end, record.lines)
                    for match in whole_matches(record.match, line):
                        place = _place(match, record, len(places[record.name]))
                        places[record.name] |= {place} if place >= 0 else set()
    return {name: sorted(found) for name, found in places.items()}


def _place(match: re.Match[bytes], record: Record, before: int) -> int:
    if not record.has("iteration"):
        return (before + 1) * (record.every or 1)
    if not has_field(match, "iteration") or len(match["iteration"]) > DIGITS:
        return -1
    return int(match["iteration"]) + 1 - record.first


def _listed(places: Sequence[int]) -> str:
    few = [*map(str, places[:2]), "…", str(places[-1])] if len(places) > _SHOWN else places
    return f"iteration{'s' if len(places) > 1 else ''} {', '.join(map(str, few))}"


def _options(
    path: Path, grammar: Grammar, setting: Setting, places: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, int, int]]:
    """Yield the rules that give a number, with their windows; those without caution only."""
    for rule in grammar.rules if not grammar.reader else ():
        if rule.caution and not rule.cross_check:
            continue
        for skip, iters in _windows(rule, setting, places[rule.record.name]):
            known = setting._replace(skip=skip, iters=iters, reach=iters)
            if read(path, grammar, rule, known).throughput:
                yield rule.name, skip, iters
                break


def _windows(rule: Rule, setting: Setting, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield windows that begin and end at records: after the warm-up, else after the first."""
    if rule.kind == "footer":
        yield setting.skip, 0
        return
    later = [place for place in places if place >= setting.skip] or places
    if later and later[0] < places[-1]:
        yield later[0], places[-1]

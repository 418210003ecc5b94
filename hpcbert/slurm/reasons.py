"""Why a job waits, could not be started, or was refused: Slurm's words as sentences and advice.

The words: SchedMD/slurm@284c3b9 (26.05), src/common/job_state_reason.c, and those that releases
from 22.05 on also had, src/common/slurm_protocol_defs.c. The limits of associations and QOS are
many words of one form, and are put together here from their parts. The free texts, which stand in
place of a word: what src/slurmctld, and burst buffers, write into `state_desc`.

squeue prints the texts as they are, and joins those of an array's waiting tasks with commas
(src/squeue/print.c, _merge_job_reason); sacct prints words.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import tomli

from hpcbert.slurm.commands import JobRow

WAIT = "wait; no action is needed"
_NEVER = "it can never start: cancel it"
REFUSED_START = "a retry would end the same way: correct the request and submit again"
_TABLES = tomli.loads(Path(__file__).with_name("reasons.toml").read_text(encoding="utf-8"))
_PHRASES: dict[str, str] = _TABLES["phrases"]


class ReasonText(NamedTuple):
    """A reason for waiting."""

    sentence: str
    advice: str = WAIT


def _read_table(name: str) -> dict[str, ReasonText]:
    return {
        word: ReasonText(*(text.format_map(_PHRASES) for text in texts))
        for word, texts in _TABLES[name].items()
    }


REASONS = _read_table("reasons")
# Free texts by how they begin.
TEXTS = _read_table("texts")
# Whom a partition takes: `(gpu allows a,b not c)`, `groups allowed: a,b`.
_WHO = re.compile(r"\(([^()]* (?:allows|denies) [^()]*)\)|(groups allowed: .+)")
# `AssocGrpCpuLimit`, `QOSMaxGRESMinutesPerJob`, `MaxNodePerAccount`, `QOSMinMemory`: whose limit,
# of what kind, on what, and over what it is counted.
_LIMIT = re.compile(
    r"(?P<whose>Assoc|QOS|)(?P<kind>Grp|Max|Min)"
    r"(?P<what>CPU|Cpu|Mem(?:ory)?|Node|Jobs?|SubmitJobs?|Wall(?:Duration)?|GRES|Energy|License|BB"
    r"|Billing|Unknown)s?"
    r"(?P<minutes>RunMinutes|Minutes|)(?:Limit)?(?:Per(?P<per>Job|Node|User|Account))?"
    r"(?:Limit|NotSatisfied)?"
)
_ANY_LIMIT = re.compile(r"(?:Assoc|QOS|Max)[A-Z]\w+")
_WHOSE = {"Assoc": "your account", "QOS": "the QOS", "": "the QOS"}


# A comma before the reason of another task of the array; other commas are a text's own.
_NEXT = re.compile(rf",\s*(?=(?:{'|'.join(REASONS)}|{_ANY_LIMIT.pattern})(?:[,:(]|$))")


def find_reasons(reason: str) -> tuple[tuple[str, ReasonText | None], ...]:
    """Return the reasons that a text of Slurm's holds, each with what is known of it.

    Args:
        reason: As `squeue -o %r` prints it:
            `ReqNodeNotAvail, UnavailableNodes:n[1-2],JobArrayTaskLimit`.
    """
    reasons: list[tuple[str, ReasonText | None]] = []
    for part in _NEXT.split(reason.strip()) if _has_reason(reason) else ():
        word, _, unknown = part.partition(",")
        if _match_text(part) or not _match_word(word) or word.startswith("ReqNodeNotAvail"):
            reasons.append((part, _match_text(part) or _match_word(word)))
        else:  # a word, then what no table has: a comma of a text is behind no word
            reasons.append((word, _match_word(word)))
            reasons += [(unknown.strip(), None)] if unknown.strip() else []
    return tuple(reasons)


def _match_text(text: str) -> ReasonText | None:
    return next((sentences for start, sentences in TEXTS.items() if text.startswith(start)), None)


def _match_word(text: str) -> ReasonText | None:
    """Look up a reason's word, behind which details may stand; None if no table has it."""
    word = re.split(r"[(:]", text, maxsplit=1)[0].strip()
    if word in REASONS:
        return REASONS[word]
    if limit := _LIMIT.fullmatch(word):
        return _describe_limit(limit)
    if _ANY_LIMIT.fullmatch(word):
        holder = _WHOSE["Assoc" if word.startswith("Assoc") else "QOS"]
        return ReasonText(f"{holder} has reached its limit ({word})", _PHRASES["later"])
    return None


def _describe_limit(match: re.Match[str]) -> ReasonText:
    holder, word = _WHOSE[match["whose"]], match[0]
    limited = _TABLES["limits"][match["what"].removesuffix("s")]
    resource, remedy = limited["resource"], limited.get("remedy", "fewer --nodes")
    if match["per"] == "Node":
        remedy = limited.get("per_node", remedy)
    if match["minutes"]:
        resource, remedy = f"{resource} x minutes", "a shorter --time or fewer --nodes"
    if match["kind"] == "Min":
        remedy = "more"
    another = f"{remedy}, or with {_PHRASES['another']}" if remedy else _PHRASES["another"]
    never, later = f"{_PHRASES['submit_with']} {another}", f"{_PHRASES['later_or']} {another}"
    total = match["kind"] == "Grp" and resource == "time"  # GrpWall counts jobs that ended, too
    if match["kind"] == "Min":
        return ReasonText(
            f"requests less than the {resource} that {holder} demands ({word})", never
        )
    if match["per"] in {"Job", "Node"}:
        unit = match["per"].lower()
        return ReasonText(
            f"requests more {resource} per {unit} than {holder} allows ({word})", never
        )
    if match["per"] == "User":
        sentence = f"you have reached the limit on {resource} per user that {holder} sets ({word})"
        return ReasonText(sentence, later)
    if total or match["minutes"] == "Minutes":
        sentence = f"{holder} has used up its limit of {resource} ({word})"
        return ReasonText(sentence, _PHRASES["used_up"])
    sentence = f"{holder} has reached its limit on {resource} over all its jobs ({word})"
    return ReasonText(sentence, later)


def describe_reason(reason: str) -> str:
    """Return a sentence on why a job waits; empty if Slurm gives no reason."""
    sentences = (_describe_text(text, reason_text) for text, reason_text in find_reasons(reason))
    return "; ".join(dict.fromkeys(sentences))


def _describe_text(text: str, reason_text: ReasonText | None) -> str:
    if reason_text is None:
        return f"Slurm's reason is {text}"
    _, separator, nodes = text.partition("UnavailableNodes:")
    match = _WHO.search(text)
    if match:
        return f"{reason_text.sentence} ({match[1] or match[2]})"
    return f"{reason_text.sentence}: {nodes}" if separator and nodes else reason_text.sentence


def find_reason_advice(reason: str) -> str:
    """Return advice about a waiting job; empty if none is known.

    An array's tasks may have several reasons: advice to act replaces advice to wait.
    """
    reasons = find_reasons(reason)
    advice = dict.fromkeys(reason_text.advice for _, reason_text in reasons if reason_text)
    actions = [text for text in advice if not text.startswith((WAIT, _PHRASES["later"]))]
    later = [text for text in advice if text.startswith(_PHRASES["later"])]
    return "; ".join(actions) or next(iter([*later, *advice]), "")


def never_starts(reason: str) -> bool:
    """Return whether one of the reasons in a text keeps a job from ever starting."""
    return any(
        reason_text
        and (reason_text.advice.startswith(_NEVER) or "it will never start" in reason_text.sentence)
        for _, reason_text in find_reasons(reason)
    )


def _has_reason(reason: str) -> bool:
    return reason.strip("() \t") not in {"", "None", "null"}


# slurmd reports a failure of its own by a number above 4000, in place of a status of wait(2). The
# commands take the lowest seven bits for a signal: 4021, ESLURMD_IO_ERROR, is 31 x 128 + 53, and
# printed as `0:53`. No program dies of these signals by itself.
_SIGNAL = 0x7F
# Slurm 24.11 and 26.05 make the directories above a job's output where a node has none, and start
# the job: its script finds no library there, and ends with a status of its own before it writes
# anything: sysexits.h, EX_NOINPUT.
ABSENT = 66
_BY_SIGNAL = {
    number & _SIGNAL: ReasonText(row["sentence"], row["advice"])
    for row in _TABLES["launch"]
    for number in row["numbers"]
}
_ABSENT, _OTHER = (ReasonText(**_TABLES[name]) for name in ("absent", "other"))
LAUNCH_FAILURES = (*dict.fromkeys(_BY_SIGNAL.values()), _ABSENT, _OTHER)


def find_launch_failure(row: JobRow, *, silent: bool = False) -> ReasonText | None:
    """Return the reason for which a job ended before it started; None if it started.

    Args:
        silent: Whether its script recorded nothing, so that its status is not that of a step.
    """
    if reason_text := _BY_SIGNAL.get(row.signal):
        return reason_text
    if silent and row.exit_code == ABSENT:
        return _ABSENT
    return _OTHER if row.reason == "JobLaunchFailure" else None


def find_launch_advice(detail: str) -> str:
    """Return advice on a state whose detail begins with a launch failure; empty for others."""
    return next(
        (launch.advice for launch in LAUNCH_FAILURES if detail.startswith(launch.sentence)), ""
    )


def find_refusal_advice(complaint: str) -> str:
    """Return the remedy for a refusal by sbatch, from its message; empty if unknown."""
    return next((remedy for words, remedy in _TABLES["refusals"].items() if words in complaint), "")

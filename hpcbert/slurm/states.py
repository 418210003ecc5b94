"""Every state that Slurm has for a job, and what each means for a repeat.

Words, their short codes and which of several is printed: SchedMD/slurm@284c3b9 (26.05),
src/common/slurm_protocol_defs.c, job_state_string, job_state_string_compact and
job_state_string_complete; the bits are in slurm/slurm.h. Bit 9 was UPDATE_DB in 22.05 and is
GETENV_FAILED now; EXPEDITING came with 25.11.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli

from hpcbert.errors import ConfigError
from hpcbert.slurm import reasons
from hpcbert.slurm.reasons import REFUSED_START, WAIT, find_reason_advice
from hpcbert.system.decode import Range, decode

Source = Literal["sacct", "squeue", "status-file", "manifest", "none"]
UNKNOWN = "UNKNOWN"
LOST = "LOST"
UNNEEDED = "UNNEEDED"
# What was written down may be damaged: no moment lies after the year 9999, and a job is requeued a
# few times, not ten thousand.
LATEST, LAST_ATTEMPT = 253_402_300_799, 9_999
_Status = Annotated[int, Range(-LATEST, LATEST)]
# As a record has them: what is whole stays whole.
_Seconds = int | float
_RESUME = "run hpcbert submit --resume CAMPAIGN to continue the submission"
# Of repeats that no scheduler is known to have: their submission was interrupted.
UNSUBMITTED = "it was never submitted"
UNANSWERED = "it may or may not have been submitted: sbatch's answer never arrived"


class Kind(str, Enum):
    """The meaning of a state for a repeat.

    The values are public: `kind` and the counts of `hpcbert monitor --json`.
    """

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REQUEUED = "requeued"
    UNKNOWN = "unknown"
    UNNEEDED = "unneeded"

    def __str__(self) -> str:
        return self.value

    @property
    def over(self) -> bool:
        """Whether it has ended, and how is known."""
        return self is Kind.SUCCEEDED or self is Kind.FAILED or self is Kind.UNNEEDED

    @property
    def alive(self) -> bool:
        """Whether it waits or runs, or will again."""
        return self.queued or self is Kind.RUNNING

    @property
    def queued(self) -> bool:
        """Whether it is in the queue, for the first time or again."""
        return self is Kind.WAITING or self is Kind.REQUEUED


def read_kind(word: Any) -> Kind | None:
    """Return the kind that measurements name; None if unknown."""
    return Kind(word) if word in set(Kind) else None


@dataclass(frozen=True)
class State:
    """One word that Slurm says about a job.

    Attributes:
        code: Its short form, as `squeue -o %t` prints it; empty where it has none.
        returns: Whether Slurm may yet start the job again although this word is an end.
    """

    word: str
    kind: Kind
    sentence: str
    code: str = ""
    advice: str = WAIT
    returns: bool = False


_TABLE = tomli.loads(Path(__file__).with_name("states.toml").read_text(encoding="utf-8"))
STATES = tuple(State(**{**row, "kind": Kind(row["kind"])}) for row in _TABLE["states"])
_BY_WORD = {name: state for state in STATES for name in (state.word, state.code) if name}
_PLACE = {state.word: place for place, state in enumerate(STATES)}


@lru_cache
def parse_state(text: str) -> State:
    """Return the state that Slurm's text stands for.

    `CANCELLED by 1000` is CANCELLED, the truncated `OUT_OF_ME+` is OUT_OF_MEMORY, `TO` is TIMEOUT,
    and of several words, `PENDING,REQUEUED`, the one that Slurm would print alone counts. A word
    that is not in the table, or could be cut from several, is of kind `unknown`: never a success.
    """
    words = (text.split() or [""])[0].upper().split(",")
    states = [_find_state(word) for word in words]
    return min(states, key=lambda state: _PLACE[state.word] if state.kind != Kind.UNKNOWN else -1)


def _find_state(word: str) -> State:
    if word in _BY_WORD:
        return _BY_WORD[word]
    prefix = word.removesuffix("+")
    states = [
        state for state in STATES if prefix != word and prefix and state.word.startswith(prefix)
    ]
    if len(states) == 1:
        return states[0]
    unknown = _BY_WORD[UNKNOWN]
    return replace(
        unknown, sentence=f"Slurm reports {word or 'nothing'}, which is not a known state"
    )


@dataclass(frozen=True)
class RepeatState:
    """The known state of one repeat.

    Attributes:
        word: The scheduler's word, for Slurm one of STATES; `UNKNOWN` where nobody knows.
        source: Who said so.
        exit_code: Status of the job script as a shell gives it: 128 + n after signal n.
        attempt: 0, or how often Slurm had requeued it before.
        reason: Slurm's own word for why it waits; empty if it does not.
        detail: A sentence for a person; empty where the word says all.
        start, end: Seconds since the epoch, None before it started, or ended.
        elapsed, limit: Seconds.
        suspended: Seconds for which it was suspended, by whose account is the longest; 0 where
            nobody says.
        step_exit: Exit status of the measured step, from the job's own status file. The scheduler
            may call a job COMPLETED whose step failed: who judges numbers looks at both.
        hopeless: Whether Slurm ended it because it could never start.
        earlier: What the scheduler says of attempts before this one, oldest first.
    """

    word: str
    kind: Kind
    source: Source
    nodes: tuple[str, ...] = ()
    exit_code: _Status | None = None
    attempt: Annotated[int, Range(0, LAST_ATTEMPT)] = 0
    reason: str = ""
    detail: str = ""
    elapsed: _Seconds | None = None
    start: _Seconds | None = None
    end: _Seconds | None = None
    limit: _Seconds | None = None
    step_exit: _Status | None = None
    suspended: _Seconds = 0.0
    hopeless: bool = False
    earlier: tuple[RepeatState, ...] = ()

    @property
    def cancelled(self) -> bool:
        """Whether somebody ended it: it did not fail on its own."""
        return self.kind is Kind.FAILED and self.word == "CANCELLED"

    @property
    def advice(self) -> str:
        """What to do about it; empty if you need only wait, or if all is well."""
        if self.detail in {UNSUBMITTED, UNANSWERED}:
            return _RESUME
        if self.hopeless:
            return REFUSED_START
        advice = reasons.find_launch_advice(self.detail)
        if not advice and self.word == "REFUSED":
            advice = reasons.find_refusal_advice(self.detail)
        if advice:
            return advice
        if self.word not in _BY_WORD:  # the word of another scheduler
            known_word = {Kind.FAILED: "FAILED", Kind.UNKNOWN: UNKNOWN}.get(self.kind, "PENDING")
            return replace(self, word=known_word).advice
        waits = self.kind == Kind.WAITING and self.reason
        advice = find_reason_advice(self.reason) if waits else parse_state(self.word).advice
        return "" if advice == WAIT or self.word == "COMPLETED" else advice


def dump_state(state: RepeatState) -> dict[str, Any]:
    """Return a state as it is written down, without those of earlier attempts."""
    data = asdict(replace(state, earlier=()))
    del data["earlier"]
    return data


def load_state(data: Any) -> RepeatState:
    """Return a state that was written down as JSON, by `dump_state`.

    Raises:
        TypeError: It has another form.
    """
    try:
        return decode(RepeatState, data, file="", earlier=())
    except ConfigError as error:
        raise TypeError(error.message) from error


def bounded_int(value: Any, maximum: int = LATEST) -> int | None:
    """Return an integer from -maximum to maximum; None for any other value."""
    is_valid = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= maximum
    return value if is_valid else None

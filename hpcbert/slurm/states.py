"""Every state that Slurm has for a job, and what each means for a repeat.

Words and their order of precedence: SchedMD/slurm@284c3b9, src/common/slurm_protocol_defs.c,
job_state_string and job_state_string_complete. They are the same from 22.05 to 25.05; 25.11 added
EXPEDITING.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Kind = Literal["waiting", "running", "well", "badly", "again", "unknown"]
Source = Literal["sacct", "squeue", "status-file", "none"]
UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class State:
    """One word that Slurm says about a job.

    Attributes:
        kind: `waiting`, `running`, done `well` or `badly`, to be run `again`, or `unknown`.
        sentence: What it means, for a person.
        returns: Whether Slurm may yet start the job anew although this word is an end.
    """

    word: str
    kind: Kind
    sentence: str
    returns: bool = False


STATES: tuple[State, ...] = (
    State("PENDING", "waiting", "waits in the queue"),
    State("CONFIGURING", "waiting", "has its nodes, which are being made ready"),
    State("POWER_UP_NODE", "waiting", "has its nodes, which are being powered up"),
    State("RESV_DEL_HOLD", "waiting", "is held: its reservation was deleted"),
    State("RUNNING", "running", "runs"),
    State("COMPLETING", "running", "has ended; its nodes are being cleaned up"),
    State("STAGE_OUT", "running", "has ended; its data are being staged out"),
    State("SIGNALING", "running", "runs and is being sent a signal"),
    State("RESIZING", "running", "runs while its size is changed"),
    State("SUSPENDED", "running", "holds its nodes but is suspended, so its number is spoilt"),
    State("STOPPED", "running", "holds its nodes but is stopped, so its number is spoilt"),
    State("COMPLETED", "well", "completed"),
    State("FAILED", "badly", "failed"),
    State("CANCELLED", "badly", "was cancelled"),
    State("TIMEOUT", "badly", "reached its time limit"),
    State("DEADLINE", "badly", "could not end before its deadline"),
    State("OUT_OF_MEMORY", "badly", "ran out of memory"),
    State("NODE_FAIL", "badly", "lost a node", returns=True),
    State("BOOT_FAIL", "badly", "got a node that did not boot", returns=True),
    State("PREEMPTED", "badly", "was preempted by another job", returns=True),
    State("LAUNCH_FAILED", "badly", "could not be launched", returns=True),
    State("RECONFIG_FAIL", "badly", "got nodes that could not be configured", returns=True),
    State("GETENV_FAILED", "badly", "could not get its user's environment", returns=True),
    State("REVOKED", "badly", "was taken over by another cluster of the federation"),
    State("REQUEUED", "again", "goes back to the queue"),
    State("REQUEUE_FED", "again", "goes back to the queue of the federation"),
    State("REQUEUE_HOLD", "again", "went back to the queue and is held there"),
    State("SPECIAL_EXIT", "again", "went back to the queue and is held there"),
    State("EXPEDITING", "again", "goes back to the head of the queue"),
    # Not Slurm's words, but what stands where Slurm has none.
    State("REFUSED", "badly", "was refused by sbatch"),
    State(UNKNOWN, "unknown", "is in a state that nobody can tell"),
)
_BY_WORD = {state.word: state for state in STATES}

# Why a job waits, as far as the word alone does not tell (src/common/job_state_reason.c).
_REASONS = {
    "Priority": "jobs of higher priority come first",
    "Resources": "waits until enough nodes are free",
    "JobArrayTaskLimit": "repeats of a point run one after another",
    "Dependency": "waits for the job that comes before it",
    "DependencyNeverSatisfied": "depends on a job that failed: it will never start",
    "BeginTime": "may not begin yet (after a requeue Slurm waits two minutes)",
    "JobHeldUser": "is held: scontrol release JOBID lets it go",
    "JobHeldAdmin": "is held by an administrator",
    "JobHoldMaxRequeue": "was requeued too often and is held",
    "Licenses": "waits for a licence",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": "its reservation was deleted",
    "ReqNodeNotAvail": "a node it needs is down, drained or reserved",
    "NodeDown": "a node it needs is down",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "asks for more nodes than its partition gives",
    "PartitionTimeLimit": "asks for more time than its partition gives",
    "PartitionConfig": "asks for what its partition does not give",
    "BadConstraints": "asks for what no node has",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its QOS may not use this partition",
    "Prolog": "the prolog runs on its nodes",
    "Cleaning": "its last run is being cleaned up",
    "SchedDefer": "the scheduler puts new jobs off",
    "BurstBufferResources": "waits for room in the burst buffer",
    "BurstBufferStageIn": "its data are being staged in",
    "MaxPoweredUpNodes": "as many nodes as allowed are powered up",
    "SystemFailure": "Slurm had a failure of its own",
    "launch failed requeued held": "failed to launch and is held",
    "job requeued in held state": "was requeued and is held",
}
_LIMITS = (
    ("Assoc", "your account is at its limit"),
    ("QOS", "the QOS is at its limit"),
    ("Max", "your account is at its limit"),
)


def parse(text: str) -> State:
    """Return the state that Slurm's text stands for.

    `CANCELLED by 1000` is CANCELLED, the truncated `OUT_OF_ME+` is OUT_OF_MEMORY. A word that is
    not in the table, or could be cut from several, is of kind `unknown`: never a success.
    """
    word = (text.split() or [""])[0].upper()
    if word in _BY_WORD:
        return _BY_WORD[word]
    start = word.removesuffix("+")
    whole = [one for one in STATES if start != word and start and one.word.startswith(start)]
    if len(whole) == 1:
        return whole[0]
    return State(UNKNOWN, "unknown", f"Slurm says {word or 'nothing'}, which is not understood")


def reason_sentence(reason: str) -> str:
    """Return why a job waits, as a sentence; empty where Slurm gives no reason."""
    word = re.split(r"[,(]", reason, maxsplit=1)[0].strip()
    if word in {"", "None"}:
        return ""
    if word in _REASONS:
        return _REASONS[word]
    for start, sentence in _LIMITS:
        if word.startswith(start):
            return f"{sentence} ({word})"
    return f"Slurm's reason is {reason.strip()}"


@dataclass(frozen=True)
class RepeatState:
    """What is known of one repeat.

    Attributes:
        word: The scheduler's word, one of STATES; `UNKNOWN` where nobody knows.
        kind: The word's class.
        source: Who said so.
        nodes: Names of its nodes, where known.
        exit_code: Status of the job script as a shell gives it: 128 + n after signal n.
        attempt: 0, or how often Slurm had requeued it before.
        reason: Slurm's own word for why it waits; empty if it does not.
        detail: A sentence for a person; empty where the word says all.
        elapsed: Seconds it has run or ran.
        start: Seconds since the epoch, None before it started.
        end: Likewise, None before it ended.
        limit: Time limit, seconds.
        step_exit: Exit status of the measured step, from the job's own status file. The scheduler
            may call a job COMPLETED whose step failed: who judges numbers looks at both.
    """

    word: str
    kind: Kind
    source: Source
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    attempt: int = 0
    reason: str = ""
    detail: str = ""
    elapsed: float | None = None
    start: float | None = None
    end: float | None = None
    limit: float | None = None
    step_exit: int | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self.kind in {"well", "badly"}


@dataclass(frozen=True)
class Witness:
    """What a job itself wrote about the newest attempt of one repeat; None: it did not say.

    Attributes:
        attempt: Which attempt that is.
        start: When the script started, seconds since the epoch.
        end: When it ended.
        exit: Its exit status.
        step_exit: That of the measured step.
        signal: Name of the last signal that it caught.
        nodelist: Its nodes, as Slurm writes them.
        state: What the local queue found in the end.
        reason: Why, where the local queue had to say more.
    """

    attempt: int = 0
    start: float | None = None
    end: float | None = None
    exit: int | None = None
    step_exit: int | None = None
    signal: str = ""
    nodelist: str = ""
    state: str = ""
    reason: str = ""


def witness(events: Iterable[Mapping[str, Any]]) -> Witness:
    """Reduce the events of a status file to the newest attempt."""
    newest = Witness()
    for event in events:
        attempt = _whole(event.get("attempt")) or 0
        if attempt < newest.attempt:
            continue
        kind = event.get("event")
        if attempt > newest.attempt or kind == "start":
            newest = Witness(attempt=attempt)
        newest = _seen(newest, str(kind), event)
    return newest


def _seen(known: Witness, kind: str, event: Mapping[str, Any]) -> Witness:
    time, code = _whole(event.get("time")), _whole(event.get("exit"))
    changes: dict[str, dict[str, Any]] = {
        "start": {"start": time, "nodelist": str(event.get("nodelist", ""))},
        "step-end": {"step_exit": code},
        "signal": {"signal": str(event.get("signal", ""))},
        "end": {"end": time, "exit": code},
        "finished": {
            "end": time,
            "exit": code if known.exit is None else known.exit,
            "state": str(event.get("state", "")),
            "reason": str(event.get("reason", "")),
        },
    }
    return replace(known, **changes.get(kind, {}))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

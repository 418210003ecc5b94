"""Why a job waits, could not be started, or was refused: Slurm's words as sentences and advice.

The words: SchedMD/slurm@284c3b9 (26.05), src/common/job_state_reason.c, and those that releases
from 22.05 on also had, src/common/slurm_protocol_defs.c. The limits of associations and QOS are
many words of one form, and are put together here from their parts. The free texts, which stand in
place of a word: what src/slurmctld, and burst buffers, write into `state_desc`.

squeue prints the texts as they are, in parentheses as `%R`, and joins those of an array's waiting
tasks with commas (src/squeue/print.c, _merge_job_reason); scontrol prints underscores for spaces
(src/scontrol/info_job.c); sacct prints words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from hpcbert.slurm.commands import JobRow

WAIT = "wait; no action is needed"
_NEVER = "it can never start: cancel it"
IMPOSSIBLE = f"{_NEVER}, correct the request and submit again"
REFUSED_START = "a retry would end the same way: correct the request and submit again"
_RELEASE = "release it: scontrol release JOBID"
_ADMIN = "ask the administrators"
_LATER = "wait until other jobs have ended"
_ANOTHER = "another --account or --qos"


def _submit_with(remedy: str) -> str:
    return f"{_NEVER}, and submit again with {remedy}"


class ReasonText(NamedTuple):
    """A reason for waiting.

    Attributes:
        sentence: What it means, for a person.
        advice: What to do about it.
    """

    sentence: str
    advice: str = WAIT


def _advise_waiting(remedy: str) -> str:
    """Return the advice about a limit over several jobs, which one job may exceed by itself."""
    alone = f"{remedy}, or with {_ANOTHER}" if remedy else _ANOTHER
    return f"{_LATER}; if none of them runs, cancel it, and submit again with {alone}"


_USED_UP = f"{_ADMIN}, or cancel it, and submit again with {_ANOTHER}"
REASONS: dict[str, ReasonText] = {
    "Priority": ReasonText("jobs with a higher priority come first"),
    "Resources": ReasonText("waits until enough nodes are free"),
    "JobArrayTaskLimit": ReasonText("repeats of a point run one after another"),
    "Dependency": ReasonText("waits for the job that comes before it"),
    "DependencyNeverSatisfied": ReasonText(
        "depends on a job that failed: it will never start",
        "cancel it, and submit again when the job before it succeeds",
    ),
    "BeginTime": ReasonText("may not start yet (Slurm waits two minutes after a requeue)"),
    "Prolog": ReasonText("the prolog is running on its nodes"),
    "Cleaning": ReasonText("its last run is being cleaned up"),
    "SchedDefer": ReasonText("the scheduler is deferring new jobs"),
    "Licenses": ReasonText("waits for a licence"),
    "Reservation": ReasonText("waits for its reservation to begin"),
    "ReservationDeleted": ReasonText(
        "its reservation was deleted", "cancel it, and submit again without the reservation"
    ),
    "ReservationInvalid": ReasonText(
        "its reservation cannot be used", "cancel it, and submit again without the reservation"
    ),
    "JobHeldUser": ReasonText("is held by its user", _RELEASE),
    "JobHeldAdmin": ReasonText("is held by an administrator", _ADMIN),
    "JobHoldMaxRequeue": ReasonText(
        "was requeued too often and is held", f"find out why it was requeued, then {_RELEASE}"
    ),
    "ReqNodeNotAvail": ReasonText(
        "a node it needs is down, drained or reserved",
        "wait, or submit again without naming nodes; sinfo -R says why nodes are away",
    ),
    "FrontEndDown": ReasonText("all front end nodes are down", _ADMIN),
    "BlockMaxError": ReasonText("its block of nodes failed too often", _ADMIN),
    "BlockFreeAction": ReasonText("waits until its block of nodes is free"),
    "PowerNotAvail": ReasonText("waits for power that other jobs use", _LATER),
    "PowerReserved": ReasonText("waits for power that is reserved for other jobs", _LATER),
    "NodeDown": ReasonText("a node it needs is down", "wait, or submit again without naming nodes"),
    "PartitionDown": ReasonText("its partition is down", _ADMIN),
    "PartitionInactive": ReasonText("its partition is inactive", _ADMIN),
    "PartitionNodeLimit": ReasonText(
        "requests more or fewer nodes than its partition allows",
        _submit_with("other --nodes, or in another --partition"),
    ),
    "PartitionTimeLimit": ReasonText(
        "requests more time than its partition allows",
        _submit_with("a shorter --time, or in another --partition"),
    ),
    "PartitionConfig": ReasonText(
        "requests something that its partition does not allow",
        _submit_with(
            "fewer --nodes, less slurm.memory or a shorter --time, or in another --partition"
        ),
    ),
    "BadConstraints": ReasonText(
        "requests something that no node has",
        _submit_with("fewer --gpus-per-node, another slurm.gres, slurm.constraint or slurm.memory"),
    ),
    "Constraints": ReasonText(
        "requests something that no node has at present", "wait, or request less"
    ),
    "DeadLine": ReasonText("can't finish before its deadline", IMPOSSIBLE),
    "InvalidAccount": ReasonText(
        "its account is invalid",
        _submit_with("another --account"),
    ),
    "InvalidQOS": ReasonText(
        "its QOS is invalid",
        _submit_with("another --qos"),
    ),
    "AccountNotAllowed": ReasonText(
        "its account may not use this partition",
        _submit_with("another --account or --partition"),
    ),
    "QOSNotAllowed": ReasonText(
        "its QOS may not use this partition",
        _submit_with("another --qos or --partition"),
    ),
    "AccountingPolicy": ReasonText(
        "has reached a limit set in accounting",
        _advise_waiting("fewer --nodes or a shorter --time"),
    ),
    "MaxMemPerLimit": ReasonText(
        "requests more memory than its partition allows",
        _submit_with("less slurm.memory, or in another --partition"),
    ),
    "AssociationJobLimit": ReasonText(
        "your account has as many jobs as it is allowed", _advise_waiting("")
    ),
    "AssociationResourceLimit": ReasonText(
        "your account has reached a limit on its resources",
        _advise_waiting("fewer --nodes or a shorter --time"),
    ),
    "AssociationTimeLimit": ReasonText("your account has used up its time", _USED_UP),
    "AssocMaxJobsLimit": ReasonText(
        "you have as many jobs running as your account allows", _advise_waiting("")
    ),
    "QOSJobLimit": ReasonText("the QOS has as many jobs as it is allowed", _advise_waiting("")),
    "QOSResourceLimit": ReasonText(
        "the QOS has reached a limit on its resources",
        _advise_waiting("fewer --nodes or a shorter --time"),
    ),
    "QOSTimeLimit": ReasonText("the QOS has used up its time", _USED_UP),
    "QOSUsageThreshold": ReasonText("the QOS has exceeded its usage threshold", _LATER),
    "BurstBufferResources": ReasonText("waits for room in the burst buffer"),
    "BurstBufferStageIn": ReasonText("its data are being staged in"),
    "BurstBufferOperation": ReasonText("an operation of the burst buffer failed", _ADMIN),
    "MaxPoweredUpNodes": ReasonText("the allowed number of nodes is already powered up", _LATER),
    "MpiPortsBusy": ReasonText("all ports for its MPI are in use", _LATER),
    "NvidiaImexChannels": ReasonText("waits for a free IMEX channel", _LATER),
    "FedJobLock": ReasonText("waits for the clusters of the federation to agree"),
    "SystemFailure": ReasonText("Slurm itself failed", _ADMIN),
    # How an earlier run of the same job ended: shown while it waits for the next one.
    "JobLaunchFailure": ReasonText(
        "could not be launched in its last run", "see slurm/*.out; wait"
    ),
    "NonZeroExitCode": ReasonText("failed in its last run and was requeued", "read its log"),
    "RaisedSignal": ReasonText(
        "was ended by a signal in its last run and was requeued", "read its log"
    ),
    "TimeLimit": ReasonText(
        "reached its time limit in its last run", "submit with a longer --time"
    ),
    "InactiveLimit": ReasonText("was idle for too long in its last run", _ADMIN),
    "OutOfMemory": ReasonText("ran out of memory in its last run", "request more memory"),
}

_PERMISSION = "ask the administrators, or submit to another partition or account"
# Free texts by how they begin; what follows (names, numbers, nodes) is theirs too.
TEXTS: dict[str, ReasonText] = {
    "Nodes required for job are DOWN": ReasonText(
        "the nodes it may run on are down, drained or reserved for partitions of higher priority",
        "wait, or choose another partition; sinfo -R says why nodes are away",
    ),
    "UnavailableNodes:": REASONS["ReqNodeNotAvail"],
    # Of a node that is drained, too (seen with 24.11.5).
    "May be reserved for other job": ReasonText(
        "a node it needs is drained, or may be reserved for another job",
        f"{_LATER}; sinfo -R says why nodes are away",
    ),
    "Reserved for maintenance": ReasonText(
        "a node it needs is reserved for maintenance before this job could end",
        "wait until then (scontrol show reservation), or submit again with a shorter --time",
    ),
    "job requeued in held state": ReasonText("was requeued and is held", _RELEASE),
    "job requeued in special exit state": ReasonText(
        "was requeued in a special state and is held", f"find out why, then {_RELEASE}"
    ),
    "launch failed requeued held": ReasonText(
        "failed to launch and is held", f"find out which node failed, then {_RELEASE}"
    ),
    "launch failure limit exceeded requeued held": ReasonText(
        "failed to launch too often and is held", f"find out which nodes failed, then {_RELEASE}"
    ),
    "user env retrieval failed requeued held": ReasonText(
        "could not get its user's environment and is held",
        f"make sure that your login scripts end quickly, then {_RELEASE}",
    ),
    "Job's account not permitted to use this partition": ReasonText(
        "its account may not use this partition", _PERMISSION
    ),
    "Job's QOS not permitted to use this partition": ReasonText(
        "its QOS may not use this partition", _PERMISSION
    ),
    "Job's QOS not known": ReasonText(
        "its QOS is unknown, and this partition requires a QOS of its own", _PERMISSION
    ),
    "User's group not permitted to use this partition": ReasonText(
        "your group may not use this partition", _PERMISSION
    ),
    "uid ": ReasonText("none of your groups may use this partition", _PERMISSION),
    "License request ": ReasonText(
        "requests a licence that no longer exists, and is held", IMPOSSIBLE
    ),
    "Reservation ": ReasonText(
        "its reservation has ended, was deleted, or cannot be used",
        "cancel it, and submit again without the reservation",
    ),
    "Job is at or exceeds QOS": ReasonText("the QOS has used up its time", _USED_UP),
    "Job is at or exceeds association": ReasonText("your account has used up its time", _USED_UP),
    "Memory resize to ": ReasonText("Slurm could not change its memory", _ADMIN),
    "Unable to load job ": ReasonText(
        "Slurm has lost the job's script or environment", "cancel it, and submit again"
    ),
    "Burst buffer ": ReasonText("an operation of the burst buffer failed", _ADMIN),
    "burst_buffer/": ReasonText("the burst buffer is working for it, or has failed", _ADMIN),
    "Error managing persistent burst buffers": ReasonText("the burst buffer failed", _ADMIN),
    **dict.fromkeys(
        (
            "Required nodes do not fit topology",
            "No suitable topology unit found",
            "Insufficient resources in topology unit",
            "Weight-based selection could not satisfy request",
            "Exceeded maximum node limit during topology allocation",
            "No available nodes in topology",
            "Requested topology configuration is not available",
        ),
        ReasonText("waits until free nodes fit the network's topology"),
    ),
}
# Whom a partition takes: `(gpu allows a,b not c)`, `groups allowed: a,b`.
_WHO = re.compile(r"\(([^()]* (?:allows|denies) [^()]*)\)|(groups allowed: .+)")
# Length from which the beginning of a text that was cut off stands for the text.
_CUT = 6

# `AssocGrpCpuLimit`, `QOSMaxGRESMinutesPerJob`, `MaxNodePerAccount`, `QOSMinMemory`: whose limit,
# of what kind, on what, and over what it is counted.
_LIMIT = re.compile(
    r"(?P<whose>Assoc|QOS|)(?P<kind>Grp|Max|Min)"
    r"(?P<what>CPU|Cpu|Mem(?:ory)?|Node|Jobs?|SubmitJobs?|Wall(?:Duration)?|GRES|Energy|License|BB"
    r"|Billing|Unknown)s?"
    r"(?P<minutes>RunMinutes|Minutes|)(?:Limit)?(?:Per(?P<per>Job|Node|User|Account))?"
    r"(?:Limit|NotSatisfied)?"
)
_WHOSE = {"Assoc": "your account", "QOS": "the QOS", "": "the QOS"}
_WHAT = {
    "CPU": "CPUs",
    "Cpu": "CPUs",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "Job": "jobs",
    "Jobs": "jobs",
    "SubmitJob": "submitted jobs",
    "SubmitJobs": "submitted jobs",
    "Wall": "time",
    "WallDuration": "time",
    "GRES": "GPUs",
    "Energy": "energy",
    "License": "licences",
    "BB": "burst buffer",
    "Billing": "billed units",
    "Unknown": "some resource",
}

# What to type for less of it, of a job and of each node; nothing makes one job fewer.
_REMEDIES = {
    "CPUs": "fewer --nodes or a smaller nodes.cpus_per_gpu",
    "memory": "fewer --nodes or less slurm.memory",
    "jobs": "",
    "submitted jobs": "",
    "time": "a shorter --time",
    "GPUs": "fewer --nodes or --gpus-per-node",
}
_REMEDIES_PER_NODE = {
    "CPUs": "a smaller nodes.cpus_per_gpu",
    "memory": "less slurm.memory",
    "GPUs": "fewer --gpus-per-node",
}


def find_reasons(reason: str) -> tuple[tuple[str, ReasonText | None], ...]:
    """Return the reasons that a text of Slurm's holds, each with what is known of it.

    Args:
        reason: As Slurm prints it: `ReqNodeNotAvail, UnavailableNodes:n[1-2],JobArrayTaskLimit`.
    """
    reasons: list[tuple[str, ReasonText | None]] = []
    for part in _split_reasons(reason):
        reason_text = _match_reason(part.strip())
        before = reasons[-1][0] if reasons else ""
        if reasons and _continues(before, part.strip(), reason_text):
            reasons[-1] = f"{before},{part}", reason_text or reasons[-1][1]
        else:
            reasons.append((part.strip(), reason_text))
    return tuple(reasons)


def _split_reasons(reason: str) -> Iterator[str]:
    text = reason.strip()
    if text.startswith("("):
        text = text[1:].removesuffix(")")
    if " " not in text and not text.startswith("burst_buffer/"):
        text = text.replace("_", " ")
    text = re.sub(r"(\+|\.\.\.|\u2026)$", "", text)
    return (part for part in text.split(",") if part.strip())


def _continues(before: str, part: str, reason_text: ReasonText | None) -> bool:
    """Return whether a part continues the text before it, so that the comma is the text's own.

    Texts of several clauses and lists of nodes or groups have commas.
    """
    if before.startswith("ReqNodeNotAvail"):
        return reason_text is None or _match_word(part) is None
    return reason_text is None and _match_word(before) is None and _match_reason(before) is not None


def _match_reason(text: str) -> ReasonText | None:
    """Look up one reason, which may be cut off; None if no table has it."""
    word = re.split(r"[(:]", text, maxsplit=1)[0].strip()
    candidates = (reason_text for start, reason_text in TEXTS.items() if text.startswith(start))
    if exact := _match_word(word) or next(candidates, None):
        return exact
    # What was cut off may stand for several that mean the same.
    reason_texts = {
        reason_text for start, reason_text in {**REASONS, **TEXTS}.items() if start.startswith(text)
    }
    return reason_texts.pop() if len(text) >= _CUT and len(reason_texts) == 1 else None


def _match_word(word: str) -> ReasonText | None:
    if word in REASONS:
        return REASONS[word]
    limit = _LIMIT.fullmatch(word)
    if limit:
        return _describe_limit(limit)
    for start, whose in (("Assoc", "your account"), ("QOS", "the QOS"), ("Max", "the QOS")):
        if re.fullmatch(rf"{start}[A-Z]\w+", word):
            return ReasonText(f"{whose} has reached its limit ({word})", _LATER)
    return None


def _describe_limit(match: re.Match[str]) -> ReasonText:
    holder, resource, word = _WHOSE[match["whose"]], _WHAT[match["what"]], match[0]
    remedy = _REMEDIES.get(resource, "fewer --nodes")
    if match["minutes"]:
        resource, remedy = f"{resource} x minutes", "a shorter --time or fewer --nodes"
    if match["kind"] == "Min":
        sentence = f"requests less than the {resource} that {holder} demands ({word})"
        return ReasonText(sentence, _submit_with(f"more, or with {_ANOTHER}"))
    if match["per"] in {"Job", "Node"}:
        unit = "job" if match["per"] == "Job" else "node"
        sentence = f"requests more {resource} per {unit} than {holder} allows ({word})"
        remedy = _REMEDIES_PER_NODE.get(resource, remedy) if unit == "node" else remedy
        return ReasonText(sentence, _submit_with(f"{remedy}, or with {_ANOTHER}"))
    if match["per"] == "User":
        sentence = f"you have reached the limit on {resource} per user that {holder} sets ({word})"
        return ReasonText(sentence, _advise_waiting(remedy))
    total = match["kind"] == "Grp" and resource == "time"  # GrpWall counts jobs that ended, too
    if total or match["minutes"] == "Minutes":
        return ReasonText(f"{holder} has used up its limit of {resource} ({word})", _USED_UP)
    sentence = f"{holder} has reached its limit on {resource} over all its jobs ({word})"
    return ReasonText(sentence, _advise_waiting(remedy))


def describe_reason(reason: str) -> str:
    """Return a sentence on why a job waits; empty if Slurm gives no reason."""
    if not _has_reason(reason):
        return ""
    reasons = find_reasons(reason)
    if not any(reason_text for _, reason_text in reasons):
        return f"Slurm's reason is {reason.strip()}"
    sentences = (_describe_text(text, reason_text) for text, reason_text in reasons)
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
    reasons = find_reasons(reason) if _has_reason(reason) else ()
    advice = dict.fromkeys(reason_text.advice for _, reason_text in reasons if reason_text)
    actions = [text for text in advice if not text.startswith((WAIT, _LATER))]
    later = [text for text in advice if text.startswith(_LATER)]
    return "; ".join(actions) or next(iter([*later, *advice]), "")


def never_starts(reason: str) -> bool:
    """Return whether one of the reasons in a text keeps a job from ever starting."""
    return _has_reason(reason) and any(
        reason_text
        and (reason_text.advice.startswith(_NEVER) or "it will never start" in reason_text.sentence)
        for _, reason_text in find_reasons(reason)
    )


def _has_reason(reason: str) -> bool:
    return reason.strip("() \t") not in {"", "None", "null"}


# Why a node could not start a job. slurmd reports a failure of its own by a number above 4000
# (SchedMD/slurm, slurm/slurm_errno.h, 22.05 to 26.05), in place of a status of wait(2). The
# commands take the lowest seven bits for a signal: 4021, ESLURMD_IO_ERROR, is 31 x 128 + 53, and
# printed as `0:53`. No program dies of these signals by itself.
#
# Slurm 24.11 and 26.05 make the directories above a job's output where a node has none, and start
# the job: its script finds no library there, and ends with a status of its own before it writes
# anything: sysexits.h, EX_NOINPUT.
ABSENT = 66
_SIGNAL = 0x7F
_DOCTOR = "hpcbert doctor --nodes 1 checks them"
_PLACE = ReasonText(
    "could not be started: the node could not open the job's output. On that node, the campaign's "
    "directory is missing, is a different one, or can't be written to",
    f"keep campaigns in a directory that all nodes mount and you may write to; {_DOCTOR}; "
    "then run hpcbert retry",
)
_ABSENT = ReasonText(
    "ran nothing: on its node the directory of the campaign is missing, or differs from the login "
    "node's",
    _PLACE.advice,
)
_USER = ReasonText(
    "could not be started: the node does not know your user or your groups",
    f"report the node to the administrators; {_DOCTOR}",
)
_ENVIRONMENT = ReasonText(
    "could not be started: the node could not set up the job's environment, or its prolog failed",
    "report the node to the administrators, then run hpcbert retry",
)
_SCRIPT = ReasonText(
    "could not be started: the node could not run the job's script",
    "check that the node has /bin/bash and that no file system is full; report the node to the "
    "administrators",
)
_PROLOG = ReasonText(
    "could not be started: the prolog failed on its node",
    "report the node to the administrators, then run hpcbert retry",
)
_OTHER = ReasonText(
    "could not be started on its node",
    f"check that all nodes mount the campaign's directory: {_DOCTOR}; if they do, report the node "
    "to the administrators",
)
_BY_NUMBER = {
    **dict.fromkeys((4005, 4006, 4016, 4017), _USER),
    **dict.fromkeys((4010, 4011, 4012, 4013, 4020), _SCRIPT),
    4014: _ENVIRONMENT,
    4021: _PLACE,
    4022: _PROLOG,
}
_BY_SIGNAL = {number & _SIGNAL: reason_text for number, reason_text in _BY_NUMBER.items()}
LAUNCH_FAILURES = (*dict.fromkeys(_BY_NUMBER.values()), _ABSENT, _OTHER)


def find_launch_failure(row: JobRow, *, silent: bool = False) -> ReasonText | None:
    """Return the reason for which a job ended before it started; None if it started.

    Args:
        row: Of sacct or squeue.
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


# Why sbatch refuses a job, from its own messages: SchedMD/slurm, src/common/slurm_errno.c, 22.05 to
# 26.05.
_PARTITION = "name another partition with --partition, or ask the administrators"
_ACCOUNT = "name an account of yours with --account: sacctmgr show assoc user=$USER"
_QOS = "name a QOS of yours with --qos: sacctmgr show assoc user=$USER format=account,qos"
_WAIT = "name another partition with --partition, or wait: see sinfo -R for the reason"
_LESS = "request less with --nodes, --gpus-per-node or --time, or use another --account or --qos"
_NODES = (
    "no node has what you request of each: request fewer with --gpus-per-node, use another "
    "--partition, or change slurm.gres, slurm.constraint or slurm.memory in the site.toml"
)
_RESERVATION = "change slurm.reservation in the site.toml: scontrol show reservation lists them"
REFUSALS = {
    "Invalid account or account/partition combination": _ACCOUNT,
    "Invalid qos specification": _QOS,
    "Requested account has breached requested QOS usage threshold": _QOS,
    "Invalid wckey specification": "give one with --sbatch-arg=--wckey=…",
    "Invalid partition name specified": "name one that sinfo lists with --partition",
    "No partition specified or system default partition": "name one with --partition",
    "User's group not permitted to use this partition": _PARTITION,
    "Job's account not permitted to use this partition": _PARTITION,
    "Job's QOS not permitted to use this partition": _PARTITION,
    "Access/permission denied": _PARTITION,
    "Required partition not available": _WAIT,
    "Partition in DOWN state": _WAIT,
    "Requested partition configuration not available now": _WAIT,
    "Requested time limit is invalid": "request less --time: sinfo -o '%P %l' shows the limits",
    "Job violates accounting/QOS policy": _LESS,
    "Node count specification invalid": "request another number of nodes with --nodes: "
    "sinfo -o '%P %s' shows the limits",
    "More processors requested than permitted": "lower nodes.cpus_per_gpu in the site.toml",
    "CPU count specification invalid": "lower nodes.cpus_per_gpu in the site.toml",
    "CPU count per node can not be satisfied": "lower nodes.cpus_per_gpu in the site.toml",
    "Requested node configuration is not available": _NODES,
    "Invalid generic resource (gres) specification": _NODES,
    "Invalid Trackable RESource (TRES) specification": _NODES,
    "Memory required by task is not available": "lower slurm.memory in the site.toml",
    "Memory specification can not be satisfied": "lower slurm.memory in the site.toml",
    "Invalid feature specification": "change slurm.constraint: sinfo -o '%P %f' lists them",
    "Requested reservation is invalid": _RESERVATION,
    "Access denied to requested reservation": _RESERVATION,
    "Requested reservation not usable now": _RESERVATION,
    "Requested reservation is in use": _RESERVATION,
    "Invalid node name specified": "name nodes that sinfo lists, or none",
    "Requested nodes not in this partition": "name nodes of the partition, or another --partition",
    "Invalid license specification": "give one that scontrol show licenses lists, or none",
    "Invalid job array specification": "request fewer repeats at a time with --repeats",
}


def find_refusal_advice(complaint: str) -> str:
    """Return the remedy for a refusal by sbatch, from its message; empty if unknown."""
    return next((remedy for words, remedy in REFUSALS.items() if words in complaint), "")

"""The output of Slurm's commands: the only place with their columns.

A column is one word below and, where a test changes it, a keyword of the same name.
"""

from __future__ import annotations

from typing import Any

# 2026-11-21T10:06:39Z: when jobs are submitted, unless a test says otherwise.
T = 1_795_255_599
NAME = "hpcbert-camp-bert-tiny_1n1g_fp32_b4"

_SACCT = "{job}|{user}|{state}|{exit_code}|{reason}|{submit}|{start}|{end}|{elapsed}|{limit}|{nodes}|{name}"
_SACCT_PLACE = "|{uid}|{cluster}|{place}"
_SQUEUE = "{job}|{user}|{state}|{submit}|{start}|{end}|{elapsed}|{limit}|{nodes}|{name}|{reason}"
_SQUEUE_PLACE = "|//{uid}|//{command}|//{place}|//{comment}"
_SCONTROL = """\
JobId={job} ArrayJobId={job} ArrayTaskId={tasks} JobName={name}
   UserId={user}({uid}) GroupId=g(1) MCS_label=N/A
   JobState={state} Reason=None Dependency=(null)
   SubmitTime={submit}
   Command={command}
   WorkDir={place}
   Comment={comment}

"""
_ALL: dict[str, Any] = {
    "user": "nobody",
    "name": NAME,
    "reason": "None",
    "submit": T,
    "uid": 7,
    "cluster": "c",
    "command": "",
    "comment": "",
}


def sacct(job: object, state: str, **columns: Any) -> str:
    """Return a line of sacct; with a place, also the columns that identify the job's campaign."""
    submit = columns.get("submit", T)
    defaults = {
        "exit_code": "0:0",
        "start": submit + 1,
        "end": submit + 9,
        "elapsed": 8,
        "limit": 60,
    }
    form = _SACCT + (_SACCT_PLACE if "place" in columns else "")
    return (
        form.format(**{**_ALL, **defaults, "nodes": "n1", "job": job, "state": state, **columns})
        + "\n"
    )


def squeue(job: object, state: str, **columns: Any) -> str:
    """Return a line of squeue; with a place, also the columns that identify the job's campaign."""
    defaults = {"start": "N/A", "end": "N/A", "elapsed": "0:00", "limit": "1:00:00", "nodes": ""}
    form = _SQUEUE + (_SQUEUE_PLACE if "place" in columns else "")
    return form.format(**{**_ALL, **defaults, "job": job, "state": state, **columns}) + "\n"


def scontrol(job: object, **columns: Any) -> str:
    """Return the output of scontrol for a job."""
    defaults = {"state": "PENDING", "tasks": "1-5%1", "place": "/nowhere", "command": "/nowhere/x"}
    return _SCONTROL.format(**{**_ALL, **defaults, "job": job, **columns})


def sinfo(*nodes: str, partition: str = "gpu*", state: str = "idle") -> str:
    """Return the output of sinfo for nodes."""
    return "".join(f"{node}|{partition}|{state}\n" for node in nodes)

"""Killing a command at its system calls: which it makes, which of them are tried, and how.

HPCBERT_KILLS says how many of them are tried; `all` tries each.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbert.system.runner import Outcome
from tests.kit.waiting import CEILING

# Of a command: a system call and its how-manieth of that name.
Call = tuple[str, int]

POINTS = 2
SUBMIT = (
    *("submit", "--fw", "pytorch", "--gpus-per-node", "2", "--scaling"),
    *("--python", "/usr/bin/python3", "--sbatch-arg=--hold", "--json"),
)
# What is in the name of a campaign and of nothing else that a command opens.
_CAMPAIGN = "-pytorch-"
_KILLS = os.environ.get("HPCBERT_KILLS", "")


def system_calls(trace: Path) -> list[Call]:
    calls: Counter[str] = Counter()
    listed: list[Call] = []
    for line in trace.read_text(errors="replace").splitlines():
        match = re.match(r"(\w+)\(", line)
        if match is None or match[1] == "exit_group":
            continue
        calls[match[1]] += 1
        if listed or _CAMPAIGN in line:
            listed.append((match[1], calls[match[1]]))
    return listed


def chosen(calls: list[Call], sample_size: int) -> list[Call]:
    """Return a few, or as many as HPCBERT_KILLS says, one from each of as many stretches."""
    if _KILLS == "all":
        return calls
    count = int(_KILLS or sample_size)
    chance = random.Random(20261121)
    edges = [len(calls) * part // count for part in range(count + 1)]
    return [
        calls[chance.randrange(low, high)] for low, high in itertools.pairwise(edges) if high > low
    ]


def deadly(call: str, number: int) -> tuple[str, ...]:
    """Return the words of strace that kill a command as it enters a system call."""
    inject = f"inject={call}:signal=KILL:when={number}"
    return ("strace", "--output=/dev/null", f"--trace={call}", "-e", inject, "--")


@dataclass(frozen=True)
class Desk:
    """Where an ordinary user of a real cluster submits from; the jobs are held."""

    runs: Path
    as_user: Any
    checkout: Any

    def __call__(self, *words: str, under: tuple[str, ...] = ()) -> Outcome:
        outcome: Outcome = self.as_user(
            [*under, self.checkout.python, "-m", "hpcbert", *words],
            env={
                "PYTHONPATH": str(self.checkout.path),
                "PYTHONHASHSEED": "0",
                "HPCBERT_RUNS": str(self.runs),
            },
            cwd=self.runs,
            timeout=CEILING,
        )
        return outcome

    def must(self, *words: str, under: tuple[str, ...] = ()) -> dict[str, Any]:
        outcome = self(*words, under=under)
        assert outcome.ok, (words, outcome.stdout, outcome.stderr)
        data: dict[str, Any] = json.loads(outcome.stdout)["data"]
        return data

    def submitted(self) -> Path:
        return Path(self.must(*SUBMIT)["directory"])

    def calls(self, *words: str) -> list[Call]:
        trace = self.runs / "trace"
        self.must(*words, under=("strace", f"--output={trace}", "--"))
        return system_calls(trace)

    def killed(self, call: str, number: int, *words: str) -> bool:
        return not self(*words, under=deadly(call, number)).ok

    def campaigns(self) -> set[Path]:
        return set(self.runs.glob(f"*{_CAMPAIGN}*"))

    def jobs(self, states: str = "all") -> dict[str, set[str]]:
        """Return the ids of the campaigns' jobs in some states by their names.

        The cluster has jobs of other tests, which Slurm forgets at any moment.
        """
        words = ["squeue", "--noheader", f"--states={states}", "--format=%F %j"]
        names = [directory.name for directory in self.campaigns()]
        ids: dict[str, set[str]] = {}
        for line in self.as_user(words).stdout.splitlines():
            job, _, name = line.partition(" ")
            if any(campaign in name for campaign in names):
                ids.setdefault(name, set()).add(job)
        return ids

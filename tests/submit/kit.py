"""A small scripted Slurm, and a campaign to submit to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcbert.config import recipe, site
from hpcbert.config.inventory import Recipe, Site
from hpcbert.model import Shape
from hpcbert.scheduler.slurm.calls import Means
from hpcbert.script.draft import Draft, How, Who, draft
from hpcbert.script.plan import Request
from hpcbert.system.runner import Outcome, Runner

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@dataclass
class FakeSlurm:
    """Queues what sbatch is given; shows it as Slurm does; can be made to fail."""

    jobs: dict[str, str] = field(default_factory=dict)
    answers: list[Outcome | None] = field(default_factory=list)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    environments: list[Mapping[str, str] | None] = field(default_factory=list)
    squeue_works: bool = True
    scontrol_works: bool = True
    die_after_queueing: bool = False
    scripts: dict[str, str] = field(default_factory=dict)

    def __call__(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60.0,
    ) -> Outcome:
        self.calls.append(tuple(argv))
        self.environments.append(env)
        if argv[0] == "sbatch":
            return self.sbatch(argv)
        if argv[0] == "squeue" and self.squeue_works:
            return Outcome(tuple(argv), 0, "".join(map(self.row, self.jobs)))
        if argv[0] == "scontrol" and self.scontrol_works:
            return self.show(tuple(argv))
        return Outcome(tuple(argv), 1, "", f"{argv[0]}: error: Unable to contact")

    def sbatch(self, argv: Sequence[str]) -> Outcome:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None and "queued anyway" not in answer.stdout:
            return answer
        lines = Path(argv[-1]).read_text().splitlines()
        name = next(line for line in lines if "--job-name=" in line).partition("=")[2]
        name = next((word[11:] for word in argv if word.startswith("--job-name=")), name)
        job_id = str(100 + len(self.jobs))
        self.jobs[job_id] = name
        self.scripts[job_id] = argv[-1]
        if self.die_after_queueing:
            raise KeyboardInterrupt
        return answer or Outcome(tuple(argv), 0, f"{job_id}\n")

    def row(self, job: str) -> str:
        script = self.scripts.get(job, "")
        where = f"|//{os.geteuid()}|//{script}|//{Path(script).parent.parent}" if script else ""
        return f"{job}_[1-5%1]|someone|PENDING|1763700000|N/A|N/A|0:00|1:00||{self.jobs[job]}|None{where}\n"

    def show(self, argv: tuple[str, ...]) -> Outcome:
        job = argv[-1]
        if job not in self.jobs:
            return Outcome(argv, 1, "", "slurm_load_jobs error: Invalid job id specified")
        script = self.scripts.get(job, "/nowhere/x")
        text = (
            f"JobId={job} ArrayJobId={job} ArrayTaskId=1-5%1 JobName={self.jobs[job]}\n"
            f"   UserId=someone({os.geteuid()}) GroupId=g(1) MCS_label=N/A\n"
            f"   JobState=PENDING Reason=None Dependency=(null)\n   SubmitTime=1763700000\n"
            f"   Command={script}\n   WorkDir={Path(script).parent.parent}\n\n"
        )
        return Outcome(argv, 0, text)

    def count(self, program: str) -> int:
        return sum(call[0] == program for call in self.calls)


HOW = How(scheduler="slurm", folders=(REPOSITORY / "templates",))


def made(
    tmp_path: Path,
    *,
    precisions: tuple[str, ...] = ("fp32", "bf16"),
    repeats: int = 5,
    most_indices: int = 1000,
) -> Draft:
    where, found, request = asked(tmp_path, precisions=precisions, repeats=repeats)
    how = replace(HOW, most_indices=most_indices)
    who = Who("someone", ("hpcbert", "submit"), 1763700000.0, "abc123")
    return draft(request, where, found, how=how, who=who)


def asked(
    tmp_path: Path, *, precisions: tuple[str, ...] = ("fp32",), repeats: int = 5
) -> tuple[Site, Recipe, Request]:
    where = site.read_site(REPOSITORY / "site.toml", base=tmp_path / "a b", env={})
    found = recipe.load(REPOSITORY / "templates" / "pytorch")
    return where, found, Request(Shape(1, 2), precisions, scaling=True, repeats=repeats)


def hurried(run: Runner) -> Means:
    return Means(run, pause=lambda _: None)


def failing(message: str, code: int = 1, stdout: str = "") -> Outcome:
    return Outcome(("sbatch",), code, stdout, message)

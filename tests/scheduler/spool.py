"""A third scheduler in one file: a batch system that is a directory of files.

A job is a file `NUMBER.job` that names a campaign and a script; `work` does what is there, as a
daemon would. What was done is a `NUMBER.done`, what was cancelled a `NUMBER.cancelled`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.config.schedulers import Traits
from hpcbert.config.site import Site
from hpcbert.errors import SchedulerError
from hpcbert.finding import Finding
from hpcbert.model import Array, Campaign
from hpcbert.scheduler.base import PlainScheduler, Target
from hpcbert.slurm.states import UNKNOWN, Kind, RepeatState

PLACE = "SPOOL"
TRAITS = Traits("spool", f"{__name__}:Spool", runs_locally=True)


class Spool(PlainScheduler):
    """Puts a file a job into the directory that the environment names."""

    @property
    def place(self) -> Path:
        return Path(self.context.environ[PLACE])

    def start(self, directory: Path, campaign: Campaign) -> str:
        (array,) = campaign.arrays
        number = f"{1 + len(list(self.place.iterdir())):04}"
        job = {"campaign": str(directory), "script": array.script, "indices": array.indices}
        try:
            written = self.place / f"{number}.new"
            written.write_text(json.dumps(job))
            written.rename(written.with_suffix(".job"))
        except OSError as error:
            raise SchedulerError(f"The spool takes nothing: {error.strerror}.") from error
        if "SPOOL_DIES" in self.context.environ:
            raise KeyboardInterrupt
        return number

    def find(self, directory: Path, arrays: Sequence[Array]) -> str:
        scripts = {array.script for array in arrays}
        for path in self.place.iterdir():
            job = json.loads(path.read_text())
            if job["campaign"] == str(directory) and job["script"] in scripts:
                return path.stem
        return ""

    def states(self, watched: TrackedCampaign) -> Mapping[Key, RepeatState]:
        watched.records.refresh(watched.directory)
        return {repeat.key: self._state(repeat) for repeat in watched.repeats}

    def _state(self, repeat: Repeat) -> RepeatState:
        job_record = repeat.newest
        return job_record.complete(job_record.end_state or self._unended(repeat))

    def _unended(self, repeat: Repeat) -> RepeatState:
        if (self.place / f"{repeat.array.job_id}.job").exists():
            return RepeatState("PENDING", Kind.WAITING, "none")
        if (self.place / f"{repeat.array.job_id}.cancelled").exists():
            return RepeatState("CANCELLED", Kind.FAILED, "none", detail="it was cancelled")
        return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail="the spool has no such job")

    def cancel(self, watched: TrackedCampaign, target: Target) -> None:
        for job in target.jobs:
            (self.place / f"{job}.job").rename(self.place / f"{job}.cancelled")

    def examine(self, site: Site, *, nodes: int) -> list[Finding]:
        status = "ok" if self.place.is_dir() else "fail"
        return [Finding("spool", status, str(self.place))]


def work(place: Path) -> None:
    """Run what waits, one repeat after another."""
    for path in sorted(place.glob("*.job")):
        job: dict[str, Any] = json.loads(path.read_text())
        for index in job["indices"]:
            env = {"SLURM_ARRAY_JOB_ID": path.stem, "SLURM_ARRAY_TASK_ID": str(index)}
            subprocess.run(
                ["bash", f"{job['campaign']}/{job['script']}"],
                env={**os.environ, **env}, cwd=job["campaign"], check=False, capture_output=True,
            )  # fmt: skip
        path.rename(path.with_suffix(".done"))

"""A scheduler that takes what it is given: a job an array, or one for all of a submission."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.model import utc
from hpcbert.scheduler.base import Job, Scheduler, begun_by, record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcbert.model import Array, Campaign


class PlainScheduler(Scheduler):
    """Submits by starting jobs and finding those that were started before.

    Attributes:
        one_job: Whether one job runs all arrays of a submission; else each has its own.
    """

    one_job = False

    @abstractmethod
    def start(self, directory: Path, campaign: Campaign) -> str:
        """Start a job that runs the arrays of a campaign, which are on disk; return its id.

        Raises:
            SchedulerError: It can't be started.
        """

    @abstractmethod
    def find(self, directory: Path, arrays: Sequence[Array]) -> str:
        """Return the job that an interrupted submission of arrays made, or nothing."""

    def submit(self, directory: Path, campaign: Campaign) -> Campaign:
        """Hand over every array that is not submitted yet, adopting what is there already."""
        new = campaign.unsubmitted
        for array in new:
            store.read_script(directory, array)
        for arrays in [new] if self.one_job and new else [(one,) for one in new]:
            self.world.check()
            campaign = self._hand_over(directory, campaign, arrays)
        return campaign

    def _hand_over(
        self, directory: Path, campaign: Campaign, arrays: tuple[Array, ...]
    ) -> Campaign:
        job_id = self._left_behind(TrackedCampaign(directory, campaign), arrays)
        if not job_id:
            arrays = tuple(replace(one, called=utc(self.world.now())) for one in arrays)
            campaign = record(directory, campaign, *arrays)
            job_id = self.start(directory, replace(campaign, arrays=arrays))
        job, stamp = Job(job_id, seen=False), utc(self.world.now())
        return record(directory, campaign, *(job.of(one, stamp) for one in arrays))

    def _left_behind(self, watched: TrackedCampaign, arrays: Sequence[Array]) -> str:
        """Return the job that an interrupted submission made, by the scheduler or by itself."""
        if not any(array.called for array in arrays):
            return ""
        found = self.find(watched.directory, arrays)
        if not found:
            self.world.pause(1.0)  # It may just have been started.
            found = self.find(watched.directory, arrays)
        return found or next(filter(None, (begun_by(watched, one) for one in arrays)), "")

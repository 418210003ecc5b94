"""submitit's watcher of jobs, which asks sacct once per poll, for any number of jobs.

hpcbert uses submitit's (1.5.4) watcher, but not its following habits:

* importing it puts a log handler on stdout: switched off before the import, below;
* it calls sacct through subprocess and hides the failure: `update` uses our runner and remembers
  the error;
* a state outside its list counts as an end, `CANCELLED by 1000` is a state of its own, the last
  line of a job wins even if it is older, and a job id that was used again is trusted: `read_info`
  and `is_done` use our table, the submission time, and name and owner;
* its polls come at intervals of its own, and one watcher serves all jobs of the process:
  `hpcbert.scheduler.slurm.poller` has its own pace and its own watcher.

Its job class is not used: it looks for pickles, loads them, and cancels any job with its id.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from hpcbert.campaign.repeats import Repeat, RowIndex
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm import cluster
from hpcbert.slurm import commands
from hpcbert.slurm.commands import JobRow
from hpcbert.slurm.state_sources import Answer
from hpcbert.slurm.states import parse_state


@contextlib.contextmanager
def _without_logging() -> Iterator[None]:
    name, previous = "SUBMITIT_LOG_LEVEL", os.environ.get("SUBMITIT_LOG_LEVEL")
    os.environ[name] = "NOCONFIG"
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ |= {} if previous is None else {name: previous}


with _without_logging():
    from submitit.slurm.slurm import SlurmInfoWatcher


class Watcher(SlurmInfoWatcher):
    """submitit's watcher with our way of asking and reading."""

    def __init__(self, repeats: Sequence[Repeat], context: SchedulerContext) -> None:
        super().__init__()
        self._owners = {repeat.tag: repeat for repeat in repeats if repeat.job_id}
        self._context = context
        self.answer: Answer = "unasked"
        self.complaint = ""
        self.garbage: tuple[str, ...] = ()
        self.rows: dict[str, tuple[JobRow, int]] = {}
        self.history: dict[str, tuple[tuple[int, JobRow], ...]] = {}
        for tag in self._owners:
            self.register_job(tag)

    def update(self) -> None:
        """Ask sacct once about everything that has not ended; remember a failure."""
        self.answer = "absent" if self.answer == "absent" else "unasked"
        owners = [self._owners[tag] for tag in sorted(self._registered - self._finished)]
        repeats = [repeat for owner in owners for repeat in (*owner.before, owner) if repeat.job_id]
        if not repeats or self.answer == "absent":
            return
        self._num_calls += 1
        outcome, self.answer = cluster.run_queries(
            self._context, cluster.build_sacct_queries(repeats)
        )
        self.complaint = outcome.stderr.strip()
        if outcome.ok:
            self._info_dict.update(self.read_info(outcome.stdout))
        self._finished |= {tag for tag in self._registered if self.is_done(tag, mode="cache")}

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """Return submitit's view of sacct's output, and remember ours in `rows`."""
        text = string.decode(errors="replace") if isinstance(string, bytes) else string
        listing = commands.read_sacct(text)
        self.garbage = listing.garbage
        lines = RowIndex(listing.rows)
        info = {}
        for tag, repeat in self._owners.items():
            row, before = lines.newest(repeat)
            self.history[tag] = lines.attempts(repeat) or self.history.get(tag, ())
            if row is not None:
                self.rows[tag] = row, before
                info[tag] = {
                    "JobID": tag,
                    "State": parse_state(row.state).word,
                    "NodeList": row.nodelist,
                }
        return info

    def is_done(self, job_id: str, mode: str = "force") -> bool:
        """Return whether a job has ended and Slurm can't start it again."""
        state = parse_state(self.get_state(job_id, mode=mode))
        return state.kind.over and not state.returns

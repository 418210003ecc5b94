"""What the view shows and does, apart from its screen: a thread that follows campaigns.

Everything goes through the same flows as the commands.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign, open_campaign
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli import progress
from hpcbert.cli.view.rows import Level, RowKey, Scene, Tally, TreeRow, list_rows
from hpcbert.commands import retry, submit
from hpcbert.commands.monitor import Rates, RepeatProgress, Sinks, View, list_ended, read_rates
from hpcbert.commands.retry import RetryPlan
from hpcbert.errors import HpcbertError, format_count
from hpcbert.model import Unit
from hpcbert.slurm.states import Kind, RepeatState
from hpcbert.system.runner import run

# Seconds between two updates.
_UPDATE_INTERVAL = 2.0
# Seconds between two searches for campaigns that were submitted meanwhile.
_SEARCH_INTERVAL = 5.0
# Failed repeats to read logs of in one update; the next update reads more.
_MAX_READ = 40
# Reading logs for rates costs processor time; wait this many times its duration until the next.
_IDLE_FACTOR = 20
# The same for the progress of those that run.
_PROGRESS_IDLE_FACTOR = 100


class _LeaveError(Exception):
    """The user has left."""


class _ReloadError(Exception):
    """Something was submitted, so the campaigns must be read again."""


class Offer(NamedTuple):
    """An action that waits for the user's consent.

    Attributes:
        act: Acts, and returns the message to show then.
    """

    question: str
    act: Callable[[], str]


class Session:
    """Follows campaigns for a screen; updates go to `show`, in another thread.

    Args:
        policy: Which repeats to retry without asking.
        floor: Shortest interval between two queries of Slurm at this site, seconds.
        interval: The interval for watching, seconds.
        begun: Returns campaigns that were submitted meanwhile and are not among its arguments.

    Attributes:
        error: What ended the thread, other than the user.
    """

    def __init__(
        self,
        watched: Sequence[TrackedCampaign],
        policy: RetryPolicy,
        *,
        floor: float,
        interval: float,
        begun: Callable[[Sequence[TrackedCampaign]], Sequence[TrackedCampaign]] = lambda _: (),
        unit: Unit = "samples",
    ) -> None:
        self.unit: Unit = unit
        self.watched, self._policy = tuple(watched), policy
        self._begun, self._looked = begun, time.monotonic()
        self._floor, self._interval = floor, interval
        self._wake = threading.Event()
        self._left = self._again = False
        self._row_map: Mapping[RowKey, TreeRow] = {}
        self._details: dict[Key, RepeatProgress] = {}
        self._failures: dict[Key, str] = {}
        self._rates: dict[str, Rates] = {}
        self._rates_due = self._progress_due = 0.0
        self._rated_states: Mapping[Key, RepeatState] = {}
        self._tallies: dict[RowKey, Tally] = {}
        self._rows: Sequence[TreeRow] = ()
        self._show: Callable[[Scene], None] = lambda _: None
        self._notify: Callable[[str], None] = lambda _: None
        self.view: View | None = None
        self.error: BaseException | None = None

    def begin(
        self,
        show: Callable[[Scene], None],
        notify: Callable[[str], None],
        fail: Callable[[], None],
    ) -> threading.Thread:
        """Follow in a thread of its own, which calls all arguments.

        Args:
            fail: Called if it can't continue; `error` has the reason.
        """
        self._show, self._notify = show, notify

        def follow() -> None:
            with contextlib.suppress(_LeaveError):
                try:
                    while True:
                        self._until_over()
                except (HpcbertError, OSError, ValueError) as error:
                    self.error = error
                    fail()

        thread = threading.Thread(target=follow, name="hpcbert-view", daemon=True)
        thread.start()
        return thread

    def leave(self) -> None:
        """Stop; a submission in progress is completed first."""
        self._left = True
        self._wake.set()

    def show_details_of(self, rows: Sequence[TreeRow]) -> None:
        """Set the rows on the screen, for which more than states is read."""
        if rows != self._rows:
            self._rows = rows
            self._wake.set()

    def again(self) -> None:
        """Read the campaigns again, because they have new jobs or lost some."""
        self._again = True
        self._wake.set()

    # --- the thread ------------------------------------------------------------------------------

    def _until_over(self) -> None:
        try:
            retry.watch_and_retry(
                self.watched,
                self._policy,
                self,
                run=run,
                floor=self._floor,
                interval=self._interval,
                pause=self._pause,
            )
            while True:
                self._pause(_SEARCH_INTERVAL)
        except _ReloadError:
            self._again = False
            self.watched = tuple(open_campaign(tracked.directory) for tracked in self.watched)

    def _pause(self, seconds: float) -> None:
        """Wait, unless the user leaves, looks at something else, or has submitted more."""
        was_woken = self._wake.wait(seconds)
        self._wake.clear()
        if self._left:
            raise _LeaveError
        if self._looked + _SEARCH_INTERVAL <= time.monotonic():
            self._looked = time.monotonic()
            if new_campaigns := self._begun(self.watched):
                self.watched, self._again = (*self.watched, *new_campaigns), True
        if self._again:
            raise _ReloadError
        if was_woken:
            self._show_now()

    def watching(self) -> Sinks:
        """Return receivers that pass each new state to the screen."""
        return Sinks(view=self._take, refresh=_UPDATE_INTERVAL)

    def retried(self, plans: Sequence[RetryPlan]) -> None:
        """Report retried repeats."""
        arrays = [array for plan in plans for array in plan.arrays]
        count = sum(len(array.repeats) for array in arrays)
        self._notify(
            f"{format_count(count, 'repeat was', 'repeats were')} submitted again, "
            f"in {format_count(len(arrays), 'job')}."
        )

    def waiting(self, reason: str) -> None:
        """Report why a submission waits."""
        if self._left:
            raise _LeaveError
        self._notify(f"{reason} Waiting for room.")

    def _take(self, view: View) -> None:
        if self.view is None or view.repeats is not self.view.repeats:
            self._row_map, self._failures = list_rows(view.repeats), {}
        if self.view is None or view.states is not self.view.states:
            self._tallies = {}
        self.view = view
        for key in [key for key in self._failures if view.states[key].kind is not Kind.FAILED]:
            del self._failures[key]  # it was requeued
        self._show_now()
        if self._read_rates(view):
            self._show_now()

    def _show_now(self) -> None:
        if self.view is None:
            return
        scene = Scene(self.view, self._row_map, tallies=self._tallies, unit=self.unit)
        self._look(scene)
        self._show(
            replace(
                scene,
                details=dict(self._details),
                failures=dict(self._failures),
                rates=dict(self._rates),
            )
        )

    def _read_rates(self, view: View) -> bool:
        """Read the rates of campaigns with newly ended repeats; return whether there are any."""
        if view.states is self._rated_states:
            return False
        is_over = not any(state.kind.alive for state in view.states.values())
        if time.monotonic() < self._rates_due and not is_over:
            return False
        start, is_new = time.monotonic(), False
        for watched in dict.fromkeys(repeat.watched for repeat in view.repeats):
            name = watched.campaign.id
            if self._rates.get(name, Rates()).ended != list_ended(watched, view.states):
                self._rates[name], is_new = read_rates(watched, view.states), True
        now, self._rated_states = time.monotonic(), view.states
        self._rates_due = now + _IDLE_FACTOR * (now - start)
        return is_new

    def _look(self, scene: Scene) -> None:
        """Read the progress, or the reason of the failure, of the repeats on the screen."""
        view, start = scene.view, time.monotonic()
        is_due = start >= self._progress_due
        failed: dict[Key, Repeat] = {}
        for row in self._rows:
            if row.level is Level.CAMPAIGN or row.key not in scene.rows:
                continue
            tally = scene.tally(row.key)
            for repeat in tally.running if row.level is Level.REPEAT else ():
                if is_due or repeat.key not in self._details:
                    state = view.states[repeat.key]
                    self._details[repeat.key] = progress.read_details(repeat, state, view.time)
            failed |= {repeat.key: repeat for repeat in tally.failed}
        if is_due:
            now = time.monotonic()
            self._progress_due = now + _PROGRESS_IDLE_FACTOR * (now - start)
        unread = [key for key in failed if key not in self._failures]
        for key in unread[:_MAX_READ]:
            failure = progress.find_failure(failed[key], view.states[key])
            self._failures[key] = str(failure or "")
        if len(unread) > _MAX_READ:
            self._wake.set()

    # --- what the user asks for ------------------------------------------------------------------

    def offer_cancel(self, tracked_campaign: TrackedCampaign) -> Offer | str:
        """Return an offer to cancel a campaign's jobs; a sentence if none waits or runs."""
        target = submit.find_living(tracked_campaign, run=run)
        name = tracked_campaign.campaign.id
        if not target.jobs:
            return " ".join([f"No job of {name} waits or runs.", *target.left])

        def act() -> str:
            submit.cancel(tracked_campaign, target, run=run)
            self.again()
            return f"Cancelled {format_count(len(target.repeats), 'repeat')} of {name}."

        return Offer(f"Cancel {format_count(len(target.repeats), 'repeat')} of {name}?", act)

    def offer_retry(self, tracked_campaign: TrackedCampaign) -> Offer | str:
        """Return an offer to submit invalid repeats again; a sentence if there are none."""
        name, directory = tracked_campaign.campaign.id, tracked_campaign.directory
        policy = RetryPolicy()
        plan = retry.resubmit(directory, policy, run=run, floor=self._floor, dry=True)
        count = sum(len(array.repeats) for array in plan.arrays)
        if not count:
            return progress.format_retry_plan(plan, dry=True)

        def act() -> str:
            submitted = retry.resubmit(directory, policy, run=run, floor=self._floor)
            self.again()
            repeat_count = sum(len(array.repeats) for array in submitted.arrays)
            return f"{format_count(repeat_count, 'repeat')} of {name} submitted again."

        return Offer(f"Submit {format_count(count, 'repeat')} of {name} again?", act)

"""Being interrupted while submitting: what is queued then, and how to go on."""

from __future__ import annotations

import shlex
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.errors import Interruption, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from hpcbert.model import Array, Campaign

# Ctrl-C, what a scheduler or a shutdown says, and the end of a connection.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Patience:
    """Lets a command that was started give its answer, and the answer be written down.

    An interrupt takes effect before the next array, or in a pause: an sbatch that was called has
    submitted a job or has not, and the manifest must know. A second one takes effect at once.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._resting = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self._asked += 1
        if self._resting or self._asked > 1:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Take effect now.

        Raises:
            KeyboardInterrupt: Somebody asked for it.
        """
        if self._asked:
            raise KeyboardInterrupt

    def pausing(self, pause: Callable[[float], None]) -> Callable[[float], None]:
        """Return what waits, but not for who interrupts."""

        def wait(seconds: float) -> None:
            self.check()
            self._resting = True
            try:
                pause(seconds)
            finally:
                self._resting = False

        return wait


@contextmanager
def patient(directory: Path) -> Iterator[Patience]:
    """Submit with patience; an interrupt ends it with a sentence about what is queued.

    Signals that are ignored, as under nohup, stay ignored.

    Args:
        directory: The campaign.

    Raises:
        Interruption: Somebody interrupted.
    """
    patience = Patience()
    main = threading.current_thread() is threading.main_thread()
    chosen = [one for one in _SIGNALS if main and signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, patience.note) for one in chosen}
    try:
        yield patience
        patience.check()
    except KeyboardInterrupt:
        raise interruption(directory) from None
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def interruption(directory: Path) -> Interruption:
    """Return the error that says what of a campaign is queued, and what to do."""
    campaign = left_behind(directory)
    if campaign is None:
        return Interruption("Interrupted. Nothing was submitted.", hint="Submit again.")
    where = shlex.quote(str(directory))
    count = len(campaign.arrays)
    queued = [one for one in campaign.arrays if one.state == "submitted"]
    ids = ", ".join(dict.fromkeys(one.job_id for one in queued))
    left = [one for one in campaign.arrays if one not in queued and not campaign.superseded(one)]
    words = [f"{len(queued)} of {count} arrays are queued: {ids}." if queued else ""]
    words += [f"Whether {one.name} is, is not known." for one in left if _unheard(one)]
    if not campaign.accepted:
        words = ["Nothing was submitted."]
    hints = [f"Go on: hpcbert submit --resume {where}" if left else ""]
    hints += [f"Watch it: hpcbert monitor {where}" if not left else ""]
    hints += [f"Cancel what is queued: hpcbert cancel {where}" if campaign.accepted else ""]
    return Interruption(
        " ".join(filter(None, ["Interrupted.", *words])), hint="; ".join(filter(None, hints))
    )


def _unheard(array: Array) -> bool:
    """Say whether sbatch was called for an array and its answer was never heard."""
    return array.state == "intended" and bool(array.called)


def left_behind(directory: Path) -> Campaign | None:
    """Return the manifest of an interrupted submission; None if it was never written."""
    try:
        return store.read_manifest(directory)
    except UsageError:
        return None

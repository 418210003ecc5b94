"""What a script needs to end by itself if its repeat is not needed: hpcbert/shell/enough.bash."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert.config.adaptive import FEWEST

if TYPE_CHECKING:
    from hpcbert.model import Array
    from hpcbert.script.resolve import Resolved

_PACKAGE = Path(__file__).parent.parent
_DECIDER = "hpcbert.campaign.enough"


def decides(resolved: Resolved, array: Array) -> bool:
    """Return whether a repeat may find that it is not needed: their number is not fixed."""
    return resolved.plan.protocol.precision_of_median is not None and not array.preflight


def settings(resolved: Resolved, array: Array) -> list[tuple[str, Any]]:
    """Return the variables that enough.bash reads; none if the number of repeats is fixed.

    Nodes run the submitting hpcbert, with its own interpreter, if they have both in the same place.
    """
    if not decides(resolved, array):
        return []
    count = str(len(array.repeats)) if resolved.scheduler.srun and not array.together else ""
    return [
        ("fewest", FEWEST),
        ("count", count),
        ("package", str(_PACKAGE.parent)),
        ("decider", (sys.executable, "-B", "-m", _DECIDER)),
    ]

"""What a script needs to end by itself if its repeat is not needed: hpcbert/shell/enough.bash."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hpcbert.config.adaptive import FEWEST_REPEATS
from hpcbert.model import Array
from hpcbert.script.resolve import Resolved

_PACKAGE = Path(__file__).parent.parent
_DECIDER = "hpcbert.campaign.enough"


def is_adaptive(resolved: Resolved, array: Array) -> bool:
    """Return whether a repeat may find that it is not needed: their number is not fixed."""
    return resolved.plan.protocol.precision_of_median is not None and not array.preflight


def adaptive_settings(resolved: Resolved, array: Array) -> list[tuple[str, Any]]:
    """Return the variables that enough.bash reads; none if the number of repeats is fixed.

    Nodes run the submitting hpcbert, with its own interpreter, if they have both in the same place.
    """
    if not is_adaptive(resolved, array):
        return []
    count = str(len(array.repeats)) if resolved.scheduler.srun and not array.together else ""
    return [
        ("fewest", FEWEST_REPEATS),
        ("count", count),
        ("package", str(_PACKAGE.parent)),
        ("decider", (sys.executable, "-B", "-m", _DECIDER)),
    ]

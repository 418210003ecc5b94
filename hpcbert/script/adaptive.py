"""What a script needs to end by itself if its repeat is not needed: base.sbatch.j2."""

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


def context(resolved: Resolved, array: Array) -> dict[str, Any]:
    """Return the values to render base.sbatch.j2 with; nothing if the number of repeats is fixed.

    Nodes run the submitting hpcbert, with its own interpreter, if they have both in the same place.
    """
    if resolved.plan.protocol.precision_of_median is None or array.preflight:
        return {"adaptive": False}
    return {
        "adaptive": True,
        "fewest": FEWEST,
        "package": str(_PACKAGE.parent),
        "decider": (sys.executable, "-B", "-m", _DECIDER),
    }

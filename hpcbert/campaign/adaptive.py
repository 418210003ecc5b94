"""Whether a point needs another repeat: `python -m hpcbert.campaign.adaptive CAMPAIGN POINT`.

Job scripts of `--repeats auto` ask it before they train. The numbers are those that `collect` would
print, by the same rule, window and gate. Only the scheduler is not asked, because its accounts lag
behind: how a repeat ended is read from what its own job wrote.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcbert.campaign import judge, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.config.options import FEWEST_REPEATS
from hpcbert.errors import HpcbertError
from hpcbert.model import Adaptive, valid_throughputs
from hpcbert.results.interval import is_precise
from hpcbert.results.wording import describe_sufficiency
from hpcbert.slurm.states import Kind

# Exit statuses, which enough.bash distinguishes: Python itself ends with 1 and 2.
ENOUGH, MORE, FAILED = 0, 3, 4


def decide(directory: Path, point: str) -> tuple[bool, str]:
    """Return whether a point has enough repeats, and why.

    That depends on the median's precision; in a rehearsal, on the number of successes.
    """
    campaign = store.read_manifest(directory)
    watched = TrackedCampaign(directory, campaign)
    gathered = judge.gather(watched, states=lambda _: {}, point=point)
    protocol = campaign.protocol
    if campaign.rehearse:
        succeeded = sum(
            repeat.history.counted.state.kind is Kind.SUCCEEDED for repeat in gathered.repeats
        )
        return succeeded >= FEWEST_REPEATS, f"{succeeded} repeats were rehearsed"
    rates = valid_throughputs(repeat.run for repeat in gathered.repeats)
    precision = protocol.precision_of_median
    adaptive = Adaptive(precision or 0.0, protocol.repeats)
    return is_precise(rates, precision), describe_sufficiency(rates, adaptive)


def main(arguments: Sequence[str]) -> int:
    """Print the reason, as a field of an event in a status file; return the exit status."""
    directory, point = arguments
    try:
        is_enough, reason = decide(Path(directory), point)
    except HpcbertError as error:
        print(f"hpcbert: {error}", file=sys.stderr)  # noqa: T201  not the result of a command
        return FAILED
    print(f'"why":{json.dumps(reason)}')  # noqa: T201
    return ENOUGH if is_enough else MORE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What a person says about retries."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RETRIES = 2


@dataclass(frozen=True)
class RetryPolicy:
    """Which repeats are submitted again, and where.

    Attributes:
        limit: How often one repeat is submitted again at most.
        exclude: Nodes to keep away from in any case.
        suspect: Whether to keep away from nodes that failed.
        cancelled: Whether repeats that somebody cancelled are submitted again too, as they are
            when somebody asks for it. Else those that need a longer time limit are left alone too.
        time_limit: Of one repeat, in sbatch's form; empty for the one that there was.
    """

    limit: int = MAX_RETRIES
    exclude: tuple[str, ...] = ()
    suspect: bool = True
    cancelled: bool = True
    time_limit: str = ""

"""Dependencies and excluded nodes of an array at its submission, and the command with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcbert.campaign import preflight
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import SchedulerError
from hpcbert.model import Array, Point
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.script.request import part_options
from hpcbert.slurm import inventory
from hpcbert.slurm.hostlist import expand


@dataclass(frozen=True)
class StartConditions:
    """The jobs that an array waits for, and the nodes that it excludes.

    Attributes:
        after: The array whose job must be over first.
        preflight: The job that must have succeeded first.
        exclude: Nodes that the preflight found too slow, if it has measured them already.
    """

    after: Array | None = None
    preflight: Array | None = None
    exclude: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[Array, ...]:
        """The arrays that it waits for."""
        return tuple(array for array in (self.preflight, self.after) if array)

    @property
    def dependency(self) -> str:
        """The same as sbatch takes it; empty: it waits for none."""
        words = [f"afterok:{self.preflight.job_id}"] if self.preflight else []
        words += [f"afterany:{self.after.job_id}"] if self.after else []
        return ",".join(words)


NO_CONDITIONS = StartConditions()


def find_conditions(
    watched: TrackedCampaign,
    arrays: Mapping[Point | None, Array],
    array: Array,
    context: SchedulerContext,
) -> StartConditions:
    """Return the arrays that an array waits for, and the slow nodes that it excludes.

    Args:
        arrays: The array submitted last, for each point and (None) overall.

    Raises:
        SchedulerError: The preflight failed.
    """
    # A retry always waits for its own point's: repeats of a point never share the network unless
    # you request that.
    after = arrays.get(array.point if watched.campaign.concurrent_points else None)
    if array.preflight:
        return StartConditions(after)
    check = preflight.read_preflight(watched)
    if check is None:
        return StartConditions(after)
    if check.state == "failed":
        raise SchedulerError(
            "The preflight failed, so hpcbert submits no point.",
            where=watched.campaign.id,
            hint=f"See {preflight.find_log(watched, check.array)}; submit the points in a campaign "
            "of their own, without --preflight if need be.",
        )
    excluded = _choose_excluded(check.slow, array, context)
    return StartConditions(after, None if check.state == "done" else check.array, excluded)


def _choose_excluded(
    slow: Iterable[str], array: Array, context: SchedulerContext
) -> tuple[str, ...]:
    """Return the slow nodes, unless the array names one, or too few others could run it."""
    names = tuple(slow)
    if not names or set(names) & set(expand(array.request.nodelist)):
        return ()
    sinfo = inventory.read_usable_nodes(Cluster(context).states, array.request.partition)
    available = sum(usable for name, usable in sinfo.items() if name not in names)
    return names if not sinfo or available >= array.point.shape.nodes else ()


def sbatch_argv(
    directory: Path, array: Array, conditions: StartConditions = NO_CONDITIONS
) -> list[str]:
    """Return the command that submits one array; all other options are in the script."""
    cluster = next((job.cluster for job in conditions.jobs), array.cluster)
    words = [f"--clusters={cluster}"] if cluster else []
    words += [f"--dependency={conditions.dependency}"] if conditions.jobs else []
    # A job that can't start any more must not wait forever.
    words += ["--kill-on-invalid-dep=yes"] if conditions.preflight else []
    if conditions.exclude:
        requested_nodes = [array.request.exclude] if array.request.exclude else []
        words += [f"--exclude={','.join([*requested_nodes, *conditions.exclude])}"]
    words += part_options(array)
    return ["sbatch", "--parsable", *words, str(directory / array.script)]

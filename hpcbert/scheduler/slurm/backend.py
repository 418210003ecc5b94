"""Slurm as a scheduler: which of its commands answers which question."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.repeats import Lines, Repeat
from hpcbert.config.slurmwords import given
from hpcbert.errors import HpcbertError, SchedulerError
from hpcbert.scheduler.base import Check, Scheduler, Target
from hpcbert.scheduler.poller import FLOOR
from hpcbert.scheduler.slurm import (
    admission,
    adopt,
    examine,
    gates,
    outlook,
    questions,
    submission,
)
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.script.plan import MOST_INDICES
from hpcbert.script.request import unnamed
from hpcbert.slurm import commands, controller, nodes, partitions
from hpcbert.slurm.states import parse
from hpcbert.system import ownership

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from hpcbert.campaign.repeats import Key, TrackedCampaign
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.finding import Finding
    from hpcbert.model import Array, Campaign, JobRequest, Point
    from hpcbert.scheduler.base import Start, Supply
    from hpcbert.scheduler.slurm.poller import SlurmPoller
    from hpcbert.script.resolve import SubmitOptions
    from hpcbert.slurm.commands import JobRow
    from hpcbert.slurm.states import RepeatState

# scancel's messages about a job that is over (SchedMD/slurm, src/common/slurm_errno.c).
_ENDED = ("Invalid job id specified", "Job/step already completing or completed")


class Slurm(Scheduler):
    """Runs campaigns by sbatch, squeue, sacct, scontrol, sinfo and scancel."""

    def submit(self, directory: Path, campaign: Campaign) -> Campaign:
        """Call sbatch for every array that is not submitted yet and has no job."""
        return submission.hand_over(directory, campaign, self.world)

    def adopted(self, watched: TrackedCampaign, *, strict: bool = False) -> TrackedCampaign:
        """Look for the jobs of unanswered calls of sbatch."""
        campaign = watched.campaign
        arrays = [
            array for array in campaign.arrays if array.unsettled and not campaign.superseded(array)
        ]
        found: dict[str, Array] = {}
        try:
            for array in adopt.adopted(watched, arrays, self.world, strict=strict):
                found[array.name] = array
        finally:
            # Nothing is written into somebody else's campaign.
            if found and (strict or not store.stranger(watched.directory)):
                with contextlib.nullcontext() if strict else contextlib.suppress(HpcbertError):
                    adopt.write_down(watched.directory, found)
        return replace(watched, campaign=adopt.updated(campaign, found))

    def states(self, watched: TrackedCampaign) -> Mapping[Key, RepeatState]:
        """Poll once, after a search for jobs that are not in the manifest."""
        poller = self.poller([self.adopted(watched)], floor=FLOOR, chance=random.random)
        poller.poll()
        return poller.states

    def poller(
        self, watched: Sequence[TrackedCampaign], *, floor: float, chance: Callable[[], float]
    ) -> SlurmPoller:
        """Return a poller that asks sacct, then squeue."""
        from hpcbert.scheduler.slurm.poller import SlurmPoller  # imports submitit

        return SlurmPoller(watched, self.world, floor=floor, chance=chance)

    def living(self, campaigns: Sequence[TrackedCampaign]) -> Sequence[TrackedCampaign]:
        """Ask squeue once, about all of them: a job may wait again after its attempt wrote its end.

        If squeue does not answer, an attempt that a signal ended may continue too; if there is no
        squeue, only the jobs' own account is left.
        """
        repeats = [repeat for campaign in campaigns for repeat in campaign.repeats]
        outcome, answer = questions.ask(self.world, questions.squeue(repeats))
        queue = Lines(_going_on(outcome.stdout))

        def lives(repeat: Repeat) -> bool:
            if outcome.ok:
                return queue.newest(repeat)[0] is not None
            requeued = bool(repeat.newest.signal) and answer != "absent"
            return repeat.newest.end_state is None or requeued

        return [campaign for campaign in campaigns if any(map(lives, campaign.repeats))]

    def refuse_doubling(
        self, watched: TrackedCampaign, missing: Sequence[tuple[Array, int]]
    ) -> None:
        """Search the submitter's jobs and, under any name and owner, the campaign's job ids.

        A job that waits or runs with one of these ids counts as the campaign's, unless it was
        submitted in another directory and also has another name.
        """
        wanted: dict[Point, set[int]] = {}
        for array, number in missing:
            wanted.setdefault(array.point, set()).add(number)
        for row in self._listed(watched) if missing else ():
            for array in _submitted_for(watched, row):
                for number in _repeats_in(watched, row, array, wanted.get(array.point, set())):
                    where = f"{row.job}_{number}" if row.tasks else row.job
                    raise SchedulerError(
                        f"Repeat {number} of {array.point.key} is not over: Slurm lists job "
                        f"{where} as {row.state}, under the name {row.name!r} of user {row.user}.",
                        where=watched.campaign.id,
                        hint=f"Nothing was submitted. Wait for the job, or end it: scancel {where}",
                    )

    def _listed(self, watched: TrackedCampaign) -> list[JobRow]:
        """Return jobs that are not over: the submitter's, and those with the campaign's ids."""
        text = ""
        for cluster in questions.by_cluster(watched.repeats):
            arrays = watched.campaign.arrays
            ids = [array.job_id for array in arrays if array.cluster == cluster and array.job_id]
            wanted = [commands.squeue_argv(users=[watched.campaign.owner], cluster=cluster)]
            wanted += [commands.squeue_argv(ids=ids, cluster=cluster)] if ids else []
            for argv in wanted:
                outcome = questions.query(self.world, argv)
                if not outcome.ok and not commands.unknown_to_slurm(outcome.stderr):
                    raise SchedulerError(
                        f"Slurm does not say what waits or runs: {outcome.stderr.strip()}",
                        where=watched.campaign.id,
                        hint="Nothing was submitted. Once Slurm answers: "
                        f"hpcbert retry {watched.campaign.id}",
                    )
                text += f"{outcome.stdout}\n" if outcome.ok else ""
        return [row for row in commands.read_squeue(text).rows if not parse(row.state).kind.over]

    def living_jobs(self, watched: TrackedCampaign) -> Target:
        """Ask squeue for the campaign's jobs.

        Slurm uses job ids again, so the id alone proves nothing: `TrackedCampaign.array_of` decides
        which jobs are the campaign's, whatever their present names. A script that somebody
        submitted again by hand, or an attempt that a retry replaced and somebody requeued, is the
        campaign's job too. A manifest is not enough, because it may be a copy's, or forged: jobs
        of others, and jobs of a campaign in another place, are left alone.
        """
        outcome, _ = questions.ask(self.world, questions.squeue(watched.repeats))
        if not outcome.ok:
            again = f"hpcbert cancel {watched.campaign.id}"
            raise SchedulerError(
                f"squeue does not say what is queued: {outcome.stderr.strip()}",
                hint=f"Nothing was cancelled. Once Slurm answers: {again}",
            )
        rows = _going_on(outcome.stdout)
        named = [(row, array) for row in rows if (array := watched.array_of(row))]
        foreign = {row.job: why for row, array in named if (why := _foreign(watched, row, array))}
        found = [(row, array) for row, array in named if row.job not in foreign]
        jobs = dict.fromkeys((row.job, row.cluster if one.cluster else "") for row, one in found)
        meant = dict.fromkeys(
            repeat
            for row, array in found
            for repeat in (Repeat(watched, array, number) for number in array.repeats)
            if repeat.is_in(row)
        )
        return Target(
            tuple(job for job, _ in jobs),
            tuple(meant),
            tuple(one for _, one in jobs),
            tuple(f"Not cancelled: {why}." for why in foreign.values()),
        )

    def cancel(self, watched: TrackedCampaign, target: Target) -> None:
        """Call scancel for jobs, once per cluster."""
        for cluster in dict.fromkeys(target.clusters):
            known = zip(target.jobs, target.clusters, strict=True)
            ids = [job for job, one in known if one == cluster]
            outcome = questions.query(self.world, commands.scancel_argv(ids, cluster=cluster))
            lines = [line for line in outcome.stderr.splitlines() if line.strip()]
            # It complains only about jobs that ended before it reached them.
            over = lines and all(any(words in line for words in _ENDED) for line in lines)
            if not outcome.ok and not over:
                raise SchedulerError(
                    f"scancel: {outcome.stderr.strip() or f'status {outcome.returncode}'}",
                    hint=f"See what is left: squeue -j {','.join(target.jobs)}; then repeat: "
                    f"hpcbert cancel {watched.campaign.id}",
                )

    @property
    def asking(self) -> Mapping[str, str]:
        """The environment of questions to Slurm."""
        return commands.environment(self.world.environ)

    def foreseen(self, site: Site, recipe: Recipe) -> Iterable[Sequence[str]]:
        """Return the questions about limits and, of this cluster, its MPI and its partitions."""
        cluster = _cluster(site)
        mpi = [controller.mpi_argv()] if _names_mpi(site, recipe) else []
        supply = [] if cluster else [partitions.sinfo_argv()]
        return [*mpi, commands.of_clusters(controller.config_argv(), cluster), *supply]

    def fit(self, options: SubmitOptions, site: Site, recipe: Recipe) -> SubmitOptions:
        """Ask for the cluster's longest array and, if MPI starts the ranks, for its kinds."""
        mpi = Cluster(self.world).mpi if _names_mpi(site, recipe) else ()
        return replace(super().fit(options, site, recipe), mpi=mpi)

    def most_repeats(self, site: Site) -> int | None:
        """Return the cluster's MaxArraySize less one; Slurm's default if unknown."""
        return Cluster(self.world, _cluster(site)).settings.most_indices or MOST_INDICES

    def nodes(self, request: JobRequest) -> Mapping[str, bool] | None:
        """Ask sinfo for the nodes of a job's partition; none if it does not answer."""
        outcome = questions.query(self.world, nodes.sinfo_argv())
        text = outcome.stdout if outcome.ok else ""
        return nodes.read_sinfo(text, request.partition)

    def submit_argv(self, directory: Path, array: Array) -> Sequence[str]:
        """Return the command line of sbatch."""
        return gates.sbatch_argv(directory, array)

    def checks(self, scripts: Mapping[str, str]) -> tuple[Check, ...]:
        """Check syntax, and let sbatch itself check the scripts if it is installed."""
        there = shutil.which("sbatch") is not None
        found = []
        for path, text in scripts.items():
            found.append(self.check_syntax(path, text))
            found += [self._tested(path, text)] if there else []
        if not there:
            missing = "This machine has no sbatch."
            found.append(Check("sbatch --test-only", None, missing))
        return tuple(found)

    def _tested(self, path: str, text: str) -> Check:
        environment = commands.submission_environment(self.world.environ)
        test = self.world.run(["sbatch", "--test-only"], stdin=text, env=environment)
        ok = None if outlook.away(test) else test.ok
        return Check(f"sbatch --test-only {path}", ok, adopt.complaint(test))

    def supply(self, request: JobRequest) -> tuple[Supply, ...]:
        """Ask sinfo for the partitions of a job."""
        where = request.clusters.partition(",")[0]
        return admission.supply(admission.demand_of(request), Cluster(self.world, where))

    def forecast(self, script: str) -> Start:
        """Ask sbatch itself when a script's job would start."""
        return outlook.forecast(script, self.world)

    def obstacles(self, directory: Path, requests: Sequence[JobRequest]) -> Iterable[Finding]:
        """Compare the requests with the partitions; other clusters' are unknown."""
        if any(request.clusters for request in requests):
            return ()
        jobs = [admission.demand_of(request) for request in requests]
        return admission.find_obstacles(jobs, directory, Cluster(self.world))

    def impossible(self, arrays: Iterable[Array], scripts: Mapping[str, str]) -> Iterable[Finding]:
        """Let sbatch itself test each different request."""
        texts = {unnamed(array.request): scripts[array.name] for array in arrays}
        return outlook.impossible(texts.values(), self.world)

    def examine(self, site: Site, *, nodes: int) -> Iterable[Finding]:
        """Return whether Slurm answers and has what the site says."""
        return examine.examine(site, self.world, nodes)


def _cluster(site: Site) -> str:
    """Return the cluster that jobs are for; empty for this one."""
    return given(site.slurm.sbatch_args, "clusters").partition(",")[0]


def _names_mpi(site: Site, recipe: Recipe) -> bool:
    return any((recipe.mpi, site.slurm.mpi, *(variation.mpi for variation in recipe.on.values())))


def _going_on(text: str) -> list[JobRow]:
    """Return the jobs that squeue lists as alive."""
    return [row for row in commands.read_squeue(text).rows if parse(row.state).kind.alive]


def _submitted_for(watched: TrackedCampaign, row: JobRow) -> tuple[Array, ...]:
    """Return the arrays that a living job may belong to."""
    owner = watched.array_of(row)
    if owner is not None:
        return (owner,)
    elsewhere = bool(row.workdir) and row.workdir not in watched.places
    return () if elsewhere else watched.of_job.get(row.job, ())


def _repeats_in(
    watched: TrackedCampaign, row: JobRow, array: Array, numbers: set[int]
) -> list[int]:
    """Return which of some repeats of an array's point a line about the array concerns."""
    those = numbers
    if len(row.tasks) == 1 and row.tasks[0][0] == row.tasks[0][1]:
        those = numbers & {row.tasks[0][0] + array.offset}
    submitted_in = watched.submitted_in
    return sorted(
        number
        for number in those
        if any(one.name == array.name for one in submitted_in.get((array.point, number), ()))
        and Repeat(watched, array, number).is_in(row)
    )


def _foreign(watched: TrackedCampaign, row: JobRow, array: Array) -> str:
    """Return why a job is not this campaign's, although its manifest names it; empty if it is.

    A job is submitted in its campaign's directory, or by hand with a script from there, unless a
    site's sbatch, called from there, moved it. Only if that directory is gone may the campaign have
    been moved.
    """
    if row.uid is not None and row.uid != os.geteuid():
        return f"job {row.job} belongs to {ownership.name(row.uid)}"
    path = watched.directory
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        own = {str(path.absolute()), str(path.resolve())}
        by_hand = any(f"{place}/scripts/" in row.command for place in own)
        moved = any((what, has) == ("WorkDir", row.workdir) for what, _, has in array.changed)
        if moved and array.workdir and path.samefile(array.workdir):
            return ""
        if row.workdir and not by_hand and not path.samefile(row.workdir):
            return f"job {row.job} was submitted in {row.workdir}, not in {path}"
    return ""

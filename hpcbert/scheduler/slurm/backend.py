"""Slurm as a scheduler: which of its commands answers which question."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.repeats import Key, Repeat, RowIndex, TrackedCampaign
from hpcbert.config.slurm_arguments import argument_value
from hpcbert.errors import HpcbertError, SchedulerError
from hpcbert.model import Array, Campaign, JobRequest, Point
from hpcbert.scheduler.base import FLOOR, Check, Scheduler, Start, Supply, Target
from hpcbert.scheduler.slurm import admission, cluster, examine, identify, submission
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.script.request import without_names
from hpcbert.slurm import commands, inventory
from hpcbert.slurm.commands import JobRow
from hpcbert.slurm.states import RepeatState, parse_state
from hpcbert.system import files

if TYPE_CHECKING:  # with containers and recipes, which tracking does not need
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.finding import Finding
    from hpcbert.scheduler.slurm.poller import SlurmPoller
    from hpcbert.script.resolve import SubmitOptions

# scancel's messages about a job that is over (SchedMD/slurm, src/common/slurm_errno.c).
_ENDED = ("Invalid job id specified", "Job/step already completing or completed")


class Slurm(Scheduler):
    """Runs campaigns by sbatch, squeue, sacct, scontrol, sinfo and scancel."""

    def submit(self, directory: Path, campaign: Campaign) -> Campaign:
        """Call sbatch for every array that is not submitted yet and has no job."""
        with contextlib.closing(store.Ledger(directory, campaign)) as ledger:
            submission.Submission(ledger, self.context).run()
        return ledger.campaign

    def adopt_jobs(self, watched: TrackedCampaign, *, strict: bool = False) -> TrackedCampaign:
        """Look for the jobs of unanswered calls of sbatch."""
        campaign = watched.campaign
        arrays = [
            array
            for array in campaign.arrays
            if array.is_unconfirmed and not campaign.is_superseded(array)
        ]
        adopted_arrays: dict[str, Array] = {}
        try:
            for array in identify.adopt_jobs(watched, arrays, self.context, strict=strict):
                adopted_arrays[array.name] = array
        finally:
            # Nothing is written into somebody else's campaign.
            if adopted_arrays and (strict or not store.find_foreign_owner(watched.directory)):
                with contextlib.nullcontext() if strict else contextlib.suppress(HpcbertError):
                    identify.write_arrays(watched.directory, adopted_arrays)
        return replace(watched, campaign=identify.replace_arrays(campaign, adopted_arrays))

    def states(self, watched: TrackedCampaign) -> Mapping[Key, RepeatState]:
        """Poll once, after a search for jobs that are not in the manifest."""
        poller = self.poller([self.adopt_jobs(watched)], floor=FLOOR)
        poller.poll()
        return poller.states

    def poller(self, watched: Sequence[TrackedCampaign], *, floor: float) -> SlurmPoller:
        """Return a poller that asks sacct, then squeue."""
        from hpcbert.scheduler.slurm.poller import SlurmPoller  # imports submitit

        return SlurmPoller(watched, self.context, floor=floor)

    def select_living(self, campaigns: Sequence[TrackedCampaign]) -> Sequence[TrackedCampaign]:
        """Ask squeue once, about all of them: a job may wait again after its attempt wrote its end.

        If squeue does not answer, an attempt that a signal ended may continue too; if there is no
        squeue, only the jobs' own account is left.
        """
        repeats = [repeat for campaign in campaigns for repeat in campaign.repeats]
        outcome, answer = cluster.ask_squeue(self.context, repeats)
        queue = RowIndex(_read_living_rows(outcome.stdout))

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
        numbers_by_point: dict[Point, set[int]] = {}
        for array, number in missing:
            numbers_by_point.setdefault(array.point, set()).add(number)
        for row in self._list_open_jobs(watched) if missing else ():
            owner = watched.find_array(row)
            elsewhere = bool(row.workdir) and row.workdir not in watched.places
            with_id = () if elsewhere else watched.arrays_of_job.get(row.job, ())
            for array in (owner,) if owner else with_id:
                numbers = numbers_by_point.get(array.point, set()).intersection(array.repeats)
                for number in sorted(numbers):
                    if not Repeat(watched, array, number).covers_row(row):
                        continue
                    job_id = f"{row.job}_{number}" if row.tasks else row.job
                    raise SchedulerError(
                        f"Repeat {number} of {array.point.key} is not over: Slurm lists job "
                        f"{job_id} as {row.state}, under the name {row.name!r} of user {row.user}.",
                        where=watched.campaign.id,
                        hint="Nothing was submitted. Wait for the job, or end it: "
                        f"scancel {job_id}",
                    )

    def _list_open_jobs(self, watched: TrackedCampaign) -> list[JobRow]:
        """Return jobs that are not over: the submitter's, and those with the campaign's ids."""
        rows: list[JobRow] = []
        for cluster_name in cluster.group_by_cluster(watched.repeats):
            arrays = watched.campaign.arrays
            ids = [
                array.job_id for array in arrays if array.cluster == cluster_name and array.job_id
            ]
            queries = [commands.squeue_argv(users=[watched.campaign.owner], cluster=cluster_name)]
            queries += [commands.squeue_argv(ids=ids, cluster=cluster_name)] if ids else []
            for argv in queries:
                outcome = cluster.run_query(self.context, argv)
                if not outcome.ok and not commands.is_unknown_job(outcome.stderr):
                    raise SchedulerError(
                        f"Slurm does not say what waits or runs: {outcome.stderr.strip()}",
                        where=watched.campaign.id,
                        hint="Nothing was submitted. Once Slurm answers: "
                        f"hpcbert retry {watched.campaign.id}",
                    )
                rows += commands.read_squeue(outcome.stdout).rows if outcome.ok else ()
        return [row for row in rows if not parse_state(row.state).kind.over]

    def living_jobs(self, watched: TrackedCampaign) -> Target:
        """Ask squeue for the campaign's jobs.

        Slurm uses job ids again, so the id alone proves nothing: `find_array` decides which jobs
        are the campaign's, whatever their present names. A script that somebody
        submitted again by hand, or an attempt that a retry replaced and somebody requeued, is the
        campaign's job too. A manifest is not enough, because it may be a copy's, or forged: jobs
        of others, and jobs of a campaign in another place, are left alone.
        """
        outcome, _ = cluster.ask_squeue(self.context, watched.repeats)
        if not outcome.ok:
            again = f"hpcbert cancel {watched.campaign.id}"
            raise SchedulerError(
                f"squeue does not say what is queued: {outcome.stderr.strip()}",
                hint=f"Nothing was cancelled. Once Slurm answers: {again}",
            )
        jobs: dict[tuple[str, str], None] = {}
        repeats: dict[Repeat, None] = {}
        reasons: dict[str, None] = {}
        for row in _read_living_rows(outcome.stdout):
            array = watched.find_array(row)
            if array is None:
                continue
            if reason := _explain_foreign(watched, row, array):
                reasons[f"Not cancelled: {reason}."] = None
                continue
            jobs[row.job, row.cluster if array.cluster else ""] = None
            for number in array.repeats:
                repeat = Repeat(watched, array, number)
                if repeat.covers_row(row):
                    repeats[repeat] = None
        return Target(
            tuple(job for job, _ in jobs),
            tuple(repeats),
            tuple(cluster_name for _, cluster_name in jobs),
            tuple(reasons),
        )

    def cancel(self, watched: TrackedCampaign, target: Target) -> None:
        """Call scancel for jobs, once per cluster."""
        for cluster_name in dict.fromkeys(target.clusters):
            pairs = zip(target.jobs, target.clusters, strict=True)
            ids = [job for job, job_cluster in pairs if job_cluster == cluster_name]
            argv = commands.add_cluster_option(["scancel", *ids], cluster_name)
            outcome = cluster.run_query(self.context, argv)
            lines = [line for line in outcome.stderr.splitlines() if line.strip()]
            # It complains only about jobs that ended before it reached them.
            all_ended = lines and all(any(words in line for words in _ENDED) for line in lines)
            if not outcome.ok and not all_ended:
                raise SchedulerError(
                    f"scancel: {outcome.stderr.strip() or f'status {outcome.returncode}'}",
                    hint=f"See what is left: squeue -j {','.join(target.jobs)}; then repeat: "
                    f"hpcbert cancel {watched.campaign.id}",
                )

    def fit(self, options: SubmitOptions, site: Site, recipe: Recipe) -> SubmitOptions:
        """Ask for the longest array, who shares nodes and, if MPI starts the ranks, its kinds."""
        cluster_here = Cluster(self.context)
        wanted_mpi = (recipe.mpi, site.slurm.mpi, *(entry.mpi for entry in recipe.on.values()))
        mpi = cluster_here.mpi if any(wanted_mpi) else ()
        job = admission.derive_site_request(site, 1)
        shares_nodes = not job.clusters and any(admission.find_forced_sharing(job, cluster_here))
        return replace(super().fit(options, site, recipe), mpi=mpi, shares_nodes=shares_nodes)

    def most_repeats(self, site: Site) -> int | None:
        """Return the cluster's MaxArraySize less one; Slurm's default if unknown."""
        cluster_name = argument_value(site.slurm.sbatch_args, "clusters").partition(",")[0]
        return Cluster(self.context, cluster_name).settings.most_indices or inventory.MOST_INDICES

    def nodes(self, request: JobRequest) -> Mapping[str, bool] | None:
        """Ask sinfo for the nodes of a job's partition; none if it does not answer."""
        return inventory.read_usable_nodes(Cluster(self.context).states, request.partition)

    def submit_argv(self, directory: Path, array: Array) -> Sequence[str]:
        """Return the command line of sbatch."""
        return submission.sbatch_argv(directory, array)

    def checks(self, scripts: Mapping[str, str]) -> tuple[Check, ...]:
        """Check syntax, and let sbatch itself check the scripts if it is installed."""
        if shutil.which("sbatch") is None:
            missing = Check("sbatch --test-only", None, "This machine has no sbatch.")
            return (*super().checks(scripts), missing)
        checks = (self.check_syntax, self._test_script)
        return tuple(check(path, text) for path, text in scripts.items() for check in checks)

    def _test_script(self, path: str, text: str) -> Check:
        test = examine.run_sbatch_test(text, self.context)
        name = f"sbatch --test-only {path}"
        if absence := examine.describe_absence(text, test, self.context):
            return Check(name, None, f"It waits for nodes that run no jobs now: {absence}.")
        ok = None if examine.is_unreachable(test) else test.ok
        return Check(name, ok, identify.format_complaint(test))

    def supply(self, request: JobRequest) -> tuple[Supply, ...]:
        """Ask sinfo for the partitions of a job."""
        cluster_name = request.clusters.partition(",")[0]
        return admission.list_supply(request, Cluster(self.context, cluster_name))

    def forecast(self, script: str) -> Start:
        """Ask sbatch itself when a script's job would start."""
        return examine.forecast_start(script, self.context)

    def obstacles(self, directory: Path, requests: Sequence[JobRequest]) -> Iterable[Finding]:
        """Compare the requests with the partitions; other clusters' are unknown."""
        if any(request.clusters for request in requests):
            return ()
        jobs = dict.fromkeys(map(without_names, requests))
        return admission.find_obstacles(jobs, directory, Cluster(self.context))

    def impossible(self, arrays: Iterable[Array], scripts: Mapping[str, str]) -> Iterable[Finding]:
        """Let sbatch itself test each different request."""
        texts = {without_names(array.request): scripts[array.name] for array in arrays}
        return examine.find_impossible(texts.values(), self.context)

    def examine(self, site: Site, *, nodes: int) -> Iterable[Finding]:
        """Check that Slurm answers and has what the site names."""
        return examine.examine_site(site, self.context, nodes)


def _read_living_rows(text: str) -> list[JobRow]:
    return [row for row in commands.read_squeue(text).rows if parse_state(row.state).kind.alive]


def _explain_foreign(watched: TrackedCampaign, row: JobRow, array: Array) -> str:
    """Explain why a job in the manifest is not this campaign's; empty if it is.

    A job is submitted in its campaign's directory, or by hand with a script from there, unless a
    site's sbatch, called from there, moved it. Only if that directory is gone may the campaign have
    been moved.
    """
    if row.uid is not None and row.uid != os.geteuid():
        return f"job {row.job} belongs to {files.user_name(row.uid)}"
    path = watched.directory
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        own_paths = {str(path.absolute()), str(path.resolve())}
        by_hand = any(f"{own_path}/scripts/" in row.command for own_path in own_paths)
        moved = any((field, value) == ("WorkDir", row.workdir) for field, _, value in array.changed)
        if moved and array.workdir and path.samefile(array.workdir):
            return ""
        if row.workdir and not by_hand and not path.samefile(row.workdir):
            return f"job {row.job} was submitted in {row.workdir}, not in {path}"
    return ""

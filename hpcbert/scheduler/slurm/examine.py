"""Whether and when Slurm would run a job: the questions of doctor, plan and submit."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hpcbert.config.site import Site
from hpcbert.errors import SchedulerError, format_count, join_names
from hpcbert.finding import Finding
from hpcbert.scheduler.base import SchedulerContext, Start
from hpcbert.scheduler.slurm import admission
from hpcbert.scheduler.slurm.admission import Demand
from hpcbert.scheduler.slurm.cluster import (
    HINTS,
    Cluster,
    classify_silence,
    describe_silence,
    run_query,
)
from hpcbert.scheduler.slurm.identify import format_complaint
from hpcbert.scheduler.slurm.trial import is_unreachable, try_forms
from hpcbert.script.request import read_script_request
from hpcbert.slurm import inventory
from hpcbert.slurm.commands import submission_environment
from hpcbert.slurm.hostlist import expand, fold
from hpcbert.slurm.inventory import Partition, choose_mpi
from hpcbert.slurm.reasons import find_refusal_advice
from hpcbert.system import ownership
from hpcbert.system.runner import Outcome

# sbatch: Job 12 to start at 1795331940 using 16 processors on nodes n[1-4] in partition gpu
# (SchedMD/slurm, src/sbatch/sbatch.c and src/plugins/select; the time as SLURM_TIME_FORMAT says).
_START = re.compile(r"to start at (\d{1,12})\b(?:.*? on (?:nodes )?(\S+))?")
_UNAVAILABLE = "Requested node configuration is not available"
# What no change of load helps against (src/common/slurm_errno.c).
_NEVER = (
    _UNAVAILABLE,
    "Invalid feature specification",
    "Invalid node name specified",
    "Requested nodes not in this partition",
)
_ELF = b"\x7fELF"
# The kinds of MPI to advise, the usual one first.
_MPI = ("pmix", "pmi2")
# The words of `scontrol ping` for each controller.
_UP, _DOWN = " is UP", " is DOWN"
# Lines of `scontrol ping` and `sbatch --version`; a site's wrapper may print notices around them.
_PING = re.compile(r"^Slurmctld\(.*\) at .* (?:is|are) .*$", re.MULTILINE)
_VERSION = re.compile(r"^slurm\S* (\d+\.\d+\S*)", re.MULTILINE)
# slurmd's reasons for draining its node (SchedMD/slurm, src/slurmd/slurmd/req.c).
_PROLOG = re.compile(r"\b(?:prolog|epilog)\b", re.IGNORECASE)
# Repeats of a point that fit in one array; DLPerf's protocol has five.
_REPEATS = 5
_MAX_NAMED = 8


def run_sbatch_test(script: str, context: SchedulerContext, **variables: str) -> Outcome:
    """Have sbatch test a script, with some variables in its environment; nothing is submitted."""
    environment = submission_environment(context.environ) | variables
    return context.run(["sbatch", "--test-only"], stdin=script, env=environment)


def forecast_start(script: str, context: SchedulerContext) -> Start:
    """Ask sbatch when the job of a script would start; nothing is submitted.

    Raises:
        SchedulerError: Slurm can't be asked.
    """
    outcome = run_sbatch_test(script, context, SLURM_TIME_FORMAT="%s")
    if is_unreachable(outcome):
        kind = classify_silence(outcome)
        raise SchedulerError(f"{describe_silence(kind, outcome)}.", hint=HINTS[kind])
    if absence := describe_absence(script, outcome, context):
        return Start(absence=absence)
    if not outcome.ok:
        return Start(refused=format_complaint(outcome))
    match = _START.search(outcome.stderr) or _START.search(outcome.stdout)
    return Start(when=float(match[1]), nodes=match[2] or "") if match else Start()


def describe_absence(script: str, outcome: Outcome, context: SchedulerContext) -> str:
    """Return the nodes, with states, for which sbatch's test refuses a job that can wait for them.

    The test's answer is the same for nodes that do not exist and for nodes that are drained or down
    (seen with 22.05.8); sbatch accepts the job if they are only drained or down.
    """
    if outcome.ok or _UNAVAILABLE not in outcome.stderr:
        return ""
    request = read_script_request(script)
    cluster = Cluster(context, request.clusters.partition(",")[0])
    nodes = admission.find_absent_nodes(admission.read_demand(request), cluster)
    return join_names((f"{name} ({state})" for name, state in nodes.items()), most=_MAX_NAMED)


def find_impossible(scripts: Iterable[str], context: SchedulerContext) -> Iterator[Finding]:
    """Yield the requests that sbatch accepts, although its own test finds that no node meets them.

    A site's wrapper might submit what is only to be tested, so only Slurm's own program is asked.

    Raises:
        SchedulerError: Slurm's commands find no configuration, so that sbatch would fail too.
    """
    if not _is_program(shutil.which("sbatch") or ""):
        return
    for script in scripts:
        try:
            start = forecast_start(script, context)
        except SchedulerError as error:
            if error.hint == HINTS["unconfigured"]:
                raise
            return
        if start.absence:
            yield Finding(
                "nodes",
                "warn",
                f"The job waits for nodes that run no jobs now: {start.absence}.",
                "sinfo -R says why they are away; --nodes and --nodelist choose others.",
            )
        elif any(phrase in start.refused for phrase in _NEVER):
            advice = find_refusal_advice(start.refused)
            yield Finding("sbatch --test-only", "fail", start.refused, advice)


def _is_program(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False


def examine_site(site: Site, context: SchedulerContext, nodes: int) -> Iterator[Finding]:
    """Yield findings on whether Slurm answers and has what the site names."""

    def ask(*argv: str) -> Outcome:
        return context.run(argv, env=submission_environment(context.environ), timeout=30)

    version = ask("sbatch", "--version")
    release = _VERSION.search(version.stdout)
    detail = release[0] if release else "sbatch reports no version"
    hint = HINTS[classify_silence(version) or "missing"]
    yield _judge_answer("sbatch", version, detail, hint)
    if not version.ok:
        return
    ping = ask("scontrol", "ping")
    kind = classify_silence(ping)
    if kind == "unsigned":
        yield Finding("munge", "fail", describe_silence(kind, ping), HINTS[kind], "service munge")
    hint = "Ask the cluster's administrators, or check SLURM_CONF."
    ping_text = " ".join(_PING.findall(ping.stdout))
    yield _judge_answer("slurmctld", ping, ping_text or "scontrol ping answers", hint)
    if kind == "unsigned":
        return  # Every other command would fail the same way.
    sacct = ask("sacct", "-n", "-X", "-o", "JobID")
    hint = "Without accounting, states come from squeue and from the jobs' own status files."
    yield _judge_answer("accounting", sacct, "sacct answers", hint, bad="warn")
    cluster = Cluster(context)
    if _UP in ping_text or _DOWN not in ping_text:  # A backup may be up.
        yield from _check_partition(site, cluster, nodes)
    if ping.ok:
        yield from _check_versions(release[1] if release else "", cluster.settings.version)
        yield from _check_choices(site, cluster, nodes)
    if site.slurm.mpi:
        yield _check_mpi(site.slurm.mpi, cluster.mpi)


def _check_mpi(mpi_type: str, available: Sequence[str]) -> Finding:
    if choose_mpi([mpi_type], available):
        return Finding("MPI", "ok", f"srun --mpi={mpi_type}")
    alternative = choose_mpi(_MPI, available)
    hint = "See srun --mpi=list."
    if available:
        hint = f"srun has {', '.join(available)}: name one of these."
    remedy = f'site.toml: slurm.mpi = "{alternative}"' if alternative else ""
    return admission.make_finding("mpi", name=mpi_type, hint=hint, remedy=remedy)


def _check_partition(site: Site, cluster: Cluster, nodes: int) -> Iterator[Finding]:
    partitions = cluster.partitions
    if not partitions:
        detail = cluster.complaint or "sinfo lists no partitions"
        yield Finding("partition", "warn", detail, HINTS[cluster.silence or "failed"])
        return
    job = admission.derive_site_demand(site, nodes)
    findings = (
        *admission.find_misfits([job], Path(site.runs), partitions),
        *_check_users(job, cluster, site.slurm.reservation),
        *admission.find_oversized([job], cluster),
        *admission.find_memory_excess(job, cluster),
        *admission.find_missing_rights([job], cluster),
    )
    partition_list = ", ".join(
        f"{partition.name} ({format_count(partition.nodes, 'node')})"
        for partition in partitions.values()
    )
    yield from findings or (
        Finding("partition", "ok", f"{job.partition or 'default'} of {partition_list}"),
    )
    yield from admission.find_slices([job], partitions)
    yield from admission.find_forced_sharing([job], cluster)
    if not job.resources:
        yield from _check_gres(job, partitions)


def _check_users(job: Demand, cluster: Cluster, reservation: str) -> Iterator[Finding]:
    """Yield whom a job's partitions are for, if none of them is for this user."""
    restrictions = {
        name: admission.describe_restriction(rule, reservation)
        for name, rule in cluster.rules.items()
    }
    names = admission.select_partitions(job, cluster.partitions)
    if not names or not all(restrictions.get(name) for name in names):
        return
    open_partitions = {
        name: partition
        for name, partition in cluster.partitions.items()
        if restrictions.get(name) == ""
    }
    yield admission.make_finding(
        "partition-restricted",
        name=names[0],
        restriction=restrictions[names[0]],
        remedy=admission.suggest_partition(job, open_partitions),
    )


def _check_gres(job: Demand, partitions: Mapping[str, Partition]) -> Iterator[Finding]:
    """Yield a finding if nodes have GPUs but no job requests them."""
    names = admission.select_partitions(job, partitions)
    groups = partitions[names[0]].groups if names else ()
    resources = dict.fromkeys(resource for group in groups for resource in group.resources)
    gpus = [resource for resource in resources if resource.name == "gpu"]
    if gpus:
        kinds = [resource.kind for resource in gpus]
        gres = f"gpu:{kinds[0]}" if kinds[0] and len(set(kinds)) > 1 else "gpu"
        yield admission.make_finding("gpus-unrequested", gpus=", ".join(map(str, gpus)), gres=gres)


def find_failed_prologs(context: SchedulerContext) -> Iterator[Finding]:
    """Yield a finding for the nodes that Slurm drained because their prolog or epilog failed."""
    outcome = run_query(context, inventory.drain_reasons_argv(), timeout=30)
    for reason, nodes in inventory.read_drain_reasons(outcome.stdout).items():
        if _PROLOG.search(reason):
            names, words = fold(nodes), ",".join(nodes)
            yield admission.make_finding(
                "prolog", on_nodes=nodes, names=names, words=words, reason=reason
            )


def _judge_answer(
    name: str, outcome: Outcome, detail: str, hint: str, *, bad: str = "fail"
) -> Finding:
    if outcome.ok:
        return Finding(name, "ok", detail)
    lines = (outcome.stderr.strip() or outcome.stdout.strip()).splitlines()
    return Finding(name, bad, lines[-1] if lines else f"status {outcome.returncode}", hint)


def _check_versions(version: str, controller: str) -> Iterator[Finding]:
    """Yield a finding if commands and controller have incompatible releases.

    Commands may be older than the controller, but not newer (slurm.schedmd.com/upgrades.html).
    """
    client_release, server_release = version.split(".")[:2], controller.split(".")[:2]
    if version and controller and client_release > server_release:
        yield admission.make_finding("releases", version=version, controller=controller)


def _check_choices(site: Site, cluster: Cluster, count: int) -> Iterator[Finding]:
    """Yield which of a site's choices are not available."""
    slurm = site.slurm
    if slurm.reservation:
        yield from _check_reservation(slurm.reservation, cluster, count)
    if slurm.constraint:
        yield from _check_constraint(slurm.constraint, slurm.partition, cluster, count)
    yield from _check_nodes(site, cluster, count)
    yield from _check_array_size(cluster)
    yield from _test_submission(site, cluster, count)


def _check_reservation(name: str, cluster: Cluster, count: int) -> Iterator[Finding]:
    outcome = run_query(cluster.context, inventory.reservations_argv(), timeout=30)
    if not outcome.ok:
        return
    by_name = inventory.read_reservations(outcome.stdout)
    user = ownership.user_name(os.geteuid())
    accounts = {association.account for association in cluster.rights.own}
    usable = {key for key in by_name if by_name[key].is_usable_by(user, accounts)}
    reservation = by_name.get(name)
    status, detail = "fail", ""
    if reservation is None:
        detail = f"There is no reservation {name!r}."
    elif name not in usable:
        detail = f"Reservation {name} is for others."
    elif 0 < reservation.nodes < count:
        nodes = format_count(reservation.nodes, "node")
        detail = f"Reservation {name} has {nodes}; you asked for {count}."
    elif reservation.state != "ACTIVE":
        state = reservation.state.lower()
        status, detail = "warn", f"Reservation {name} is {state}: from {reservation.start} on."
    else:
        yield Finding("reservation", "ok", f"{name} with {format_count(reservation.nodes, 'node')}")
        return
    names = [key for key in by_name if key in usable]
    hint = f"You may use {', '.join(names)}." if names else "You may use none here."
    alternatives = [key for key in names if key != name]
    remedy = 'site.toml: slurm.reservation = ""'
    if alternatives:
        remedy = f"--reservation {alternatives[0]}"
    yield admission.make_finding(
        "reservation", status=status, detail=detail, hint=hint, remedy=remedy
    )


def _check_constraint(
    constraint: str, partition: str, cluster: Cluster, count: int
) -> Iterator[Finding]:
    node_counts = inventory.count_features(cluster.features, partition)
    if node_counts is None:
        return
    missing = [name for name in inventory.list_features(constraint) if name not in node_counts]
    if not missing:
        yield Finding("constraint", "ok", constraint)
        return
    available = sorted(node_counts)
    yield admission.make_finding(
        "constraint",
        missing=", ".join(missing),
        features=", ".join(available) or "none",
        sufficient=next((name for name in available if node_counts[name] >= count), ""),
    )


def _check_nodes(site: Site, cluster: Cluster, count: int) -> Iterator[Finding]:
    """Yield whether enough of the nodes that fit a job are running, and which are not."""
    partition_name = site.slurm.partition.partition(",")[0]
    states = inventory.read_node_states(cluster.states, partition_name)
    if not states:
        return
    job, fitting = admission.derive_site_demand(site, count), set(states)
    for name in admission.select_partitions(job, cluster.partitions)[:1]:
        if cluster.partitions[name].exact:
            fitting &= cluster.partitions[name].fitting(job.resources)
    if not fitting:
        return  # Another finding reports that the partition has none.
    excluded = fitting.intersection(expand(site.slurm.exclude))
    is_up = inventory.read_usable_nodes(cluster.states, partition_name)
    away = {
        name: "excluded" if name in excluded else states[name]
        for name in states
        if name in fitting and (name in excluded or not is_up[name])
    }
    usable = len(fitting) - len(away)
    qualifier = " with such GPUs" if len(fitting) < len(states) else ""
    detail = f"{usable} of {len(fitting)} nodes{qualifier} run jobs"
    if away:
        names = (f"{name} ({state})" for name, state in away.items())
        detail += f"; away: {join_names(names, most=_MAX_NAMED)}"
    if usable >= count:
        yield Finding("nodes of the partition", "ok", detail)
        return
    remedy = f"--nodes {usable}" if usable else ""
    yield admission.make_finding(
        "nodes-away", on_nodes=tuple(away), detail=detail, count=count, remedy=remedy
    )


def _check_array_size(cluster: Cluster) -> Iterator[Finding]:
    most_indices = cluster.settings.most_indices
    if most_indices is None or most_indices >= _REPEATS:
        return
    yield admission.make_finding("arrays", most=most_indices)


def _test_submission(site: Site, cluster: Cluster, count: int) -> Iterator[Finding]:
    """Yield what sbatch itself says of the request of a submission, and what it accepts instead."""
    trial = try_forms(site, cluster, count)
    lines = f"{trial.outcome.stdout}\n{trial.outcome.stderr}".splitlines()
    texts = [line.strip() for line in lines if line.strip()]
    if trial.outcome.ok:
        detail = texts[-1] if texts else "it would accept the job"
        yield Finding("sbatch --test-only", "ok", detail)
        return
    detail = "; ".join(texts) or f"status {trial.outcome.returncode}"
    advice = find_refusal_advice(trial.outcome.stderr) or "see the findings above"
    settings = trial.list_changes(site)
    if settings:
        advice = f"it accepts {' and '.join(settings)}"
    if len(trial.accepted) > 1:
        constraints = (accepted.slurm.constraint for accepted in trial.accepted)
        advice += f", and these constraints: {', '.join(constraints)}"
    for setting in settings or [""]:
        remedy = f"site.toml: {setting}" if setting else ""
        change = remedy.partition(" = ")[0]
        yield admission.make_finding(
            "refused", detail=detail, advice=advice, change=change, remedy=remedy
        )

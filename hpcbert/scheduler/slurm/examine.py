"""Whether and when Slurm would run a job: the questions of doctor, plan and submit."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import get_args

from hpcbert.config.site import GpuOption, Site, SlurmSettings
from hpcbert.config.slurm_arguments import argument_value
from hpcbert.errors import SchedulerError, format_count, join_names
from hpcbert.finding import Finding
from hpcbert.model import JobRequest
from hpcbert.scheduler.base import SchedulerContext, Start
from hpcbert.scheduler.slurm import admission
from hpcbert.scheduler.slurm.cluster import (
    HINTS,
    Cluster,
    classify_silence,
    describe_silence,
    run_query,
)
from hpcbert.scheduler.slurm.identify import format_complaint
from hpcbert.scheduler.slurm.submission import TRANSIENT
from hpcbert.script.request import read_script_request
from hpcbert.slurm import inventory
from hpcbert.slurm.commands import submission_environment
from hpcbert.slurm.hostlist import expand, fold
from hpcbert.slurm.inventory import Partition, choose_mpi, parse_resources
from hpcbert.slurm.reasons import find_refusal_advice
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
    "CPU count per node can not be satisfied",
    "Memory specification can not be satisfied",
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
# Features that are tried, those of the most nodes first.
_MOST_FEATURES = 8
_TEST = "#!/bin/sh\ntrue\n"
# A site's plugin that requires jobs to drop the caller's environment.
_EXPORT = "--export=NONE"
# The keys in which forms differ.
_KEYS = ("gpu_option", "reservation", "constraint", "sbatch_args")


def run_sbatch_test(script: str, context: SchedulerContext, **variables: str) -> Outcome:
    """Have sbatch test a script, with some variables in its environment; nothing is submitted."""
    environment = submission_environment(context.environ) | variables
    argv = ["sbatch", "--test-only"]
    return context.run(argv, stdin=script, env=environment, death_signal=None)


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
    is_never = any(phrase in outcome.stderr for phrase in _NEVER if phrase != _UNAVAILABLE)
    if outcome.ok or is_never or _UNAVAILABLE not in outcome.stderr:
        return ""
    request = read_script_request(script)
    cluster = Cluster(context, request.clusters.partition(",")[0])
    nodes = admission.find_absent_nodes(request, cluster)
    return join_names((f"{name} ({state})" for name, state in nodes.items()), most=_MAX_NAMED)


def find_impossible(scripts: Iterable[str], context: SchedulerContext) -> Iterator[Finding]:
    """Yield the requests that sbatch accepts, although its own test finds that no node meets them.

    A site's wrapper might submit what is only to be tested, so only Slurm's own program is asked.

    Raises:
        SchedulerError: Slurm's commands find no configuration, so that sbatch would fail too.
    """
    is_program = False
    with contextlib.suppress(OSError):
        is_program = Path(shutil.which("sbatch") or "").read_bytes().startswith(_ELF)
    if not is_program:
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


def examine_site(site: Site, context: SchedulerContext, nodes: int) -> Iterator[Finding]:
    """Yield findings on whether Slurm answers and has what the site names."""
    ask = partial(run_query, context, timeout=30)
    version = ask(["sbatch", "--version"])
    release = _VERSION.search(version.stdout)
    detail = release[0] if release else "sbatch reports no version"
    hint = HINTS[classify_silence(version) or "missing"]
    yield _judge_answer("sbatch", version, detail, hint)
    if not version.ok:
        return
    ping = ask(["scontrol", "ping"])
    kind = classify_silence(ping)
    if kind == "unsigned":
        yield Finding("munge", "fail", describe_silence(kind, ping), HINTS[kind], "service munge")
    hint = "Ask the cluster's administrators, or check SLURM_CONF."
    ping_text = " ".join(_PING.findall(ping.stdout))
    yield _judge_answer("slurmctld", ping, ping_text or "scontrol ping answers", hint)
    if kind == "unsigned":
        return  # Every other command would fail the same way.
    sacct = ask(["sacct", "-n", "-X", "-o", "JobID"])
    hint = "Without accounting, states come from squeue and from the jobs' own status files."
    yield _judge_answer("accounting", sacct, "sacct answers", hint, bad="warn")
    cluster = Cluster(context)
    if _UP in ping_text or _DOWN not in ping_text:  # A backup may be up.
        yield from _check_partition(site, cluster, nodes)
    if ping.ok:
        version_here, controller = release[1] if release else "", cluster.settings.version
        # Commands may be older than the controller, not newer (slurm.schedmd.com/upgrades.html).
        if version_here and controller and version_here.split(".")[:2] > controller.split(".")[:2]:
            yield admission.make_finding("releases", version=version_here, controller=controller)
        yield from _check_nodes(site, cluster, nodes)
        most_indices = cluster.settings.most_indices
        if most_indices is not None and most_indices < _REPEATS:
            yield admission.make_finding("arrays", most=most_indices)
        yield from _test_submission(site, cluster, nodes)
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
    job = admission.derive_site_request(site, nodes)
    findings = (
        *_check_users(job, cluster, site.slurm.reservation),
        *admission.find_obstacles([job], Path(site.runs), cluster),
    )
    yield from findings
    partition_list = ", ".join(
        f"{partition.name} ({format_count(partition.nodes, 'node')})"
        for partition in partitions.values()
    )
    if all(finding.status != "fail" for finding in findings):
        yield Finding("partition", "ok", f"{job.partition or 'default'} of {partition_list}")
    if not job.gres:
        yield from _check_gres(job, partitions)


def _check_users(job: JobRequest, cluster: Cluster, reservation: str) -> Iterator[Finding]:
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


def _check_gres(job: JobRequest, partitions: Mapping[str, Partition]) -> Iterator[Finding]:
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
    outcome = run_query(context, inventory.DRAINS_QUERY, timeout=30)
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


def _check_nodes(site: Site, cluster: Cluster, count: int) -> Iterator[Finding]:
    partition_name = site.slurm.partition.partition(",")[0]
    states = inventory.read_node_states(cluster.states, partition_name)
    if not states:
        return
    job, fitting = admission.derive_site_request(site, count), set(states)
    for name in admission.select_partitions(job, cluster.partitions)[:1]:
        if cluster.partitions[name].exact:
            fitting &= cluster.partitions[name].fitting(parse_resources(job.gres))
    if not fitting:
        return  # Another finding reports that the partition has none.
    excluded = fitting.intersection(expand(site.slurm.exclude))
    away = {
        name: "excluded" if name in excluded else states[name]
        for name in states
        if name in fitting and (name in excluded or states[name] not in inventory.USABLE)
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
    settings = trial.list_changes(site.slurm)
    if settings:
        advice = f"it accepts {' and '.join(settings)}"
    if len(trial.accepted) > 1:
        constraints = (form.constraint for form in trial.accepted)
        advice += f", and these constraints: {', '.join(constraints)}"
    for setting in settings or [""]:
        remedy = f"site.toml: {setting}" if setting else ""
        change = remedy.partition(" = ")[0]
        yield admission.make_finding(
            "refused", detail=detail, advice=advice, change=change, remedy=remedy
        )


# --- What a site's own sbatch accepts -------------------------------------------------------------
#
# Some require `--gpus`, a constraint, or a clean environment. Such rules are a plugin's
# (job_submit), and no query shows them. sbatch tests one form of a request after the other; nothing
# is submitted.


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    Attributes:
        refusal: Why sbatch refused that; empty if it did not, or can't be asked.
        accepted: The settings that it accepts instead; best first.
    """

    outcome: Outcome
    refusal: str = ""
    accepted: tuple[SlurmSettings, ...] = ()

    def list_changes(self, slurm: SlurmSettings) -> list[str]:
        """Return the settings of a site.toml that the best of these forms changes."""
        return [
            f"slurm.{key} = {json.dumps(value)}"
            for form in self.accepted[:1]
            for key in _KEYS
            if (value := getattr(form, key)) != getattr(slurm, key)
        ]


def try_forms(site: Site, cluster: Cluster, nodes: int = 1) -> Trial:
    """Have sbatch test a site's job on some nodes, then other forms of it if that is refused.

    Of forms with a constraint, all that differ in it alone are tried: only the user can choose.
    """
    outcome = _try_site(site, cluster, nodes)
    if outcome.ok or is_unreachable(outcome):
        return Trial(outcome)
    accepted: list[SlurmSettings] = []
    for form in _list_forms(site.slurm, cluster, has_export_rule=_EXPORT in outcome.stderr):
        if accepted and form.gpu_option != accepted[0].gpu_option:
            break
        if _try_site(replace(site, slurm=form), cluster, nodes).ok:
            accepted.append(form)
            if form.constraint in {"", site.slurm.constraint}:
                break
    return Trial(outcome, format_complaint(outcome), tuple(accepted))


def is_unreachable(outcome: Outcome) -> bool:
    """Return whether sbatch failed because Slurm is missing, not configured, busy or away."""
    busy = not outcome.ok and any(phrase in outcome.stderr for phrase in TRANSIENT)
    return busy or classify_silence(outcome) in {"missing", "unconfigured", "away"}


def _try_site(site: Site, cluster: Cluster, nodes: int) -> Outcome:
    words = ["sbatch", "--test-only", *admission.site_options(site, nodes)]
    environment = submission_environment(cluster.context.environ)
    return cluster.context.run(words, stdin=_TEST, env=environment, timeout=60)


def _list_forms(
    slurm: SlurmSettings, cluster: Cluster, *, has_export_rule: bool
) -> Iterator[SlurmSettings]:
    """Yield the other forms: first without what the site names, then those without a constraint."""
    named = product((slurm.constraint, ""), (slurm.reservation, ""))
    for constraint, reservation in list(dict.fromkeys(named))[1:]:
        yield replace(slurm, constraint=constraint, reservation=reservation)
    arguments = slurm.sbatch_args
    if has_export_rule and not argument_value(arguments, "export"):
        arguments = (*arguments, _EXPORT)
    features: list[str] = []
    if not slurm.constraint:
        counts = inventory.count_features(cluster.features, slurm.partition)
        features = [name for name, _ in counts.most_common(_MOST_FEATURES)]
    options = get_args(GpuOption) if slurm.gres else (slurm.gpu_option,)
    for constraints in ([slurm.constraint], features):
        for option, constraint in product(options, constraints):
            form = replace(slurm, gpu_option=option, constraint=constraint, sbatch_args=arguments)
            if form != slurm:
                yield form

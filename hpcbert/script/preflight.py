"""The job before all others that measures the nodes' network: its program, and its nodes.

On GPUs the program is nccl-tests' all-reduce; elsewhere, or if the run itself finds its device, the
reference program's. hpcbert/shell/preflight.bash says which parts are measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpcbert.config import places, recipe
from hpcbert.config.slurm_arguments import argument_value
from hpcbert.errors import UsageError, refuse_ineffective
from hpcbert.model import Array
from hpcbert.script.plan import Request, plan
from hpcbert.script.resolve import PREFLIGHT, Resolved, find_file, resolve
from hpcbert.timelimit import TimeLimit

# Percent of the median of all nodes: a node with less is far below the others. Half of a node's
# links, or one of two, is less; nodes of one kind differ by a few percent.
LEAST_PERCENT = 75
_LONGEST = TimeLimit.parse("00:30:00")
_BY_DEVICE = {"gpu": "nccl-tests"}
_DEFAULT_RECIPE = "pytorch"
# As large as the buckets in which frameworks reduce gradients, and a few of each.
_SETTINGS = {"nccl-tests": {"min_bytes": "32M", "max_bytes": "256M"}}
_ITERS, _SKIP = 12, 2


def resolve_preflight(resolved: Resolved) -> Resolved:
    """Choose the program that measures the nodes of a campaign before it.

    Raises:
        UsageError: There is nothing to compare, or the measuring program is not available.
    """
    if resolved.scheduler.runs_locally:
        context = f"with the {resolved.scheduler.name} scheduler, which has one node"
        raise refuse_ineffective("--preflight", context)
    if resolved.scheduler.in_allocation:
        context = "in an allocation, whose nodes are chosen already"
        raise refuse_ineffective("--preflight", context)
    shapes = [point.shape for point in resolved.plan.points]
    shape = max(shapes, key=lambda shape: (shape.nodes, shape.gpus_per_node))
    if shape.nodes == 1:
        message = "--preflight compares nodes, and every point has one node only."
        hint = "Leave --preflight out, or request more nodes with --nodes."
        raise UsageError(message, hint=hint)
    name = _BY_DEVICE.get(resolved.device, _DEFAULT_RECIPE)
    network_recipe = recipe.load(places.find_recipe(name, resolved.options.folders))
    request = Request(
        shape=shape,
        device=resolved.device,
        repeats=1,
        iters=_ITERS,
        skip=_SKIP,
        settings=_SETTINGS.get(name, {}),
    )
    slurm = resolved.site.slurm
    limit = _LONGEST if slurm.time_limit.exceeds(_LONGEST) else slurm.time_limit
    site = replace(resolved.site, slurm=replace(slurm, time_limit=limit))
    network_plan = resolve(
        plan(network_recipe, site, request),
        site,
        network_recipe,
        replace(resolved.options, together=True, rehearse=False),
        resolved.directory,
    )
    return replace(
        network_plan,
        sources={**network_plan.sources, PREFLIGHT: find_file(network_recipe, PREFLIGHT)},
    )


def make_preflight_array(network_plan: Resolved) -> Array:
    """Return the job that measures, still without a script's digest."""
    (planned_point,) = network_plan.plan.points
    # No point of the campaign has this name.
    point = replace(planned_point, model="preflight", options=(), protocol="")
    return Array(
        point=point,
        name=f"pre{point.shape}-hpcbert-{Path(network_plan.directory).name}-preflight",
        repeats=(1,),
        script="scripts/preflight.sbatch",
        script_sha256="",
        log="slurm/preflight_{repeat}.log",
        together=True,
        preflight=True,
        cluster=argument_value(network_plan.site.slurm.sbatch_args, "clusters"),
    )

"""The tasks of a point on their nodes: how many, and with which GPUs and CPUs each."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbert.model import Point
from hpcbert.script.resolve import Resolved


@dataclass(frozen=True)
class Placing:
    """What determines a rank script's device and CPUs.

    Attributes:
        on_gpus: Whether the nodes' GPUs do the work.
        nodes, gpus: Nodes, and GPUs (or ranks on CPUs) of all of them.
        tasks: Tasks per node.
        gpus_of_task: GPUs that each of them drives.
        cpus: CPUs of each task; 0 if unknown.
        share: GPUs of a whole node, which share its CPUs.
        binding: What tasks are bound to: `gpu`, `none`, or what the `cluster` decides.
        binds_if_confined: Whether jobs share nodes: then tasks may be bound only to CPUs of their own,
            which they know only if Slurm confines them to these.
    """

    on_gpus: bool
    nodes: int
    gpus: int
    tasks: int
    gpus_of_task: int
    cpus: int
    share: int
    binding: str
    binds_if_confined: bool

    @property
    def shares_nodes(self) -> bool:
        """Whether a node may have other tasks: a task that drives a whole node has all of it."""
        return self.gpus_of_task == 1

    @property
    def bind(self) -> bool:
        """Whether ranks bind themselves."""
        return self.shares_nodes and self.binding == "gpu" and self.cpus > 0

    @property
    def srun_options(self) -> tuple[str, ...]:
        """The option of srun: bind nothing, unless binding is left to srun."""
        # With it a step has no more CPUs than that: ranks that choose need to see the whole node.
        ranks_choose = self.bind and not self.binds_if_confined
        cpus = (f"--cpus-per-task={self.cpus}",) if self.cpus and not ranks_choose else ()
        # Without a number of CPUs, many clusters would bind a task to a single one.
        return cpus if self.binding == "cluster" else (*cpus, "--cpu-bind=none")


def place_tasks(resolved: Resolved, point: Point) -> Placing:
    """Determine it for a point."""
    site, shape = resolved.site, point.shape
    tasks = resolved.recipe.tasks_per_node(shape)
    gpus_per_node = shape.gpus_per_node // tasks
    has_binding = any(
        word.startswith(("--cpu-bind", "--cpu_bind")) for word in site.slurm.srun_args
    )
    return Placing(
        on_gpus=resolved.plan.preset.gpus and resolved.device != "cpu",
        nodes=shape.nodes,
        gpus=shape.gpus,
        tasks=tasks,
        gpus_of_task=gpus_per_node,
        cpus=site.nodes.cpus_per_gpu * gpus_per_node,
        share=max(site.nodes.gpus_per_node, shape.gpus_per_node),
        binding="cluster" if has_binding else site.nodes.cpu_bind,
        binds_if_confined=not (site.slurm.exclusive or resolved.scheduler.runs_locally),
    )

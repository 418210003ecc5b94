"""Why sbatch refuses a job, from its own messages, and what to type instead.

The messages: SchedMD/slurm, src/common/slurm_errno.c, 22.05 to 26.05.
"""

from __future__ import annotations

_PARTITION = "name another partition with --partition, or ask the administrators"
_ACCOUNT = "name an account of yours with --account: sacctmgr show assoc user=$USER"
_QOS = "name a QOS of yours with --qos: sacctmgr show assoc user=$USER format=account,qos"
_WAIT = "name another partition with --partition, or wait: see sinfo -R for the reason"
_LESS = "request less with --nodes, --gpus-per-node or --time, or use another --account or --qos"
_NODES = (
    "no node has what you request of each: request fewer with --gpus-per-node, use another "
    "--partition, or change slurm.gres, slurm.constraint or slurm.memory in the site.toml"
)
_RESERVATION = "change slurm.reservation in the site.toml: scontrol show reservation lists them"
REFUSALS = {
    "Invalid account or account/partition combination": _ACCOUNT,
    "Invalid qos specification": _QOS,
    "Requested account has breached requested QOS usage threshold": _QOS,
    "Invalid wckey specification": "give one with --sbatch-arg=--wckey=…",
    "Invalid partition name specified": "name one that sinfo lists with --partition",
    "No partition specified or system default partition": "name one with --partition",
    "User's group not permitted to use this partition": _PARTITION,
    "Job's account not permitted to use this partition": _PARTITION,
    "Job's QOS not permitted to use this partition": _PARTITION,
    "Access/permission denied": _PARTITION,
    "Required partition not available": _WAIT,
    "Partition in DOWN state": _WAIT,
    "Requested partition configuration not available now": _WAIT,
    "Requested time limit is invalid": "request less --time: sinfo -o '%P %l' shows the limits",
    "Job violates accounting/QOS policy": _LESS,
    "Node count specification invalid": "request another number of nodes with --nodes: "
    "sinfo -o '%P %s' shows the limits",
    "More processors requested than permitted": "lower nodes.cpus_per_gpu in the site.toml",
    "CPU count specification invalid": "lower nodes.cpus_per_gpu in the site.toml",
    "CPU count per node can not be satisfied": "lower nodes.cpus_per_gpu in the site.toml",
    "Requested node configuration is not available": _NODES,
    "Invalid generic resource (gres) specification": _NODES,
    "Invalid Trackable RESource (TRES) specification": _NODES,
    "Memory required by task is not available": "lower slurm.memory in the site.toml",
    "Memory specification can not be satisfied": "lower slurm.memory in the site.toml",
    "Invalid feature specification": "change slurm.constraint: sinfo -o '%P %f' lists them",
    "Requested reservation is invalid": _RESERVATION,
    "Access denied to requested reservation": _RESERVATION,
    "Requested reservation not usable now": _RESERVATION,
    "Requested reservation is in use": _RESERVATION,
    "Invalid node name specified": "name nodes that sinfo lists, or none",
    "Requested nodes not in this partition": "name nodes of the partition, or another --partition",
    "Invalid license specification": "give one that scontrol show licenses lists, or none",
    "Invalid job array specification": "request fewer repeats at a time with --repeats",
}


def find_refusal_advice(complaint: str) -> str:
    """Return what to do about a refusal; empty if unknown."""
    return next((remedy for words, remedy in REFUSALS.items() if words in complaint), "")

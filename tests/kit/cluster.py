"""A cluster that reports its parts and limits: a Runner, or programs on PATH, from one table."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.paths import REPOSITORY

if TYPE_CHECKING:  # The stand-ins for Slurm's programs don't load hpcbert.
    from hpcbert.system.runner import Outcome

PROGRAMS = ("sbatch", "sinfo", "scontrol", "sacctmgr", "srun", "sacct", "squeue")
DENIED = "slurm_load_partitions: Access/permission denied\n"
AWAY = "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n"
MPI = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\n"
_PARTITION = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts={accounts} AllowQos={qos} Default={default} "
    "QoS={own_qos} DefaultTime=NONE MaxNodes=UNLIMITED MaxTime={limit} Nodes=n[1-{nodes}] "
    "State=UP TotalNodes={nodes} DefMemPerNode=UNLIMITED TRES=node={nodes},gres/gpu={gpus}\n"
)
_PROGRAM = """\
#!/bin/sh
''''exec {python} -I -S "$0" "$@" # '''
import sys
sys.path.insert(0, {repository!r})
from tests.kit.cluster import main
main({state!r})
"""


def partition(name: str = "gpu", *, nodes: int = 2, gpus: int = 16, **columns: str) -> str:
    """Return the output of scontrol for a partition."""
    defaults = {
        "accounts": "ALL",
        "qos": "ALL",
        "own_qos": "N/A",
        "default": "YES",
        "limit": "UNLIMITED",
    }
    return _PARTITION.format(**{**defaults, "name": name, "nodes": nodes, "gpus": gpus, **columns})


@dataclass
class Answers:
    """The output of a cluster's commands, by their first words; an `Exception` is an error.

    Attributes:
        sinfo: Its lines of partitions.
        partitions, config, job: Of scontrol.
        own, accounts, user, qos: Of sacctmgr: the user's associations, the accounts', the user's
            default, all QOS.
        mpi, help: Of srun.
        complaints: By attribute: the error of the command, which then fails.
    """

    sinfo: str = "gpu*|up|2|infinite|1-infinite|gpu:8|n[1-2]\n"
    partitions: str = partition()
    config: str = "ClusterName = c\nAccountingStorageEnforce = none\nSLURM_VERSION = 24.11.5\n"
    job: str = ""
    own: str = ""
    accounts: str = ""
    user: str = ""
    qos: str = "normal||||\n"
    mpi: str = MPI
    help: str = "Usage: srun\n"
    complaints: Mapping[str, str] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], **_: Any) -> Outcome:
        from hpcbert.system.runner import Outcome

        code, out, complaint = self.answered(argv)
        return Outcome(tuple(argv), code, out, complaint)

    def answered(self, argv: Sequence[str]) -> tuple[int, str, str]:
        """Return status, output and error of a command."""
        self.calls.append(tuple(argv))
        name = _attribute(argv)
        if complaint := self.complaints.get(name, ""):
            return 1, "", complaint
        return 0, getattr(self, name, ""), ""

    def programs(self, folder: Path) -> Path:
        """Write programs that give these answers, and return their folder."""
        folder.mkdir(parents=True, exist_ok=True)
        state = folder / "answers.json"
        texts = {name: var for name, var in vars(self).items() if name != "calls"}
        state.write_text(json.dumps(texts))
        values = {"python": shlex.quote(sys.executable), "repository": str(REPOSITORY)}
        for name in PROGRAMS:
            path = folder / name
            path.write_text(_PROGRAM.format(**values, state=str(state)))
            path.chmod(0o755)
        return folder


def _attribute(argv: Sequence[str]) -> str:
    """Return the attribute that answers a command."""
    words = [word for word in argv[1:] if not word.startswith("-") or word == "--mpi=list"]
    if argv[0] == "srun":
        return "mpi" if "--mpi=list" in words else "help"
    if argv[0] == "scontrol":
        return {"partition": "partitions", "config": "config", "job": "job"}.get(
            "".join(words[1:2]), ""
        )
    if argv[0] == "sacctmgr":
        kind = "".join(words[1:2])
        return ("accounts" if "user=" in words else "own") if kind == "assoc" else kind
    return argv[0]


def main(state: str) -> None:
    """Answer as the called program."""
    answers = Answers(**json.loads(Path(state).read_text()))
    code, out, complaint = answers.answered((Path(sys.argv[0]).name, *sys.argv[1:]))
    sys.stdout.write(out)
    sys.stderr.write(complaint)
    raise SystemExit(code)

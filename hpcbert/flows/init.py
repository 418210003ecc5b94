"""Writing a first site.toml: the reference file with what this machine or cluster tells."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from hpcbert.slurm.commands import submission_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.system.runner import Runner

_HEAD = re.compile(r"# The reference site:.*?(?=schema = )", re.DOTALL)
_GPUS = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?:(\d+)")


def detect(run: Runner) -> dict[str, str]:
    """Return what Slurm says of itself, as TOML values by dotted key; empty without Slurm.

    The default partition (else the first with GPUs), its GPUs a node, PMIx and pyxis if srun has
    them.
    """
    environment = submission_environment(os.environ)
    info = run(["sinfo", "--noheader", "--all", "--format=%P|%G"], env=environment)
    if not info.ok:
        return {}
    rows = [line.partition("|")[::2] for line in info.stdout.splitlines() if "|" in line]
    marked = [row for row in rows if row[0].endswith("*")]
    with_gpus = [row for row in rows if _GPUS.search(row[1])]
    found = {"scheduler": '"slurm"'}
    if best := (marked or with_gpus or rows):
        found["slurm.partition"] = f'"{best[0][0].rstrip("*")}"'
        found.update(_gpus(best[0][1]))
    types = run(["srun", "--mpi=list"], env=environment)
    if "pmix" in (types.stdout + types.stderr).split():
        found["slurm.mpi"] = '"pmix"'
    if "--container-image" in run(["srun", "--help"], env=environment).stdout:
        found["container.runtime"] = '"pyxis"'
    return found


def _gpus(gres: str) -> dict[str, str]:
    match = _GPUS.search(gres)
    if match is None:
        return {"slurm.gres": '""'}
    kind, count = match.groups()
    return {"slurm.gres": f'"gpu:{kind}"' if kind else '"gpu"', "nodes.gpus_per_node": count}


def site_text(reference: str, values: Mapping[str, str | None]) -> str:
    """Return the reference site.toml with some values replaced, comments kept.

    Args:
        reference: Text of the reference file.
        values: TOML values by dotted key, None to comment the key out; each key must stand in the
            reference.
    """
    section, lines = "", []
    head = "# Written by hpcbert init; every key is explained.\n"
    for line in _HEAD.sub(head, reference).split("\n"):
        if line.startswith("["):
            section = line.strip("[]") + "."
        name, equals, _ = line.partition(" = ")
        key = f"{section}{name}"
        known = equals and not line.startswith("#") and key in values
        lines.append(_replaced(line, name, values[key]) if known else line)
    return "\n".join(lines)


def _replaced(line: str, name: str, value: str | None) -> str:
    return f"# {line}" if value is None else f"{name} = {value}"

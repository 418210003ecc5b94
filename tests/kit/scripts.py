"""Rendered scripts, run by their bash, with stand-ins for srun and the ranks' program."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from hpcbert.commands.submit import write_campaign
from hpcbert.config.site import Site
from hpcbert.model import Shape
from hpcbert.script.draft import Draft
from hpcbert.script.plan import Request
from tests.kit import drafts
from tests.kit.waiting import CEILING

# A program that stands in for the ranks' Python: it records its call.
RECORDER = """#!/bin/bash
{ printf '%s\\0' "$@"; printf '\\0'; } >> "$RECORD.argv.$SLURM_PROCID"
{ env -0; } >> "$RECORD.env.$SLURM_PROCID"
echo "rank $SLURM_PROCID of $SLURM_NTASKS"
exit "${RANK_EXIT:-0}"
"""
# A stand-in for srun that keeps its words and runs the task once. With INSIDE set, it skips steps
# that make a container, as if the plugin worked; otherwise it runs them on the bare host, as if the
# plugin were missing. With NO_RANKS it skips the measured step.
SRUN = """#!/bin/bash
printf '%s\\0' "$@" >> "$RECORD.srun"; printf '\\0' >> "$RECORD.srun"
while [[ $1 == --* ]]; do
  case $1 in
    --container-image=*) image=$1 ;;
    --output=*) out=${1#--output=} ;;
  esac
  shift
done
if [[ -n ${image:+${INSIDE:-}} || -n ${out:+${NO_RANKS:-}} ]]; then exit 0; fi
if [[ -n ${out:-} ]]; then exec >"$out" 2>&1; fi
export SLURMD_NODENAME=${NODE:-${SLURMD_NODENAME:-}}
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1 "$@"
"""


def sbatch_options(text: str) -> list[str]:
    """Return the options in a script as sbatch reads them: those before the first command."""
    options: list[str] = []
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH "):
            options += shlex.split(line)[1:]
    return options


def drafted(
    where: Site, framework: str = "pytorch", shape: str = "1n2g", scheduler: str = "local",
    **options: object,
) -> Draft:  # fmt: skip
    """Draft two repeats of a point."""
    request = Request(Shape.parse(shape), repeats=2)
    recipe = drafts.load(framework)
    return drafts.drafted(
        where, request, framework_recipe=recipe, options={"scheduler": scheduler, **options}
    )


def with_python(where: Site, python: Path, **more: Any) -> Site:
    """Return a site whose ranks run this program."""
    return drafts.settled(where, python=str(python), **more)


# Scripts, without their numbers, that passed shellcheck.
_CLEAN: set[str] = set()


def shellcheck(script: str) -> str:
    """Return shellcheck's findings; of scripts that differ only in numbers it checks one."""
    plain = re.sub(r"\d+", "0", script)
    if plain in _CLEAN:
        return ""
    result = subprocess.run(
        ["shellcheck", "--shell=bash", "--norc", "-"],
        input=script, capture_output=True, text=True, check=False, timeout=CEILING,
    )  # fmt: skip
    if result.returncode == 0:
        _CLEAN.add(plain)
    return result.stdout + result.stderr


def only_script(draft: Draft) -> str:
    (text,) = draft.scripts.values()
    return text


def tool(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def slurm_in(folder: Path, scontrol: str = "echo localhost") -> dict[str, str]:
    """Make srun and scontrol; return the environment of a job's script."""
    tool(folder, "srun", SRUN)
    tool(folder, "scontrol", f"#!/bin/bash\n{scontrol}\n")
    variables = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "localhost"}
    return {"PATH": f"{folder}:{os.environ['PATH']}", **variables}


def records(path: Path) -> list[list[str]]:
    """Return the calls that a stand-in recorded."""
    calls = path.read_bytes().decode().split("\0\0")[:-1]
    return [call.split("\0") for call in calls]


def run_script(draft: Draft, tmp_path: Path, **extra: Any) -> subprocess.CompletedProcess[str]:
    write_campaign(draft)
    return run_written(draft, tmp_path, **extra)


def run_written(draft: Draft, tmp_path: Path, **extra: Any) -> subprocess.CompletedProcess[str]:
    """Run the script of the first repeat; `record.*` get its actions and those of its ranks."""
    (array,) = draft.campaign.arrays
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("SLURM")},
        "RECORD": str(tmp_path / "record"),
        "SLURM_ARRAY_TASK_ID": "1",
        **extra,
    }
    return subprocess.run(
        ["bash", str(draft.directory / array.script)], env=environment, cwd=tmp_path,
        capture_output=True, text=True, errors="replace", check=False, timeout=CEILING,
    )  # fmt: skip


def events(draft: Draft, repeat: int = 1) -> list[dict[str, object]]:
    (array,) = draft.campaign.arrays
    path = draft.directory / "status" / f"{array.point.key}.{repeat}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]

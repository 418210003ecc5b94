"""Rendered scripts, run by their bash, with stand-ins for srun and the ranks' program; and pages of
documents that write files and type commands, followed word by word."""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcbert.commands.submit import write_campaign
from hpcbert.config.recipe import RecipeImage
from hpcbert.config.site import Site
from hpcbert.model import Array, Shape
from hpcbert.script.draft import Draft
from hpcbert.script.plan import Request
from hpcbert.system.runner import Outcome
from tests.kit import drafts
from tests.kit.cases import read_constant
from tests.kit.cli import start_process
from tests.kit.logs import write_file
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import SHELL

# A program that stands in for the ranks' Python: it records its call.
RECORDER = read_constant(__file__, "RECORDER")
# A stand-in for srun that keeps its words and runs the task once. With INSIDE set, it skips steps
# that make a container, as if the plugin worked; otherwise it runs them on the bare host, as if the
# plugin were missing. With NO_RANKS it skips the measured step.
SRUN, SCONTROL = (read_constant(__file__, name) for name in ("SRUN", "SCONTROL"))


def bash(
    *words: object, status: int | None = 0, stdin: str = "", cwd: Path | None = None,
    tools: Path | None = None, **variables: Any,
) -> Outcome:  # fmt: skip
    """Run bash with these variables and PATH, on which tools come first; check its status.

    Example: `bash("-c", "nvidia-smi", tools=tmp_path, status=127, HOME="/")`.
    """
    path = os.environ["PATH"]
    env = {"PATH": f"{tools}:{path}" if tools else path, **variables}
    outcome = start_process(["bash", *map(str, words)], env=env, cwd=cwd, stdin=stdin)
    assert status in {None, outcome.returncode}, outcome
    return outcome


def run_program(name: str, *words: object, **options: Any) -> Outcome:
    """Run a program of hpcbert/shell; options are those of `bash`."""
    return bash("-p", SHELL / name, *words, **options)


def run_functions(program: str, *files: str, **options: Any) -> list[str]:
    """Run a shell text after files of hpcbert/shell; return the lines that it prints.

    Example: `run_functions('list "0-2,8"; echo "${listed[*]}"', "bind.bash")`.
    """
    sources = "".join(f'. "$library/{file}"\n' for file in files)
    text = f"library='{SHELL}'\nset -euo pipefail\n{sources}{program}"
    return bash("-c", text, **options).stdout.splitlines()


def sbatch_options(text: str) -> list[str]:
    """Return the options in a script as sbatch reads them: those before the first command."""
    head = re.match(r"(?:\s*(?:#.*)?\n)*", text)
    lines = head[0].splitlines() if head else []
    return [word for line in lines if line.startswith("#SBATCH ") for word in shlex.split(line)[1:]]


def drafted(
    where: Site | Path, framework: str = "pytorch", shape: str = "1n2g", scheduler: str = "local",
    **options: object,
) -> Draft:  # fmt: skip
    """Draft two repeats of a point, at a site or at the reference one below a folder."""
    request = Request(Shape.parse(shape), repeats=2)
    options = {"scheduler": scheduler, **options}
    return drafts.drafted(where, request, framework_recipe=drafts.load(framework), options=options)


def write_ranks(
    folder: Path, program: str = RECORDER, *, site: Mapping[str, Any] | None = None, **options: Any
) -> Draft:
    """Write a campaign whose ranks run a program, at the reference site with some changes."""
    where = drafts.reference(folder, **(site or {}))
    python = tool(folder, "python", program)
    draft = drafted(drafts.settled(where, python=str(python)), **options)
    write_campaign(draft)
    return draft


def drafted_in(
    folder: Path, runtime: str, image: str = "/i.sqsh", *, shape: str = "1n1g", data: str = "",
    workdir: str = "", tables: Mapping[str, Any] | None = None, **container: Any,
) -> Draft:  # fmt: skip
    """Draft a repeat in a container, at a site with these settings of containers and others."""
    tables = {"container": {"runtime": runtime, **container}, **(tables or {})}
    site = drafts.settled(drafts.reference(folder, **tables), image=image, data=data)
    recipe = replace(drafts.load(), image=RecipeImage(writable=not workdir, workdir=workdir))
    return drafts.drafted(site, Request(Shape.parse(shape), repeats=1), framework_recipe=recipe)


def only_script(draft: Draft) -> str:
    (text,) = draft.scripts.values()
    return text


def tool(folder: Path, name: str, text: str) -> Path:
    path = write_file(folder, name, text)
    path.chmod(0o755)
    return path


def records(path: Path) -> list[list[str]]:
    calls = path.read_bytes().decode().split("\0\0")[:-1]
    return [call.split("\0") for call in calls]


def run_script(
    draft: Draft, folder: Path, array: Array | None = None, /, *, status: int | None = None,
    **variables: Any,
) -> Outcome:  # fmt: skip
    """Run the script of an array's first repeat, by default of the first array's.

    `record.*` get its actions and those of its ranks. Programs in `tools` stand in for others: srun
    and scontrol, unless they are there, for those of Slurm; its nodes are HOSTS, one a line.
    """
    if not draft.directory.exists():
        write_campaign(draft)
    strange = ("PATH", "SLURM")
    outer = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    outer |= {"RECORD": str(folder / "record"), "SLURM_ARRAY_TASK_ID": "1"}
    if draft.campaign.scheduler == "slurm":
        outer |= {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "localhost"}
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            if not (folder / "tools" / name).exists():
                tool(folder / "tools", name, text)
    script = draft.directory / (array or draft.campaign.arrays[0]).script
    variables = {**outer, **variables}
    return bash(script, status=status, cwd=folder, tools=folder / "tools", **variables)


def events(draft: Draft, repeat: int = 1) -> list[dict[str, Any]]:
    (array,) = draft.campaign.arrays
    path = draft.directory / array.status(repeat)
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds(draft: Draft, repeat: int = 1) -> list[object]:
    return [event["event"] for event in events(draft, repeat)]


_STEP = re.compile(r"(?:^<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# hpcbert on the path, as a person has it.
HPCBERT = {"hpcbert": f'#!/bin/bash\nexec {shlex.quote(sys.executable)} -m hpcbert "$@"\n'}
SPOOL_PAGE = "add-a-scheduler.md"


def read_steps(page: str, *, end: str = "\0") -> list[tuple[str, str, str]]:
    """Return the blocks of a page before a heading: a file's name or none, language, text."""
    text = (REPOSITORY / "docs/how-to" / page).read_text(encoding="utf-8")
    return _STEP.findall(text.partition(end)[0])


def write_files(steps: list[tuple[str, str, str]], place: Path) -> None:
    for name, _, block in steps:
        if name:
            write_file(place, name, block)


def type_commands(
    words: str, place: Path, *, status: int = 0, tools: Mapping[str, str] = HPCBERT
) -> str:
    """Have bash do what a person typed, with some programs on the path, and return stdout."""
    for name, program in tools.items():
        tool(place / "bin", name, program)
    strange = ("FORCE_COLOR", "HPCBERT_", "PATH", "SLURM_")
    env: Any = {name: text for name, text in os.environ.items() if not name.startswith(strange)}
    env["XDG_STATE_HOME"] = str(place / "state")
    return bash("-ec", words, status=status, cwd=place, tools=place / "bin", **env).stdout

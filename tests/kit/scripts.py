"""Rendered scripts, run by their bash, with stand-ins for srun and the ranks' program; and pages of
documents that write files and type commands, followed word by word."""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcbert.commands.submit import write_campaign
from hpcbert.config.site import Site
from hpcbert.model import Shape
from hpcbert.script.draft import Draft
from hpcbert.script.plan import Request
from hpcbert.system.runner import Outcome
from tests.kit import drafts
from tests.kit.cases import read_constant
from tests.kit.cli import start_process
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import SHELL

# A program that stands in for the ranks' Python: it records its call.
RECORDER = read_constant(__file__, "RECORDER")
# A stand-in for srun that keeps its words and runs the task once. With INSIDE set, it skips steps
# that make a container, as if the plugin worked; otherwise it runs them on the bare host, as if the
# plugin were missing. With NO_RANKS it skips the measured step.
SRUN = read_constant(__file__, "SRUN")


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
    where: Site, framework: str = "pytorch", shape: str = "1n2g", scheduler: str = "local",
    **options: object,
) -> Draft:  # fmt: skip
    """Draft two repeats of a point."""
    request = Request(Shape.parse(shape), repeats=2)
    options = {"scheduler": scheduler, **options}
    return drafts.drafted(where, request, framework_recipe=drafts.load(framework), options=options)


def with_python(where: Site, python: Path, **more: Any) -> Site:
    """Return a site whose ranks run this program."""
    return drafts.settled(where, python=str(python), **more)


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


def run_script(draft: Draft, tmp_path: Path, **options: Any) -> Outcome:
    write_campaign(draft)
    return run_written(draft, tmp_path, **options)


def run_written(
    draft: Draft, tmp_path: Path, *, status: int | None = None, **extra: Any
) -> Outcome:
    """Run the script of the first repeat; `record.*` get its actions and those of its ranks."""
    (array,) = draft.campaign.arrays
    outer = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    own = {"RECORD": str(tmp_path / "record"), "SLURM_ARRAY_TASK_ID": "1"}
    script = draft.directory / array.script
    return bash(script, status=status, cwd=tmp_path, **{**outer, **own, **extra})


def events(draft: Draft, repeat: int = 1) -> list[dict[str, object]]:
    (array,) = draft.campaign.arrays
    path = draft.directory / array.status(repeat)
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds(draft: Draft, repeat: int = 1) -> list[object]:
    return [event["event"] for event in events(draft, repeat)]


_STEP = re.compile(r"(?:^<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# hpcbert on the path, as a person has it.
_START = '#!/bin/bash\nexec {} "$@"{}\n'
HPCBERT = {"hpcbert": _START.format(f"{shlex.quote(sys.executable)} -m hpcbert", "")}
SPOOL_PAGE = "add-a-scheduler.md"


def read_steps(page: str, *, end: str = "\0") -> list[tuple[str, str, str]]:
    """Return the blocks of a page before a heading: a file's name or none, language, text."""
    text = (REPOSITORY / "docs/how-to" / page).read_text(encoding="utf-8")
    return _STEP.findall(text.partition(end)[0])


def write_files(steps: list[tuple[str, str, str]], place: Path) -> None:
    """Write the files of a page."""
    for name, _, block in steps:
        if name:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(block, encoding="utf-8")


def type_commands(
    words: str, place: Path, *, status: int = 0, tools: Mapping[str, str] = HPCBERT
) -> str:
    """Have bash do what a person typed, with some programs on the path, and return stdout."""
    for name, program in tools.items():
        tool(place / "bin", name, program)
    strange = ("FORCE_COLOR", "HPCBERT_", "SLURM_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    env = {**inherited, "PATH": path, "XDG_STATE_HOME": str(place / "state")}
    outcome = start_process(["bash", "-e", "-c", words], cwd=place, env=env)
    assert outcome.returncode == status, outcome.stdout + outcome.stderr
    return outcome.stdout


def make_environment(place: Path) -> dict[str, str]:
    """Make an environment that has all of this one; return its programs for the path.

    pip needs no network: what it builds with is here.
    """
    home = place / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    here = sysconfig.get_path("purelib")
    (packages,) = (home / "lib").glob("python*/site-packages")
    (packages / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    own, outer = shlex.quote(str(home / "bin" / "python")), shlex.quote(sys.executable)
    offline = " --quiet --no-index --no-deps --no-build-isolation"
    return {
        "python": _START.format(own, ""),
        "hpcbert": _START.format(f"{own} -m hpcbert", ""),
        "pip": _START.format(f"{outer} -m pip --python {own}", offline),
    }

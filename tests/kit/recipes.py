"""Recipe folders in tests: their samples, their scripts, and a place to run these."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hpcbert.config.recipe import Preset, Recipe
from hpcbert.config.site import FrameworkSettings
from hpcbert.errors import UsageError
from hpcbert.logs.grammar import Grammar
from hpcbert.logs.grammar import parse as parse_grammar
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from hpcbert.model import Device, Point, Shape
from tests.kit import drafts, logs
from tests.kit.cases import read_constant
from tests.kit.drafts import combined
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.waiting import CEILING

# The grammar for the logs of an invented program: iteration, loss and rate in a line.
STEP_LOG: str = read_constant(__file__, "STEP_LOG")
SHELL = REPOSITORY / "hpcbert" / "shell"
HERE = REPOSITORY / "tests" / "recipes"
NAMES = sorted(path.parent.name for path in TEMPLATES.glob("*/run.sh.j2"))
SHAPES = tuple(map(Shape.parse, ("1n1g", "1n8g", "2n8g", "4n8g")))
RUNTIMES = ("none", "pyxis", "enroot", "apptainer")
_USUAL_SOURCE = ("run_pretraining.py", "run_pretrain.py", "train.py")
_USUAL_DATA = (
    "vocab.txt",
    *(f"training_{number}.hdf5" for number in range(64)),
    *(f"part-{number}" for number in range(64)),
)
_TRAIN = re.compile(r"^train\(\) \{.*?^\}$(?=\n(?:probe|measure)\(\) \{)", re.DOTALL | re.MULTILINE)
_WORDS = re.compile(
    r"(?<= )environment=\(.*?\)$|^rank_options=\([^()]*\)", re.DOTALL | re.MULTILINE
)
_STARTED = re.compile(r"( --started .*) -- \\$", re.MULTILINE)
load = drafts.load


def options_of(recipe: str) -> tuple[str, ...]:
    """Return the options that describe a recipe's sample, for logs named run_N.log."""
    sample_run = load(recipe).sample
    assert sample_run is not None
    shape, size = sample_run.shape, sample_run.batch_size_per_device
    return (
        *("--fw", recipe, "--pattern", "run_{repeat}.log", "--nodes", str(shape.nodes)),
        *("--gpus-per-node", str(shape.gpus_per_node), "--precision", sample_run.precision),
        *("--batch-size", str(size), "--set", f"accumulation={sample_run.accumulation}"),
    )


@cache
def grammar(name: str) -> Grammar:
    return parse_grammar(load(name).log, where=name)


class Case(NamedTuple):
    """One combination that a recipe claims to support."""

    shape: Shape
    preset: Preset
    precision: str
    xla: bool | None = None
    model: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    iters: int | None = None
    device: str = ""

    def __str__(self) -> str:
        words = [str(self.shape), self.preset.name, self.precision, self.model, self.device]
        words += [] if self.xla is None else ["xla" if self.xla else "no-xla"]
        return "-".join([word for word in words if word] + [f"{k}={v}" for k, v in self.settings])


def presets(recipe: Recipe) -> list[tuple[Preset, str]]:
    return [
        (preset, precision)
        for preset in recipe.protocols.values()
        for precision in preset.precisions or recipe.precisions
    ]


def core(recipe: Recipe) -> list[Case]:
    """Return every shape x precision x protocol."""
    return [Case(shape, *pair) for shape in SHAPES for pair in presets(recipe)]


def fringe(recipe: Recipe) -> list[Case]:
    """Return every model, XLA, other device and each value of each option, one at a time."""
    shape = Shape(4, 8)
    first = presets(recipe)[0]
    devices = [case for to in recipe.devices[1:] for case in _elsewhere(recipe, to)]
    cases = [Case(shape, *first, model=model) for model in recipe.models]
    if recipe.xla:
        cases += [Case(shape, *pair, xla=xla) for pair in presets(recipe) for xla in (True, False)]
    for option in recipe.options.values():
        values = ("true", "false") if option.kind == "bool" else map(str, option.choices)
        cases += [Case(shape, *first, settings=((option.name, value),)) for value in values]
    return cases + devices


def _elsewhere(recipe: Recipe, device: Device) -> list[Case]:
    """Return every protocol, precision and model on another device."""
    variant = recipe.for_device(device)
    shape = Shape(1, 1) if variant.alone else Shape(1 if variant.one_node else 4, 8)
    cases = [Case(shape, *pair, device=device) for pair in presets(variant)]
    return cases + [cases[0]._replace(model=model) for model in variant.models]


@dataclass(frozen=True)
class Script:
    """A rendered script and the point that it measures."""

    case: Case
    point: Point
    text: str

    @property
    def rank(self) -> str:
        """The command of each rank, which the environment must let find rank.bash."""
        return rank_command(self.text)


def rank_command(script: str) -> str:
    """Return a shell's commands that start one rank as the script does."""
    train = _TRAIN.search(script)
    assert train is not None
    started = _STARTED.search(script)
    start = (
        f"exec bash {shlex.quote(str(SHELL / 'rank.bash'))} "
        '"${rank_options[@]}" "${environment[@]}" '
        f"{started[1] if started else ''} -- "
        'bash -euo pipefail -c "$(declare -f train); train"'
    )
    return "\n".join([*(match[0] for match in _WORDS.finditer(script)), train[0], start])


def render(name: str, case: Case, *, runtime: str = "none", **paths: str) -> Script:
    """Render a case, at a site that names everything that the recipe needs."""
    where = drafts.reference(Path("/runs"), container={"runtime": runtime}, runs="/runs")
    image = "/i.sif" if runtime == "apptainer" else "/i.sqsh"
    named = {"image": image, "data": "/d a", "source": "/s b", **paths}
    settings = FrameworkSettings(**named)  # type: ignore[arg-type]
    request = combined(
        case.shape, precisions=(case.precision,), preset=case.preset.name, model=case.model,
        xla=case.xla, settings=dict(case.settings), iters=case.iters, device=case.device,
    )  # fmt: skip
    site = drafts.changed(where, frameworks={name: settings})
    draft = drafts.drafted(site, request, framework_recipe=load(name), options={"dry": True})
    (array,) = draft.campaign.arrays
    text = draft.scripts[array.name]
    for file, path in draft.resolved.files.items():
        text = text.replace(path, shlex.quote(str(draft.resolved.sources[file])))
    return Script(case, array.point, text)


# A program that stands in for those of the rank script: it records its words, and keeps the JSON
# files among them, because the rank script removes them at its end.
# Of rank 0 of any job.
ENVIRONMENT: dict[str, str] = read_constant(__file__, "ENVIRONMENT")
_STAND_IN: str = read_constant(__file__, "STAND_IN")
_PYTHON = f"""#!/bin/bash
case ${{1:-}} in -|-c) exec {shlex.quote(sys.executable)} "$@" ;; esac
{_STAND_IN}
stand_in python "$@"
"""


@dataclass(frozen=True)
class Run:
    """The actions of a rank script with programs that only record their calls."""

    exit: int
    output: str
    calls: list[list[str]]
    files: dict[str, str]
    environment: dict[str, str]

    @property
    def refused(self) -> bool:
        """Whether the script reported why it can't do this, before it called a program."""
        return self.exit != 0 and not self.calls and self.output.startswith("hpcbert: ")


class World:
    """A place for rank scripts: empty data and programs under their usual names.

    If a recipe's script reads files in its checkout or data, these are in
    stand-ins/NAME/source and stand-ins/NAME/data; `.stand-in` at the end of a name is dropped.
    """

    def __init__(self, name: str, tmp_path: Path) -> None:
        self.name = name
        self.folder = tmp_path
        stand_ins = HERE / "stand-ins" / name
        for folder in ("source", "data", "tmp"):
            (tmp_path / folder).mkdir()
        for folder, files in (("source", _USUAL_SOURCE), ("data", _USUAL_DATA)):
            for file in files:
                (tmp_path / folder / file).write_text("# stands in\n")
        for path in stand_ins.rglob("*"):
            if path.is_file():
                target = tmp_path / str(path.relative_to(stand_ins)).removesuffix(".stand-in")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
        self.python = tmp_path / "python"
        self.python.write_text(_PYTHON)
        self.python.chmod(0o755)

    def render(self, case: Case) -> Script:
        paths = {kind: str(self.folder / kind) for kind in ("source", "data")}
        for pair in self._given():
            # An option of another protocol is refused.
            with contextlib.suppress(UsageError):
                extended = case._replace(settings=(pair, *case.settings))
                render(self.name, extended, python=str(self.python), **paths)
                case = extended
        return render(self.name, case, python=str(self.python), **paths)

    def _given(self) -> Iterator[tuple[str, str]]:
        """Yield settings that a person must give: files by absolute paths, and empty texts."""
        for option in load(self.name).options.values():
            if str(option.default).startswith("/"):
                path = self.folder / "data" / Path(str(option.default)).name
                path.write_text("# stands in\n")
                yield option.name, str(path)
            elif option.default == "":
                yield option.name, "name"

    def run(
        self, script: Script, *, code: int = 0, prints: Path | None = None,
        env: Mapping[str, str | None] | None = None, library: Path = SHELL,
    ) -> Run:  # fmt: skip
        """Run rank 0 of a script; with another environment, another rank. None takes a variable away."""
        record = self.folder / "record"
        shape = script.point.shape
        recipe = load(self.name)
        if script.case.device:
            recipe = recipe.for_device(script.point.device)
        tasks = recipe.tasks_per_node(shape) * shape.nodes
        addresses = [f"10.0.0.{number}" for number in range(1, shape.nodes + 1)]
        environment = {
            **ENVIRONMENT,
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "HPCBERT_RECORD": str(record),
            "HPCBERT_EXIT": str(code),
            "HPCBERT_PRINTS": str(prints or ""),
            "BASH_FUNC_stand_in%%": _STAND_IN.removeprefix("stand_in").rstrip("\n"),
            "SLURM_NTASKS": str(tasks),
            **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(shape.nodes)),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(shape.gpus_per_node))),
            "HPCBERT_NODES": str(shape.nodes),
            "HPCBERT_NODE_IPS": ",".join(addresses),
        }
        environment = {k: v for k, v in {**environment, **(env or {})}.items() if v is not None}
        result = subprocess.run(
            ["bash", "-c", script.rank.replace(str(SHELL), str(library))], env=environment,
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=CEILING,
        )  # fmt: skip
        argv = record.with_suffix(".argv")
        calls = argv.read_bytes().decode().split("\0\0")[:-1] if argv.exists() else []
        texts = [path.read_text() for path in sorted(self.folder.glob("record.env.*"))]
        words = "".join(texts[-1:]).split("\0")[:-1]
        files = {}
        for path in self.folder.glob("record.*"):
            if path.suffix == ".json":
                files[path.name.removeprefix("record.")] = path.read_text()
            path.unlink()
        output = (result.stdout + result.stderr).decode(errors="replace")
        return Run(
            result.returncode, output, [call.split("\0") for call in calls], files,
            dict(word.split("=", 1) for word in words),
        )  # fmt: skip


def sample(name: str) -> bytes:
    return (TEMPLATES / name / "sample.log").read_bytes()


def printed(name: str) -> bytes:
    """Return what a recipe's program itself printed: the sample without the job's first line."""
    return sample(name).partition(b"\n")[2] if load(name).sample else sample(name)


def setting(name: str) -> Setting:
    """Return the setting of the run that wrote the recipe's sample log."""
    recipe = load(name)
    preset = recipe.preset("")
    run_setting = Setting(skip=preset.skip, iters=preset.iters, reach=preset.iters)
    if recipe.sample is not None:
        shared = ("batch_size_per_device", "precision", "accumulation")
        values = {name: getattr(recipe.sample, name) for name in shared}
        shape = recipe.sample.shape
        run_setting = run_setting._replace(
            nodes=shape.nodes, gpus_per_node=shape.gpus_per_node, **values
        )
    return run_setting.settled({})[0]


def read(
    name: str, folder: Path, data: bytes, rule: str = "", settings: Setting | None = None
) -> Reading:
    """Read bytes as a log of a recipe's sample run."""
    return logs.Reader(folder)(grammar(name), data, rule, settings or setting(name))

"""Recipe folders in tests: their samples, their scripts, and a place to run these."""

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from hpcbert.config.recipe import Recipe
from hpcbert.config.site import FrameworkSettings
from hpcbert.errors import UsageError
from hpcbert.logs.grammar import Grammar
from hpcbert.logs.grammar import parse as parse_grammar
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from hpcbert.model import Point, Shape
from tests.kit import drafts, logs
from tests.kit.cases import read_constant
from tests.kit.cli import start_process
from tests.kit.paths import REPOSITORY, TEMPLATES

# The grammar for the logs of an invented program: iteration, loss and rate in a line.
STEP_LOG: str = read_constant(__file__, "STEP_LOG")
SHELL = REPOSITORY / "hpcbert" / "shell"
HERE = REPOSITORY / "tests" / "recipes"
NAMES = sorted(path.parent.name for path in TEMPLATES.glob("*/run.sh.j2"))
RUNTIMES = ("none", "pyxis", "enroot", "apptainer")
# Of rank 0 of any job.
_ENVIRONMENT: dict[str, str] = read_constant(__file__, "ENVIRONMENT")
# A program that stands in for those of the rank script: it records its words, and keeps the JSON
# files among them, because the rank script removes them at its end; and the end of one for Python.
_STAND_IN: str = read_constant(__file__, "STAND_IN")
_PYTHON: str = read_constant(__file__, "PYTHON")
_TRAIN = re.compile(r"^train\(\) \{.*?^\}$(?=\n(?:probe|measure)\(\) \{)", re.DOTALL | re.MULTILINE)
_WORDS = re.compile(
    r"(?<= )environment=\(.*?\)$|^rank_options=\([^()]*\)", re.DOTALL | re.MULTILINE
)
_STARTED = re.compile(r"( --started .*) -- \\$", re.MULTILINE)
load = drafts.load


def options_of(recipe: str) -> tuple[str, ...]:
    """Return the options that describe a recipe's sample, for logs named run_N.log."""
    run = setting(recipe)
    return (
        *("--fw", recipe, "--pattern", "run_{repeat}.log", "--nodes", str(run.nodes)),
        *("--gpus-per-node", str(run.gpus_per_node), "--precision", str(run.precision)),
        *("--batch-size", str(run.batch_size_per_device)),
        *("--set", f"accumulation={run.accumulation}"),
    )


@cache
def grammar(name: str) -> Grammar:
    return parse_grammar(load(name).log, where=name)


# What a recipe claims to support: arguments of `drafts.combined`, by their names.
Case: TypeAlias = dict[str, Any]


def presets(recipe: Recipe) -> list[Case]:
    return [
        {"preset": preset.name, "precisions": (precision,)}
        for preset in recipe.protocols.values()
        for precision in preset.precisions or recipe.precisions
    ]


def core(recipe: Recipe) -> list[Case]:
    """Return every shape x precision x protocol."""
    shapes = map(Shape.parse, ("1n1g", "1n8g", "2n8g", "4n8g"))
    return [{"shape": shape, **pair} for shape in shapes for pair in presets(recipe)]


def fringe(recipe: Recipe) -> list[Case]:
    """Return every model, XLA, value of an option and other device, one at a time."""
    pairs = presets(recipe)
    first = {"shape": Shape(4, 8), **pairs[0]}
    cases = [{**first, "model": model} for model in recipe.models]
    if recipe.xla:
        cases += [{**first, **pair, "xla": xla} for pair in pairs for xla in (True, False)]
    for option in recipe.options.values():
        values = ("true", "false") if option.kind == "bool" else map(str, option.choices)
        cases += [{**first, "settings": {option.name: value}} for value in values]
    for device in recipe.devices[1:]:
        variant = recipe.for_device(device)
        shape = Shape(1, 1) if variant.alone else Shape(1 if variant.one_node else 4, 8)
        alike = [{"shape": shape, "device": device, **pair} for pair in presets(variant)]
        cases += [*alike, *({**alike[0], "model": model} for model in variant.models)]
    return cases


def rank_command(script: str) -> str:
    """Return a shell's commands that start one rank as the script does."""
    train, started = _TRAIN.search(script), _STARTED.search(script)
    assert train is not None
    start = (
        f"exec bash {shlex.quote(str(SHELL / 'rank.bash'))} "
        '"${rank_options[@]}" "${environment[@]}" '
        f"{started[1] if started else ''} -- "
        'bash -euo pipefail -c "$(declare -f train); train"'
    )
    return "\n".join([*(match[0] for match in _WORDS.finditer(script)), train[0], start])


class Script(NamedTuple):
    """A rendered script, the point that it measures, and the command of each of its ranks."""

    case: Case
    point: Point
    text: str
    rank: str


def render(name: str, case: Case, *, runtime: str = "none", **paths: str) -> Script:
    """Render a case, at a site that names everything that the recipe needs."""
    where = drafts.reference(Path("/runs"), container={"runtime": runtime}, runs="/runs")
    image = "/i.sif" if runtime == "apptainer" else "/i.sqsh"
    settings = FrameworkSettings(**{"image": image, "data": "/d a", "source": "/s b", **paths})  # type: ignore[arg-type]
    site, request = drafts.changed(where, frameworks={name: settings}), drafts.combined(**case)
    draft = drafts.drafted(site, request, framework_recipe=load(name), options={"dry": True})
    (array,) = draft.campaign.arrays
    text = draft.scripts[array.name]
    for file, path in draft.resolved.files.items():
        text = text.replace(path, shlex.quote(str(draft.resolved.sources[file])))
    return Script(case, array.point, text, rank_command(text))


class Run(NamedTuple):
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
        self.name, self.folder = name, tmp_path
        (tmp_path / "tmp").mkdir()
        files = [f"source/{program}.py" for program in ("run_pretraining", "run_pretrain", "train")]
        files += [f"data/{part}" for n in range(8) for part in (f"training_{n}.hdf5", f"part-{n}")]
        for file in (*files, "data/vocab.txt"):
            logs.write_file(tmp_path, file, "# stands in\n")
        stand_ins = HERE / "stand-ins" / name
        for path in filter(Path.is_file, stand_ins.rglob("*")):
            file = str(path.relative_to(stand_ins)).removesuffix(".stand-in")
            logs.write_file(tmp_path, file, path.read_bytes())
        text = f"#!/bin/bash\nreadonly python={shlex.quote(sys.executable)}\n{_STAND_IN}{_PYTHON}"
        logs.write_file(tmp_path, "python", text).chmod(0o755)

    def render(self, case: Case) -> Script:
        """Render a case, with what a person must state: files by absolute paths, and texts."""
        paths = {kind: str(self.folder / kind) for kind in ("source", "data", "python")}
        for option in load(self.name).options.values():
            value = "name" if option.default == "" else ""
            if str(option.default).startswith("/"):
                file = f"data/{Path(str(option.default)).name}"
                value = str(logs.write_file(self.folder, file, "# stands in\n"))
            # An option of another protocol is refused.
            with contextlib.suppress(UsageError):
                extended = {**case, "settings": {option.name: value, **case.get("settings", {})}}
                case = render(self.name, extended, **paths).case if value else case
        return render(self.name, case, **paths)

    def run(
        self, script: Script, *, code: int = 0, prints: Path | None = None,
        env: Mapping[str, str | None] | None = None, library: Path = SHELL,
    ) -> Run:  # fmt: skip
        """Run rank 0 of a script; with another environment, another rank. None takes a variable away."""
        record, shape = self.folder / "record", script.point.shape
        recipe = load(self.name).for_device(script.point.device)
        node_counts = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "HPCBERT_NODES")
        addresses = [f"10.0.0.{number}" for number in range(1, shape.nodes + 1)]
        environment = {
            **_ENVIRONMENT,
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "HPCBERT_RECORD": str(record),
            "HPCBERT_EXIT": str(code),
            "HPCBERT_PRINTS": str(prints or ""),
            "BASH_FUNC_stand_in%%": _STAND_IN.removeprefix("stand_in").rstrip("\n"),
            "SLURM_NTASKS": str(recipe.tasks_per_node(shape) * shape.nodes),
            **dict.fromkeys(node_counts, str(shape.nodes)),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(shape.gpus_per_node))),
            "HPCBERT_NODE_IPS": ",".join(addresses),
            **(env or {}),
        }
        argv = ["bash", "-c", script.rank.replace(str(SHELL), str(library))]
        variables = {name: text for name, text in environment.items() if text is not None}
        result = start_process(argv, env=variables, cwd=self.folder)
        files = {}
        for path in sorted(self.folder.glob("record.*")):
            files[path.name.removeprefix("record.")] = path.read_text()
            path.unlink()
        calls = [call.split("\0") for call in files.pop("argv", "").split("\0\0")[:-1]]
        environments = [files.pop(file) for file in [*files] if file.startswith("env.")]
        words = "".join(environments[-1:]).split("\0")[:-1]
        rank_environment = dict(word.split("=", 1) for word in words)
        return Run(result.returncode, result.stdout + result.stderr, calls, files, rank_environment)


def sample(name: str) -> bytes:
    return (TEMPLATES / name / "sample.log").read_bytes()


def printed(name: str) -> bytes:
    """Return what a recipe's program itself printed: the sample without the job's first line."""
    return sample(name).partition(b"\n")[2] if load(name).sample else sample(name)


def setting(name: str) -> Setting:
    """Return the setting of the run that wrote the recipe's sample log."""
    preset, run = load(name).preset(""), load(name).sample
    labels = ("nodes", "gpus_per_node", "batch_size_per_device", "precision", "accumulation")
    stated: dict[str, Any] = {label: getattr(run, label) for label in labels} if run else {}
    run_setting = Setting(skip=preset.skip, iters=preset.iters, reach=preset.iters, **stated)
    return run_setting.settled({})[0]


def read(
    name: str, folder: Path, data: bytes, rule: str = "", settings: Setting | None = None
) -> Reading:
    return logs.read(folder, grammar(name), data, rule, settings or setting(name))

"""Render sbatch scripts from a resolved request: the only user of Jinja for scripts.

Every `{{ value }}` becomes one shell word, quoted unless it is plainly safe; a list becomes its
words. A filter marks what must not be quoted: `verbatim` for text that is shell already,
`comment` for a comment, `identifier` for a variable's name.
"""

from __future__ import annotations

import functools
import math
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import Environment
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcbert import __version__
from hpcbert.campaign import store
from hpcbert.config import slurm_arguments
from hpcbert.config.options import FEWEST_REPEATS
from hpcbert.config.recipe import Recipe
from hpcbert.config.trust import TrustedPath
from hpcbert.container import runtimes
from hpcbert.errors import UsageError
from hpcbert.logs.grammar import RECORDED
from hpcbert.logs.setting import model_facts
from hpcbert.model import Array, JobRequest, Point, Shape
from hpcbert.script import largest, preflight
from hpcbert.script.largest import EXPRESSION, Multiple, Quotient
from hpcbert.script.quoting import Verbatim, comment, identifier, quote
from hpcbert.script.request import read_request
from hpcbert.script.resolve import Resolved, rank_variables, relative_path, trusted_entries
from hpcbert.script.sandbox import Loader, Readings, locate_errors, refuse_unread
from hpcbert.slurm.reasons import ABSENT

_PACKAGE = Path(__file__).parent.parent
_DECIDER = "hpcbert.campaign.adaptive"


@dataclass(frozen=True)
class Placing:
    """What determines a rank script's device and CPUs.

    Attributes:
        on_gpus: Whether the nodes' GPUs do the work.
        tasks: Tasks per node.
        gpus_of_task: GPUs that each of them drives.
        cpus: CPUs of each task; 0 if unknown.
        share: GPUs of a whole node, which share its CPUs.
        binding: What tasks are bound to: `gpu`, `none`, or what the `cluster` decides.
        binds_if_confined: Whether jobs share nodes: then tasks may be bound only to CPUs of their
            own, which they know only if Slurm confines them to these.
    """

    on_gpus: bool
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
    """Return the tasks of a point on their nodes."""
    site, shape = resolved.site, point.shape
    tasks = resolved.recipe.tasks_per_node(shape)
    gpus_per_node = shape.gpus_per_node // tasks
    has_binding = any(
        word.startswith(("--cpu-bind", "--cpu_bind")) for word in site.slurm.srun_args
    )
    return Placing(
        on_gpus=resolved.plan.preset.gpus and resolved.device != "cpu",
        tasks=tasks,
        gpus_of_task=gpus_per_node,
        cpus=site.nodes.cpus_per_gpu * gpus_per_node,
        share=max(site.nodes.gpus_per_node, shape.gpus_per_node),
        binding="cluster" if has_binding else site.nodes.cpu_bind,
        binds_if_confined=not (site.slurm.exclusive or resolved.scheduler.runs_locally),
    )


def is_adaptive(resolved: Resolved, array: Array) -> bool:
    """Return whether the number of repeats is open, so that one may find itself not needed."""
    return resolved.plan.protocol.precision_of_median is not None and not array.preflight


def adaptive_settings(resolved: Resolved, array: Array) -> list[tuple[str, Any]]:
    """Return the variables that enough.bash reads; none if the number of repeats is fixed.

    Nodes run the submitting hpcbert, with its own interpreter, if they have both in the same place.
    """
    if not is_adaptive(resolved, array):
        return []
    count = str(len(array.repeats)) if resolved.scheduler.sbatch and not array.together else ""
    return [
        ("fewest", FEWEST_REPEATS),
        ("count", count),
        ("package", str(_PACKAGE.parent)),
        ("decider", (sys.executable, "-B", "-m", _DECIDER)),
    ]


def _word(value: Any) -> str:
    """Turn a value in `{{ }}` into shell words."""
    if isinstance(value, Verbatim):
        return value
    if isinstance(value, Multiple | Quotient):
        return f'"{value}"'  # the job calculates it
    if isinstance(value, bool):
        value = "true" if value else "false"
    if isinstance(value, str | int | float):
        return quote(str(value))
    if isinstance(value, list | tuple):
        return " ".join(_word(element) for element in value)
    if isinstance(value, jinja2.Undefined):
        return str(value)  # This raises, naming what is undefined or out of reach.
    raise TypeError(f"it prints a {type(value).__name__}, which is neither text, number nor list")


def _refuse(message: str) -> str:
    """Refuse what a template can't run, in its own words."""
    raise UsageError(message)


def _bert_size(model: str) -> tuple[int, int, int]:
    """Return a model's hidden size, layers and attention heads, of 64 each."""
    sizes = model_facts(model)
    return sizes["hidden_size"], sizes["layers"], sizes["hidden_size"] // 64


@functools.cache
def _make_environment(folders: tuple[Path, ...], entries: tuple[TrustedPath, ...]) -> Environment:
    """Return Jinja set up for shell: one sandbox for all scripts of a submission.

    An undefined name is an error, and every value is one word.
    """
    environment = ImmutableSandboxedEnvironment(
        loader=Loader(folders, entries),
        undefined=jinja2.StrictUndefined,
        finalize=_word,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(comment=comment, identifier=identifier, verbatim=Verbatim)
    environment.globals |= {"gcd": math.gcd, "refuse": _refuse, "bert_size": _bert_size}
    return environment


def _request_options(resolved: Resolved, array: Array) -> tuple[str, ...]:
    """Return the request of a job as options of sbatch, one word each, unquoted."""
    slurm, shape, placement = (
        resolved.site.slurm,
        array.point.shape,
        place_tasks(resolved, array.point),
    )
    gpus = slurm.request_gpus(shape.nodes, shape.gpus_per_node) if placement.on_gpus else ()
    folder = "" if resolved.by_hand else resolved.directory.replace("%", "%%") + "/slurm/"
    count = len(array.repeats)
    throttle = min(resolved.options.concurrent, count)
    pairs = (
        ("--cpus-per-task", str(placement.cpus) if placement.cpus else ""),
        ("--mem", slurm.node_memory),
    )
    return (
        f"--job-name={array.name}",
        *(() if array.together else (f"--array=1-{count}%{throttle}",)),
        f"--nodes={shape.nodes}",
        f"--ntasks-per-node={placement.tasks}",
        "--distribution=block",
        "--wait-all-nodes=1",
        *slurm.selection,
        *gpus,
        *(f"{name}={value}" for name, value in pairs if value),
        *(("--exclusive",) if slurm.exclusive else ()),
        f"--time={slurm.time_limit.text}",
        "--requeue" if slurm.requeue else "--no-requeue",
        "--open-mode=append",
        f"--output={folder}{'%j.out' if array.together else '%A_%a.out'}",
        *_comment_option(resolved, array),
        *slurm.sbatch_args,
        *slurm.placement(shape.nodes),
    )


def job_request(resolved: Resolved, array: Array) -> JobRequest:
    """Return the request of an array's script."""
    return read_request(_request_options(resolved, array))


def _comment_option(resolved: Resolved, array: Array) -> tuple[str, ...]:
    """Return the comment by which an array's job is known under any name and in any directory.

    A comment of the user's own stays.
    """
    is_unmarked = resolved.by_hand or slurm_arguments.argument_value(
        resolved.site.slurm.sbatch_args, "comment"
    )
    return () if is_unmarked else (f"--comment={array.name}",)


def _srun_options(resolved: Resolved, array: Array) -> tuple[str, ...]:
    return (
        *((f"--mpi={resolved.mpi}",) if resolved.mpi else ()),
        *place_tasks(resolved, array.point).srun_options,
        *resolved.site.slurm.srun_args,
    )


def render(resolved: Resolved, array: Array) -> str:
    """Return the sbatch script of one point, or of a part of its repeats.

    Raises:
        UsageError: A value can't be written safely, or a template is wrong, or reaches for or uses
            too much.
    """
    entries = trusted_entries(resolved.site, resolved.options)
    environment = _make_environment(resolved.options.folders, entries)
    recipe, inputs = resolved.recipe, resolved.inputs
    if not recipe.has_script:
        raise UsageError(
            f"hpcbert reads logs of {recipe.name}, but does not start it: it has no run.sh.j2.",
            where=recipe.folder,
            hint=f"hpcbert collect LOGS --fw {recipe.name}",
        )
    point, placement = array.point, place_tasks(resolved, array.point)
    context: dict[str, Any] = {
        "point": largest.with_symbolic_batch(point) if point.largest else point,
        "protocol": resolved.plan.protocol,
        "options": resolved.plan.options,
        "data": inputs.data,
        "source": inputs.source,
        "python": inputs.python,
        "files": resolved.files,
        "requests_gpus": _requests_gpus(resolved, placement),
    }
    with locate_errors(Path(recipe.folder) / "run.sh.j2"):
        programs = [("train", _render_program(environment, resolved, array, context))]
        if point.largest:
            probe_context = {
                **context,
                "point": largest.with_symbolic_batch(point, is_probe=True),
                "protocol": largest.probe_protocol(resolved.plan.protocol),
            }
            programs.append(("probe", _render_program(environment, resolved, array, probe_context)))
        return environment.get_template("base.sbatch.j2").render(
            **{**context, "point": point},
            **_base_context(resolved, array),
            libraries=_libraries(resolved, array),
            settings=_job_settings(resolved, array, programs[0][1]),
            rank_environment=[
                f"{name}={text}" for name, text in rank_variables(resolved, point).items()
            ],
            rank_options=_rank_options(resolved, array, placement),
            started=_format_facts(resolved, array, context["point"]),
            programs=programs,
        )


def _requests_gpus(resolved: Resolved, placement: Placing) -> bool:
    """Return whether the job requests GPUs, and the site does not say that it may have none."""
    is_open = resolved.site.settings(resolved.recipe.name).device == "auto"
    has_gpus = placement.on_gpus and resolved.site.slurm.has_gpus
    return has_gpus and resolved.scheduler.srun and not is_open


def _render_program(
    environment: Environment, resolved: Resolved, array: Array, context: Mapping[str, Any]
) -> str:
    """Return the commands of each rank."""
    recipe, extra_context = resolved.recipe, {}
    name = preflight.choose_template(recipe) if array.preflight else "run.sh.j2"
    name = f"{recipe.name}/{name}"
    if resolved.options.examine:
        name, extra_context = "examine.sh.j2", _examination_context(resolved, array)
    readings = Readings()
    text = environment.get_template(name).render(readings.watch(context), **extra_context)
    _refuse_overridden(array.point, text, recipe)
    if name == f"{recipe.name}/run.sh.j2" and not array.preflight:
        refuse_unread(resolved, array.point, readings)
    return text.rstrip("\n")


def _libraries(resolved: Resolved, array: Array) -> tuple[str, ...]:
    """Return the files that a script sources before anything else."""
    needs = {
        resolved.scheduler.launch.name: True,
        "preflight.bash": array.preflight,
        "examine.bash": resolved.options.examine is not None,
        "largest.bash": array.point.largest,
        "enough.bash": is_adaptive(resolved, array),
    }
    return ("job.bash", *(name for name, is_needed in needs.items() if is_needed))


def _job_settings(resolved: Resolved, array: Array, program: str) -> list[tuple[str, Any]]:
    """Return the variables that only some scripts set, each with a word or a list of words."""
    site = resolved.site
    plugin_arguments = (
        slurm_arguments.environment_arguments(site.slurm.srun_args)
        if resolved.scheduler.srun
        else ()
    )
    settings: list[tuple[str, Any]] = [
        ("interface", site.nodes.interface if resolved.scheduler.srun else ""),
        ("baseline", _baseline(resolved, array)),
        ("handed_over", site.container.env),
        ("caches", site.nodes.drop_caches if not array.preflight else ()),
        ("surroundings", plugin_arguments),
        *adaptive_settings(resolved, array),
    ]
    if array.preflight:
        settings += [
            ("least_percent", preflight.LEAST_PERCENT),
            ("limit", resolved.site.slurm.time_limit.bound),
        ]
    if array.point.largest:
        settings += largest.largest_settings(resolved, array, program)
    if examine := resolved.options.examine:
        settings += [("looked", look_arguments(resolved)), ("probed", examine.probe)]
    return [
        (name, Verbatim(f"({_word(value)})") if isinstance(value, tuple) else value)
        for name, value in settings
        if value not in ("", ())
    ]


def _rank_options(resolved: Resolved, array: Array, placement: Placing) -> list[Any]:
    """Return the options of rank.bash."""
    options: list[Any] = ["--tasks", placement.tasks, "--devices", placement.gpus_of_task]
    options += ["--share", placement.share]
    if placement.on_gpus:
        options.append("--on-gpus")
    if placement.shares_nodes and placement.cpus:
        options += ["--cpus", placement.cpus]
    if placement.bind:
        options.append("--bind")
        if placement.binds_if_confined:
            options.append("--confined-only")
    if resolved.options.rehearse:
        options += ["--rehearse", f"{resolved.directory}/{store.SAMPLE}"]
        if array.point.largest:
            options += largest.stand_in_options(resolved, array)
    return options


def _format_facts(resolved: Resolved, array: Array, point: Any) -> Verbatim | str:
    """Return the settings of a point's ranks in the form that `grammar.STARTED_FACT` reads."""
    if resolved.options.examine or array.preflight:
        return ""
    recipe, options = resolved.recipe, resolved.plan.options
    facts = {
        "batch_size_per_device": point.batch_size_per_device,
        "accumulation": point.accumulation,
        "precision": point.precision,
        **({"xla": str(point.xla).lower()} if recipe.xla is True else {}),
        **{name: value for name, value in model_facts(point.model).items() if name == "model"},
        "sequence_length": recipe.log.get("sequence_length"),
        **{name: options[name] for name in RECORDED if options.get(name)},
    }
    text = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
    words = [
        f'"{part}"' if EXPRESSION.fullmatch(part) else quote(part)
        for part in EXPRESSION.split(text)
        if part
    ]
    return Verbatim("".join(words))


def _refuse_overridden(point: Point, body: str, recipe: Recipe) -> None:
    """Refuse a variable of the point that the recipe's own script sets to another value."""
    for name, _ in point.env:
        if re.search(rf"(?:^|[\s;(]){name}=", body):
            message = f"{recipe.name} sets {name} itself."
            where = str(Path(recipe.folder) / "run.sh.j2")
            raise UsageError(message, where=where, hint=f"Leave {name} out.")


def _examination_context(resolved: Resolved, array: Array) -> dict[str, Any]:
    """Return a template's variables for the inspection on each rank."""
    in_image = resolved.site.container.runtime != "none"
    mpi = set(resolved.recipe.mpi) - {"none"}
    return {
        "modules": ",".join(resolved.recipe.modules) if in_image else "",
        "gpus": resolved.request.shape.gpus_per_node
        if place_tasks(resolved, array.point).on_gpus
        else 0,
        "mpi": "yes" if mpi else "no",
    }


def _base_context(resolved: Resolved, array: Array) -> dict[str, Any]:
    folder, _, name = array.log.rpartition("/")
    image, placement = resolved.inputs.image, place_tasks(resolved, array.point)
    runtime = runtimes.RUNTIMES.get(resolved.site.container.runtime)
    return {
        "site": resolved.site,
        "recipe": resolved.recipe,
        "resolved": resolved,
        "array": array,
        "placing": placement,
        "sampling": resolved.site.nodes.sampling
        if placement.on_gpus and not array.preflight
        else 0,
        "directives": resolved.scheduler.format_directives(_request_options(resolved, array)),
        "srun_options": _srun_options(resolved, array),
        "device": _device_word(placement, array.point),
        "reproduce": _header_origin(resolved, array.point),
        "absent": ABSENT,
        "log_stem": f"{folder}/{name.replace('_{repeat}.log', '')}",
        "runtime": runtime,
        "image": runtimes.image_uri(image, resolved.site.container.runtime),
        "stem": runtime.tool.prefix + image.stem
        if runtime and image and image.kind != "file"
        else "",
    }


def _device_word(placement: Placing, point: Point) -> str:
    """Return the device of the ranks for job.bash; a TPU is `tpu`, though driven from the CPU."""
    if placement.on_gpus:
        return "gpu"
    return "cpu" if point.device == "cpu" else "tpu"


def look_arguments(resolved: Resolved) -> tuple[str, ...]:
    """Return the arguments of an examination for look.sh; none for a measurement."""
    examine = resolved.options.examine
    if examine is None:
        return ()
    imports = (("--import", python, ",".join(names)) for python, names in examine.imports)
    paths = (("--path", path) for path in examine.paths)
    words = (word for option in (*imports, *paths) for word in option)
    return (examine.runs, resolved.site.nodes.interface, *words)


def _baseline(resolved: Resolved, array: Array) -> str:
    """Return the key of the first point of a curve, whose failure stops this one; else empty.

    It is the smallest, or the largest if that finds the batch size for all.
    """
    if not resolved.options.stop_on_failure or resolved.by_hand or array.preflight:
        return ""
    curve = [
        point
        for point in resolved.plan.points
        if _without_shape(point) == _without_shape(array.point)
    ]
    choose = max if array.point.is_common else min
    first_point = choose(curve, key=lambda point: (point.shape.gpus, point.shape.nodes))
    return "" if first_point == array.point else first_point.key


def _without_shape(point: Point) -> Point:
    return replace(point, shape=Shape(1, 1), accumulation=1)


def _header_origin(resolved: Resolved, point: Point) -> str:
    """Return the origin in a script's header: by hand, the command that renders it."""
    if not resolved.by_hand:
        return f"hpcbert {__version__}"
    site = relative_path(Path(resolved.site.where), Path.cwd())
    protocol, shape = resolved.plan.protocol, point.shape
    words = [
        *("hpcbert", "render", "--fw", point.framework, "--model", point.model),
        *("--nodes", str(shape.nodes), "--gpus-per-node", str(shape.gpus_per_node)),
        *("--precision", point.precision, "--batch-size", point.batch),
        *("--repeats", str(protocol.repeats), "--iters", str(protocol.iters)),
        *("--skip", str(protocol.skip)),
        *(("--window-seconds", str(seconds)) if (seconds := protocol.window_seconds) else ()),
        *(("--device", point.device) if point.device != resolved.recipe.devices[0] else ()),
        *(("--protocol", point.protocol) if point.protocol else ()),
        *(("--accumulation", str(point.accumulation)) if point.accumulation != 1 else ()),
        *(("--global-batch-size", str(point.samples_per_step)) if point.samples_per_step else ()),
        *(("--xla",) if point.xla else ("--no-xla",) if resolved.plan.preset.xla else ()),
    ]
    for name, value in resolved.request.settings.items():
        words += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    for name, text in point.env:
        words += ["--env", f"{name}={text}"]
    return shlex.join([*words, "--site", site, "--scheduler", resolved.scheduler.name])

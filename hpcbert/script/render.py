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
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from jinja2 import Environment
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcbert import __version__
from hpcbert.campaign import store
from hpcbert.config import slurm_arguments
from hpcbert.config.options import FEWEST_REPEATS
from hpcbert.config.trust import TrustedPath
from hpcbert.container import runtimes
from hpcbert.errors import UsageError
from hpcbert.logs.setting import RECORDED, model_facts
from hpcbert.model import Array, JobRequest, Point, Shape
from hpcbert.script import largest
from hpcbert.script.largest import EXPRESSION, Multiple, Quotient
from hpcbert.script.quoting import Verbatim, comment, identifier, quote
from hpcbert.script.request import read_request
from hpcbert.script.resolve import (
    LEAST_PERCENT,
    PREFLIGHT,
    Resolved,
    rank_variables,
    trusted_entries,
)
from hpcbert.script.sandbox import Loader, locate_errors, refuse_unread, watch
from hpcbert.slurm.reasons import ABSENT

_PACKAGE = Path(__file__).parent.parent
_DECIDER = "hpcbert.campaign.adaptive"


class Placing(NamedTuple):
    """What determines a rank script's device and CPUs.

    Attributes:
        cpus: CPUs of each task; 0 if unknown.
        binds_if_confined: Whether jobs share nodes: then tasks may be bound only to CPUs of their
            own, which they know only if Slurm confines them to these.
    """

    on_gpus: bool
    tasks: int
    gpus_of_task: int
    cpus: int
    binds: bool
    binds_if_confined: bool
    srun_options: tuple[str, ...]


def place_tasks(resolved: Resolved, shape: Shape) -> Placing:
    """Return the tasks of a point on their nodes."""
    site = resolved.site
    tasks = resolved.recipe.tasks_per_node(shape)
    gpus_of_task = shape.gpus_per_node // tasks
    cpus = site.nodes.cpus_per_gpu * gpus_of_task
    has_option = any(word.startswith(("--cpu-bind", "--cpu_bind")) for word in site.slurm.srun_args)
    binding = "cluster" if has_option else site.nodes.cpu_bind
    # A node may have other tasks, unless one drives the whole node.
    binds = gpus_of_task == 1 and binding == "gpu" and cpus > 0
    binds_if_confined = not (site.slurm.exclusive or resolved.scheduler.runs_locally)
    # With the number a step has no more CPUs than that: ranks that choose need to see the whole
    # node. Without it many clusters would bind a task to a single CPU.
    ranks_choose = binds and not binds_if_confined
    cpu_options = [f"--cpus-per-task={cpus}"] if cpus and not ranks_choose else []
    return Placing(
        on_gpus=resolved.plan.preset.gpus and resolved.device != "cpu",
        tasks=tasks,
        gpus_of_task=gpus_of_task,
        cpus=cpus,
        binds=binds,
        binds_if_confined=binds_if_confined,
        srun_options=(*cpu_options, *(["--cpu-bind=none"] if binding != "cluster" else [])),
    )


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
    slurm, shape = resolved.site.slurm, array.point.shape
    placing = place_tasks(resolved, shape)
    folder = "" if resolved.by_hand else resolved.directory.replace("%", "%%") + "/slurm/"
    count = len(array.repeats)
    options = [f"--job-name={array.name}"]
    if not array.together:
        options.append(f"--array=1-{count}%{min(resolved.options.concurrent, count)}")
    gpus = shape.gpus_per_node if placing.on_gpus else 0
    options += slurm.request_options(shape.nodes, placing.tasks, gpus=gpus, cpus=placing.cpus)
    options += ["--requeue" if slurm.requeue else "--no-requeue", "--open-mode=append"]
    options.append(f"--output={folder}{'%j.out' if array.together else '%A_%a.out'}")
    # The comment by which a job is known under any name and in any directory; a user's own stays.
    if not resolved.by_hand and not slurm_arguments.argument_value(slurm.sbatch_args, "comment"):
        options.append(f"--comment={array.name}")
    return (*options, *slurm.sbatch_args, *slurm.placement(shape.nodes))


def job_request(resolved: Resolved, array: Array) -> JobRequest:
    """Return the request of an array's script."""
    return read_request(_request_options(resolved, array))


def render(resolved: Resolved, array: Array) -> str:
    """Return the sbatch script of one point, or of a part of its repeats.

    Raises:
        UsageError: A value can't be written safely, or a template is wrong, or reaches for or uses
            too much.
    """
    recipe, inputs, point = resolved.recipe, resolved.inputs, array.point
    if not recipe.has_script:
        raise UsageError(
            f"hpcbert reads logs of {recipe.name}, but does not start it: it has no run.sh.j2.",
            where=recipe.folder,
            hint=f"hpcbert collect LOGS --fw {recipe.name}",
        )
    entries = trusted_entries(resolved.site, resolved.options)
    environment = _make_environment(resolved.options.folders, entries)
    placing, site = place_tasks(resolved, point.shape), resolved.site
    may_lack_gpus = site.settings(recipe.name).device == "auto" or not resolved.scheduler.srun
    context: dict[str, Any] = {
        "point": largest.with_symbolic_batch(point) if point.largest else point,
        "protocol": resolved.plan.protocol,
        "options": resolved.plan.options,
        "data": inputs.data,
        "source": inputs.source,
        "python": inputs.python,
        "files": resolved.files,
        "requests_gpus": placing.on_gpus and site.slurm.has_gpus and not may_lack_gpus,
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
        settings = _job_settings(resolved, array, programs[0][1])
        variables = rank_variables(resolved, point).items()
        return environment.get_template("base.sbatch.j2").render(
            **{**context, "point": point},
            **_base_context(resolved, array, placing),
            libraries=("job.bash", *_choose_libraries(resolved, array)),
            settings=[
                (name, Verbatim(f"({_word(value)})") if isinstance(value, tuple) else value)
                for name, value in settings.items()
                if value not in ("", ())
            ],
            rank_environment=[f"{name}={text}" for name, text in variables],
            rank_options=_rank_options(resolved, array, placing),
            started=_format_facts(resolved, array, context["point"]),
            programs=programs,
        )


def _render_program(
    environment: Environment, resolved: Resolved, array: Array, context: Mapping[str, Any]
) -> str:
    recipe, names = resolved.recipe, set[str]()
    path = Path(recipe.folder) / "run.sh.j2"
    if resolved.options.examine:
        in_image = resolved.site.container.runtime != "none"
        shape = resolved.request.shape
        text = environment.get_template("examine.sh.j2").render(
            **context,
            modules=",".join(recipe.modules) if in_image else "",
            gpus=shape.gpus_per_node if place_tasks(resolved, shape).on_gpus else 0,
            mpi="yes" if set(recipe.mpi) - {"none"} else "no",
        )
    else:
        has_preflight = path.with_name("preflight.sh.j2").is_file() and array.preflight
        name = "preflight.sh.j2" if has_preflight else path.name
        text = environment.get_template(f"{recipe.name}/{name}").render(watch(context, names))
        if not array.preflight:
            refuse_unread(resolved, array.point, names)
    for name, _ in array.point.env:
        if re.search(rf"(?:^|[\s;(]){name}=", text):
            message = f"{recipe.name} sets {name} itself."
            raise UsageError(message, where=str(path), hint=f"Leave {name} out.")
    return text.rstrip("\n")


def _choose_libraries(resolved: Resolved, array: Array) -> Iterator[str]:
    """Yield the files that a script sources after job.bash."""
    yield resolved.scheduler.launch.name
    if array.preflight:
        yield PREFLIGHT
    if resolved.options.examine:
        yield "examine.bash"
    if array.point.largest:
        yield "largest.bash"
    if _is_adaptive(resolved, array):
        yield "enough.bash"


def _is_adaptive(resolved: Resolved, array: Array) -> bool:
    return resolved.plan.protocol.precision_of_median is not None and not array.preflight


def _job_settings(resolved: Resolved, array: Array, program: str) -> dict[str, Any]:
    """Return the variables that only some scripts set, each with a word or a tuple of words."""
    site, scheduler, examine = resolved.site, resolved.scheduler, resolved.options.examine
    arguments = slurm_arguments.environment_arguments(site.slurm.srun_args)
    settings: dict[str, Any] = {
        "interface": site.nodes.interface if scheduler.srun else "",
        "baseline": _choose_baseline(resolved, array),
        "handed_over": site.container.env,
        "caches": site.nodes.drop_caches if not array.preflight else (),
        "surroundings": arguments if scheduler.srun else (),
    }
    if _is_adaptive(resolved, array):
        # Nodes run this hpcbert, with its own interpreter, if they have both in the same place.
        settings |= {
            "fewest": FEWEST_REPEATS,
            "count": str(len(array.repeats)) if scheduler.sbatch and not array.together else "",
            "package": str(_PACKAGE.parent),
            "decider": (sys.executable, "-B", "-m", _DECIDER),
        }
    if array.preflight:
        settings |= {"least_percent": LEAST_PERCENT, "limit": site.slurm.time_limit.bound}
    if array.point.largest:
        settings |= largest.largest_settings(resolved, array, program)
    if examine:
        settings |= {"looked": examine.look, "probed": examine.probe}
    return settings


def _rank_options(resolved: Resolved, array: Array, placing: Placing) -> list[Any]:
    gpus_of_node = max(resolved.site.nodes.gpus_per_node, array.point.shape.gpus_per_node)
    options: list[Any] = ["--tasks", placing.tasks, "--devices", placing.gpus_of_task]
    options += ["--share", gpus_of_node]
    if placing.on_gpus:
        options.append("--on-gpus")
    if placing.gpus_of_task == 1 and placing.cpus:
        options += ["--cpus", placing.cpus]
    if placing.binds:
        options.append("--bind")
        if placing.binds_if_confined:
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
        "xla": str(point.xla).lower() if recipe.xla is True else None,
        "model": model_facts(point.model).get("model"),
        "sequence_length": recipe.log.get("sequence_length"),
        **{name: options[name] for name in RECORDED if options.get(name)},
    }
    text = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
    parts = [part for part in EXPRESSION.split(text) if part]
    words = [f'"{part}"' if EXPRESSION.fullmatch(part) else quote(part) for part in parts]
    return Verbatim("".join(words))


def _base_context(resolved: Resolved, array: Array, placing: Placing) -> dict[str, Any]:
    image, site = resolved.inputs.image, resolved.site
    runtime = runtimes.RUNTIMES.get(site.container.runtime)
    has_stem = runtime and image and image.kind != "file"
    samples_power = placing.on_gpus and not array.preflight
    mpi = [f"--mpi={resolved.mpi}"] if resolved.mpi else []
    # A TPU is driven from the CPU.
    host_device = "cpu" if array.point.device == "cpu" else "tpu"
    return {
        "site": site,
        "recipe": resolved.recipe,
        "resolved": resolved,
        "array": array,
        "placing": placing,
        "sampling": site.nodes.sampling if samples_power else 0,
        "directives": resolved.scheduler.format_directives(_request_options(resolved, array)),
        "srun_options": (*mpi, *placing.srun_options, *site.slurm.srun_args),
        "device": "gpu" if placing.on_gpus else host_device,
        "reproduce": _describe_origin(resolved, array.point),
        "absent": ABSENT,
        "log_stem": array.log.replace("_{repeat}.log", ""),
        "runtime": runtime,
        "image": runtimes.image_uri(image, site.container.runtime),
        "stem": runtime.prefix + image.stem if runtime and image and has_stem else "",
    }


def _choose_baseline(resolved: Resolved, array: Array) -> str:
    """Return the key of the first point of a curve, whose failure stops this one; else empty.

    It is the smallest, or the largest if that finds the batch size for all.
    """
    if not resolved.options.stop_on_failure or resolved.by_hand or array.preflight:
        return ""
    same: dict[str, Any] = {"shape": Shape(1, 1), "accumulation": 1}
    variant = replace(array.point, **same)
    curve = [point for point in resolved.plan.points if replace(point, **same) == variant]
    choose = max if array.point.is_common else min
    first_point = choose(curve, key=lambda point: (point.shape.gpus, point.shape.nodes))
    return "" if first_point == array.point else first_point.key


def _describe_origin(resolved: Resolved, point: Point) -> str:
    """Return the origin in a script's header: by hand, the command that renders it."""
    if not resolved.by_hand:
        return f"hpcbert {__version__}"
    site, folder = Path(resolved.site.where), Path.cwd()
    site = site.relative_to(folder) if site.is_relative_to(folder) else site
    protocol, shape = resolved.plan.protocol, point.shape
    options: dict[str, Any] = {
        "--fw": point.framework,
        "--model": point.model,
        "--nodes": shape.nodes,
        "--gpus-per-node": shape.gpus_per_node,
        "--precision": point.precision,
        "--batch-size": point.batch,
        "--repeats": protocol.repeats,
        "--iters": protocol.iters,
        "--skip": protocol.skip,
        "--window-seconds": protocol.window_seconds or "",
        "--device": point.device if point.device != resolved.recipe.devices[0] else "",
        "--protocol": point.protocol,
        "--accumulation": point.accumulation if point.accumulation != 1 else "",
        "--global-batch-size": point.samples_per_step or "",
    }
    words = ["hpcbert", "render"]
    for flag, value in options.items():
        words += [flag, str(value)] if value != "" else []
    words += ["--xla"] if point.xla else ["--no-xla"] if resolved.plan.preset.xla else []
    for name, value in resolved.request.settings.items():
        words += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    for name, text in point.env:
        words += ["--env", f"{name}={text}"]
    return shlex.join([*words, "--site", str(site), "--scheduler", resolved.scheduler.name])

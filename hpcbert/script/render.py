"""Points to sbatch scripts: the only user of Jinja for scripts.

Every `{{ value }}` becomes one shell word, quoted unless it is plainly safe; a list becomes its
words. What shall not be quoted must say so by a filter: `verbatim` for text that is shell already,
`directive` for a `#SBATCH` line, `comment` for a comment, `identifier` for a variable's name.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from hpcbert.config.schedulers import traits
from hpcbert.errors import UsageError
from hpcbert.script.sandbox import Environment, bounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcbert.config.inventory import Recipe, Site
    from hpcbert.model import OptionValue, Point, Protocol

_HEREDOC_END = "HPCBERT_RANK"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNSAFE_IN_DIRECTIVE = re.compile(r"[^\w@%+=:,./\[\]-]", re.ASCII)
_ESCAPED_IN_QUOTES = re.compile(r'(["\\])')
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": r"\\", "'": r"\'"}


class Verbatim(str):
    """Text that is shell already."""

    __slots__ = ()


@dataclass(frozen=True)
class Job:
    """All that one script is rendered from.

    Attributes:
        point: What is measured.
        recipe, site: How, and where.
        options: Value of each of the recipe's options.
        protocol: Repeats, iterations, warm-up.
        name: Job name.
        directory: The campaign's directory, or `.` for a script to submit by hand.
        scheduler: Its name; may differ from the site's in a dry run.
        files: Where each file of the recipe is, by name.
        image: Container image, a URI or a file's path; empty without a container.
        stem: Name of its file in the site's directory of images; empty for a file's path.
        mounts: Container mounts beside the campaign's, `SRC:DST[:FLAGS]` each.
        concurrent: Repeats that may run at the same time.
        together: Whether all repeats run one after another in one job, on the same nodes.
        offset: What a repeat's number is above its array index.
        count: Repeats in the array; 0: all of the protocol's.
        rehearse: Whether ranks replay the sample log at `sample` instead of training.
        sample: Path of the sample log.
        reproduce: Command line that renders this script again.
    """

    point: Point
    recipe: Recipe
    site: Site
    options: Mapping[str, OptionValue]
    protocol: Protocol
    name: str
    directory: str
    scheduler: str
    files: Mapping[str, str]
    image: str
    stem: str = ""
    mounts: tuple[str, ...] = ()
    concurrent: int = 1
    together: bool = False
    offset: int = 0
    count: int = 0
    rehearse: bool = False
    sample: str = ""
    reproduce: str = ""
    log: str = field(default="")


def quote(text: str) -> str:
    r"""Return text as one shell word that is exactly that text; control characters as `$'\n'`.

    Raises:
        UsageError: The text holds a NUL or is no valid Unicode: no shell word can be that.
    """
    _refuse_unwritable(text)
    if not _CONTROL.search(text):
        return shlex.quote(text)
    escaped = "".join(
        _ESCAPES.get(char) or (f"\\x{ord(char):02x}" if _CONTROL.match(char) else char)
        for char in text
    )
    return f"$'{escaped}'"


def directive(text: str) -> Verbatim:
    r"""Return text as it must stand after `#SBATCH` for sbatch to read exactly that word.

    Within double quotes a backslash takes the next character as it is, `#` begins no comment and
    blanks do not end the word; outside of them a blank can't be escaped (seen with sbatch 22.05.8;
    SchedMD/slurm, src/sbatch/opt.c, _get_argument).

    Raises:
        UsageError: The text holds a control character, which no directive can carry.
    """
    _refuse_unwritable(text)
    if _CONTROL.search(text):
        raise UsageError(
            f"{text!r} holds a line break or another control character.",
            hint="An #SBATCH line can't carry it: remove it.",
        )
    if not _UNSAFE_IN_DIRECTIVE.search(text):
        return Verbatim(text)
    name, equals, value = text.partition("=")
    if _UNSAFE_IN_DIRECTIVE.search(name):
        name, equals, value = "", "", text
    escaped = _ESCAPED_IN_QUOTES.sub(r"\\\1", value)
    return Verbatim(f'{name}{equals}"{escaped}"')


def comment(text: str) -> Verbatim:
    """Return text fit for the rest of a comment line."""
    return Verbatim(_CONTROL.sub(" ", text))


def identifier(text: str) -> Verbatim:
    """Return a variable's name, or refuse what is none.

    Raises:
        UsageError: The text is no shell identifier.
    """
    if not _IDENTIFIER.fullmatch(text):
        raise UsageError(f"{text!r} is no name for an environment variable.")
    return Verbatim(text)


def _refuse_unwritable(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{text!r} is no valid Unicode text.") from error
    if "\0" in text:
        raise UsageError(f"{text!r} holds a NUL character.")


def _word(value: Any) -> str:
    """Turn whatever stands in `{{ }}` into shell words."""
    if isinstance(value, Verbatim):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, int | float):
        return quote(str(value))
    if isinstance(value, list | tuple):
        return " ".join(_word(element) for element in value)
    if isinstance(value, jinja2.Undefined):
        return str(value)  # Which raises, and says what is undefined or not to be reached.
    raise TypeError(f"it prints a {type(value).__name__}, which is neither text, number nor list")


def _environment(folders: Sequence[Path]) -> Environment:
    """Return the sandbox with what templates say of words."""
    environment = Environment(folders, finalize=_word)
    environment.filters.update(
        directive=directive, comment=comment, identifier=identifier, verbatim=Verbatim
    )
    environment.globals["gcd"] = math.gcd
    return environment


def directives(job: Job) -> tuple[str, ...]:
    """Return the `#SBATCH` options of a job, one word each, unquoted."""
    slurm, shape = job.site.slurm, job.point.shape
    cpus = _cpus_per_task(job)
    wants_gpus = job.recipe.preset(job.point.protocol).gpus
    by_hand = job.directory == "."
    folder = "" if by_hand else job.directory.replace("%", "%%") + "/slurm/"
    count = job.count or job.protocol.repeats
    array = f"--array=1-{count}%{min(job.concurrent, count)}"
    pairs = (
        ("--gres", f"{slurm.gres}:{shape.gpus_per_node}" if slurm.gres and wants_gpus else ""),
        ("--cpus-per-task", str(cpus) if cpus else ""),
        ("--mem", slurm.memory),
    )
    return (
        f"--job-name={job.name}",
        *(() if job.together else (array,)),
        f"--nodes={shape.nodes}",
        f"--ntasks-per-node={job.recipe.tasks_per_node(shape)}",
        *slurm.selection,
        *(f"{name}={value}" for name, value in pairs if value),
        *(("--exclusive",) if slurm.exclusive else ()),
        f"--time={slurm.time_limit.text}",
        "--requeue" if slurm.requeue else "--no-requeue",
        "--open-mode=append",
        f"--output={folder}{'%j.out' if job.together else '%A_%a.out'}",
        *slurm.sbatch_args,
    )


def _cpus_per_task(job: Job) -> int:
    shape = job.point.shape
    return job.site.nodes.cpus_per_gpu * (shape.gpus_per_node // job.recipe.tasks_per_node(shape))


def _srun_options(job: Job) -> tuple[str, ...]:
    site, cpus = job.site, _cpus_per_task(job)
    mpi = site.slurm.mpi or job.recipe.mpi
    return (
        *((f"--mpi={mpi}",) if mpi else ()),
        # Without a number of CPUs a task would be bound to a single one on many clusters.
        f"--cpus-per-task={cpus}" if cpus else "--cpu-bind=none",
        *site.slurm.srun_args,
    )


def render(job: Job, folders: Sequence[Path]) -> str:
    """Return the sbatch script of one point.

    Args:
        job: What to render.
        folders: Where templates are looked for; the first that has a file wins.

    Raises:
        UsageError: A value can't be written safely, or a template is wrong, reaches for what it
            may not, or takes too much.
    """
    environment = _environment(folders)
    settings = job.site.settings(job.point.framework)
    context: dict[str, Any] = {
        "point": job.point,
        "protocol": job.protocol,
        "options": job.options,
        "data": settings.data,
        "source": settings.source,
        "python": settings.python,
        "files": job.files,
    }
    with bounded(Path(job.recipe.folder) / "run.sh.j2"):
        body = environment.get_template(f"{job.recipe.name}/run.sh.j2").render(context)
        rank_script = environment.get_template("rank.sh.j2").render(
            env=_rank_environment(job), rehearse=job.rehearse, sample=job.sample, body=body
        )
        if _HEREDOC_END in rank_script.split("\n"):
            raise UsageError(f"A line of the rank script is {_HEREDOC_END}.")
        return environment.get_template("base.sbatch.j2").render(
            **context, **_base_context(job), rank_script=rank_script.rstrip("\n")
        )


def _rank_environment(job: Job) -> list[tuple[str, str]]:
    """Return what every rank exports: the site's, then the recipe's, which is pinned."""
    return list({**dict(job.site.env), **dict(job.recipe.env)}.items())


def _base_context(job: Job) -> dict[str, Any]:
    folder, _, name = job.log.rpartition("/")
    like = traits(job.scheduler)
    return {
        "directives": directives(job),
        "reproduce": job.reproduce,
        "together": job.together,
        "offset": job.offset,
        "count": job.count or job.protocol.repeats,
        "repeats": list(range(1, job.protocol.repeats + 1)),
        "tasks_per_node": job.recipe.tasks_per_node(job.point.shape),
        "directory": job.directory,
        "log_folder": folder,
        "log_stem": f"{folder}/{name.replace('_{repeat}.log', '')}",
        "scheduler": job.scheduler,
        "here": like.here,
        "srun": like.srun,
        "launch": like.launch,
        "site": job.site,
        "srun_options": _srun_options(job),
        "image": job.image,
        "stem": job.stem,
        "mounts": job.mounts,
        "writable": job.recipe.writable,
        "workdir": job.recipe.workdir,
        "rank_environment": [f"{name}={text}" for name, text in _rank_environment(job)],
    }


def log_layout(point: Point) -> str:
    """Return a repeat's log relative to the campaign, `{repeat}` standing for its number.

    DLPerf's own layout, so that its extraction scripts read a campaign too
    (Oneflow-Inc/DLPerf@c89430b, the READMEs' log directories).
    """
    size = point.batch_size_per_device
    return (
        f"logs/{point.framework}/bert/bz{size}/{point.shape}/"
        f"bert_b{size}_{point.precision}_{{repeat}}.log"
    )

"""Turn the options of submit and render into requests, a site and recipes."""

from __future__ import annotations

import os
import pwd
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hpcbert.cli.conflicts import refuse_typed, typed
from hpcbert.cli.options import pairs, split
from hpcbert.config import adaptive, campaignfile, places, site, slurmwords, variables
from hpcbert.config.campaignfile import CampaignFile, Selection
from hpcbert.config.overrides import SCALING
from hpcbert.config.schedulers import SLURM, traits
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import LARGEST, PRECISIONS, Shape, device, precision
from hpcbert.script.plan import Request, device_of, shapes
from hpcbert.slurm import mail
from hpcbert.system.decode import Invalid, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hpcbert.cli.options import PointOptions
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.script.again import Past
    from hpcbert.script.draft import Submitter
    from hpcbert.script.matrix import Portion
    from hpcbert.script.resolve import SubmitOptions

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """The shared options, after reading.

    Attributes:
        warnings: Choices made on the user's behalf.
    """

    request: Request
    site: Site
    recipe: Recipe
    options: SubmitOptions
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ReadFile:
    """A campaign.toml and its path."""

    path: Path
    file: CampaignFile

    @classmethod
    def at(cls, path: Path | None) -> ReadFile | None:
        """Read the campaign file that the command line names, if any.

        Raises:
            ConfigError: The file is missing or wrong.
        """
        if path is None:
            return None
        if not path.exists():
            raise ConfigError("There is no such file.", where=str(path), hint=_NO_FILE)
        return cls(path, campaignfile.read(path))


_NO_FILE = "hpcbert plan --init writes an example; without a file, options say what to measure."


def read(
    options: PointOptions,
    *,
    dry: bool = False,
    rehearse: bool = False,
    then: Past | None = None,
    written: ReadFile | None = None,
) -> tuple[Asked, ...]:
    """Turn the shared options into a request, a site and a recipe for each campaign.

    Args:
        options: The options, `filled` from the file.
        dry: Whether nothing will run.
        rehearse: Whether nothing will train.
        then: The campaign that says what to measure, instead of the options.
        written: The file that says what to measure.

    Raises:
        UsageError: A value is wrong, or what was measured then is not available here.
    """
    from hpcbert.script import again, matrix

    if then:
        options, rehearse = _as_then(options, then), rehearse or then.campaign.rehearse
    for program, words in (("sbatch", options.sbatch_arg), ("srun", options.srun_arg)):
        if why := slurmwords.refusal(program, words):
            raise UsageError(f"--{program}-arg: {why}", hint=f"Leave it out of --{program}-arg.")
    asked: Selection = written.file if written else _axes(options)
    named = {name for one in (asked, *asked.include) for name in one.frameworks}
    if len(named) > 1:
        refuse_typed(
            _OF_ONE, "with several frameworks: set it in [frameworks.NAME] of the site.toml"
        )
    base, known = (
        _request(options, written),
        _Places(options, named if not then else {then.campaign.framework}),
    )
    if then:
        found, here = known.find(then.campaign.framework)
        request = again.request(then, found, here)
        parts: tuple[matrix.Portion, ...] = (matrix.Portion(found.name, request),)
    else:
        where = str(written.path) if written else ""
        parts = matrix.portions(matrix.Matrix(asked, base, where), known.find)
    return tuple(
        _asked(options, known, one, dry=dry, rehearse=rehearse, written=written) for one in parts
    )


# What a campaign.toml sets itself, and what belongs to one framework.
_AXES = (
    *("frameworks", "nodes", "gpus_per_node", "shapes", "precision", "batch_size"),
    *("model", "settings", "env", "scaling"),
)
_OF_ONE = ("image", "data", "source", "python")
# Options that set the same thing: a typed one wins.
_EITHER = {"accumulation": "global_batch_size", "global_batch_size": "accumulation"}


def filled(options: PointOptions, written: ReadFile | None) -> PointOptions:
    """Return the options, completed with the file's settings of how to run; typed options win.

    Raises:
        UsageError: An option also says what to measure.
    """
    if not written:
        return options
    refuse_typed(_AXES, f"with {written.path.name}, which says what to measure")
    names = {"protocol": "preset"}
    said = {
        name: value
        for _, key, value in written.file.given()
        for name in [names.get(key, key)]
        if hasattr(options, name) and not typed(name) and not typed(_EITHER.get(name, name))
    }
    return replace(options, **said)


def _axes(options: PointOptions) -> Selection:
    """Return the points that the options combine to, in the form of a campaign file.

    Raises:
        UsageError: A value is wrong.
    """
    shapes = tuple(_told("--shapes", campaignfile.shape, one) for one in split(options.shapes))
    curve = (SCALING,) if options.scaling else ()
    return Selection(
        frameworks=tuple(dict.fromkeys(one for text in options.frameworks for one in split(text))),
        models=split(options.model),
        precisions=tuple(dict.fromkeys(map(precision, split(options.precision)))),
        batch_sizes=_sizes(options.batch_size),
        shapes=shapes or curve,
        options=tuple(
            campaignfile.OptionValues("--set", "", name, (text,))
            for name, text in pairs(options.settings).items()
        ),
        env=tuple(
            campaignfile.Variable(
                _told(f"--env {name}", variables.asked, name),
                (_told(f"--env {name}", variables.value, text),),
            )
            for name, text in pairs(options.env, "--env").items()
        ),
    )


def _told(flag: str, check: Callable[[str], T], text: str) -> T:
    try:
        return check(text)
    except Invalid as error:
        raise UsageError(f"{flag} {error}", hint=error.hint) from None


def _sizes(text: str) -> tuple[campaignfile.Sizes, ...]:
    """Read `32,64` or `fp32=32,fp16=64,128`: each number belongs to the precision before it.

    Raises:
        UsageError: It has neither form.
    """
    found: dict[str, tuple[int, ...]] = {}
    current = ""
    for word in split(text):
        name, equals, number = word.rpartition("=")
        if equals:
            current = precision(name)
            if current not in PRECISIONS:
                message = f"--batch-size names {name!r}, which is not a precision."
                raise UsageError(message, hint=did_you_mean(name, PRECISIONS))
        found[current] = tuple(dict.fromkeys((*found.get(current, ()), _number(number))))
    return tuple(campaignfile.Sizes("--batch-size", "", *one) for one in found.items())


# Options that need an adaptive number of repeats.
_ADAPTIVE = ("max_repeats", "precision_of_median")


def _repeats(options: PointOptions, written: ReadFile | None) -> tuple[int, float | None]:
    """Return the maximum number of repeats, and the required precision of the median.

    Raises:
        UsageError: An option has no effect because the number of repeats is fixed.
    """
    if options.repeats != adaptive.AUTO:
        refuse_typed(_ADAPTIVE, f"without --repeats {adaptive.AUTO}")
        idle = [one for one in _ADAPTIVE if written and getattr(written.file, one) is not None]
        if written and idle and written.file.repeats != adaptive.AUTO:
            message = f'{idle[0]} has no effect without repeats = "{adaptive.AUTO}".'
            raise ConfigError(message, where=str(written.path), hint=f"Leave {idle[0]} out.")
        return int(options.repeats), None
    most = options.max_repeats or adaptive.MAX_REPEATS
    return most, options.precision_of_median or adaptive.PRECISION


def _request(options: PointOptions, written: ReadFile | None) -> Request:
    repeats, precision_of_median = _repeats(options, written)
    return Request(
        shape=Shape(options.nodes, options.gpus_per_node),
        preset=options.preset,
        device=device(options.device),
        accumulation=options.accumulation or 0,
        global_batch_size=options.global_batch_size or 0,
        xla=options.xla,
        repeats=repeats,
        precision_of_median=precision_of_median,
        iters=options.iters,
        skip=options.skip,
    )


class _Places:
    """The site and the recipes, each read once.

    Args:
        options: What the command line says about them.
        frameworks: The requested frameworks; options for one framework need there to be only one.
    """

    def __init__(self, options: PointOptions, frameworks: Collection[str]) -> None:
        self._options = options
        self._found: dict[str, Recipe] = {}
        only = next(iter(frameworks)) if len(frameworks) == 1 else ""
        self.site = site.load(options.site_file, replace(options, fw=only))
        self.folders = places.recipe_folders(Path(self.site.where), options.templates)

    def find(self, framework: str) -> tuple[Recipe, Site]:
        """Return a recipe and the site.

        Raises:
            UsageError: The recipe does not exist or is wrong, or it has no use for an option that
                was typed, or it does not run on the device.
        """
        from hpcbert.config import recipe  # has data classes that --help does not need

        if framework not in self._found:
            found = recipe.load(places.find_recipe(framework, self.folders))
            _refuse_unused(found, self.site)
            device_of(found, self.site, device(self._options.device), self.folders)
            self._found[framework] = found
        return self._found[framework], self.site


def _asked(
    options: PointOptions,
    known: _Places,
    part: Portion,
    *,
    dry: bool,
    rehearse: bool,
    written: ReadFile | None,
) -> Asked:
    from hpcbert.script.resolve import SubmitOptions

    found, here = known.find(part.framework)
    scheduler = options.scheduler or here.scheduler
    warnings: tuple[str, ...] = ()
    if dry and traits(scheduler).here and part.request.shape.nodes > 1:
        note = f"The site's scheduler is {scheduler}, with one node: this script is for Slurm."
        scheduler, warnings = SLURM.name, (note,)
    warnings += _mailed(options.notify, scheduler)
    if written:
        warnings += tuple(
            f"{written.path}: {key} has no effect with the {scheduler} scheduler."
            for key, name, _ in written.file.given()
            if name in traits(scheduler).unused
        )
    chosen = SubmitOptions(
        scheduler=scheduler,
        folders=known.folders,
        named=tuple(map(Path, options.templates)),
        concurrent=options.concurrent_repeats,
        concurrent_points=options.concurrent_points,
        together=options.repeats_in == "one-job",
        rehearse=rehearse,
        dry=dry,
        preflight=options.preflight,
        stop_on_failure=_stops(options, part.request),
        file=written.path if written else None,
    )
    return Asked(part.request, here, found, chosen, warnings)


def _stops(options: PointOptions, request: Request) -> bool:
    """Return whether to hold shapes back if the smallest fails; by default, those of a curve.

    Raises:
        UsageError: The option was typed, but there is only one shape.
    """
    several = {one.shape for one in request.cells} or set(
        shapes(request.shape, scaling=request.scaling)
    )
    if options.stop_on_failure and len(several) == 1:
        raise UsageError(
            "--stop-on-failure has no effect on a single shape.",
            hint="Leave --stop-on-failure out.",
        )
    if options.stop_on_failure is not None:
        return options.stop_on_failure
    return Shape(1, 1) in several and len(several) > 1 and not options.concurrent_points


def _mailed(notify: str, scheduler: str) -> tuple[str, ...]:
    """Return which mail Slurm is to send, if any.

    Raises:
        UsageError: The scheduler sends no mail.
    """
    if notify and "notify" in traits(scheduler).unused:
        raise UsageError(
            f"--notify has no effect with the {scheduler} scheduler, which sends no mail.",
            hint="Leave --notify out: submit --wait and monitor wait until all repeats have ended.",
        )
    return (str(mail.parse(notify)),) if notify else ()


def _as_then(options: PointOptions, then: Past) -> PointOptions:
    """Return the options with those of a campaign that its request does not hold."""
    campaign, shape = then.campaign, then.largest.shape
    return replace(
        options,
        nodes=shape.nodes,
        gpus_per_node=shape.gpus_per_node,
        concurrent_repeats=campaign.concurrent_repeats,
        concurrent_points=campaign.concurrent_points,
        repeats_in="one-job" if any(one.together for one in campaign.measured) else "array",
    )


def _refuse_unused(found: Recipe, here: Site) -> None:
    """Refuse options that the framework or the runtime has no use for.

    Raises:
        UsageError: Such an option was typed.
    """
    if found.dataset is None and "data" not in found.needs:
        refuse_typed(("data",), f"with {found.name}, which reads none")
    if "source" not in found.needs and not found.source.repository:
        refuse_typed(("source",), f"with {found.name}, whose container image has the program")
    if here.container.runtime == "none":
        refuse_typed(("image",), "with the container runtime none")


def submitter() -> Submitter:
    """Return who submits, and when."""
    from hpcbert.script.draft import Submitter

    try:
        # USER and LOGNAME may name somebody else: in a notebook, after sudo -E.
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return Submitter(user, tuple(sys.argv), time.time(), os.urandom(3).hex())


def _number(text: str) -> int:
    if text == "max":
        return LARGEST
    if not text.isdigit():
        hint = did_you_mean(text, ["max"]) if text.isalpha() else ""
        message = f"--batch-size takes whole numbers or max, not {text!r}."
        raise UsageError(message, hint=hint)
    if not int(text):
        raise UsageError("A batch size must be at least 1, not 0.")
    return int(text)

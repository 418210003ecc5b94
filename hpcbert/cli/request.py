"""From the options of submit, plan and render to a request for each campaign."""

from __future__ import annotations

import os
import pwd
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hpcbert.cli.options import pairs, split
from hpcbert.cli.unused_options import is_typed, refuse_typed
from hpcbert.config import adaptive, campaignfile, places, recipe, site, slurmwords, variables
from hpcbert.config.campaignfile import CampaignFile, Selection
from hpcbert.config.options import SCALING, PointOptions, names_of, unused_with
from hpcbert.config.schedulers import SLURM, traits
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import LARGEST, PRECISIONS, Shape, device, precision
from hpcbert.script.plan import Request, device_of, shapes
from hpcbert.slurm import mail
from hpcbert.system.decode import Invalid, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hpcbert.config.options import Options
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.script.again import Past
    from hpcbert.script.draft import Submitter
    from hpcbert.script.matrix import Portion
    from hpcbert.script.resolve import SubmitOptions

T = TypeVar("T")


@dataclass(frozen=True)
class CampaignRequest:
    """What one campaign measures, where, and how it is submitted.

    Attributes:
        warnings: Choices made on the user's behalf.
    """

    request: Request
    site: Site
    recipe: Recipe
    options: SubmitOptions
    warnings: tuple[str, ...]


_NO_FILE = "hpcbert plan --init writes an example; without a file, options say what to measure."
# What a campaign.toml sets itself, and what belongs to one framework.
_AXES = (*names_of(PointOptions), "nodes", "gpus_per_node")
_OF_ONE = ("image", "data", "source", "python")
# Options that set the same thing: a typed one wins.
_EITHER = {"accumulation": "global_batch_size", "global_batch_size": "accumulation"}
# Options that need an adaptive number of repeats.
_ADAPTIVE = ("max_repeats", "precision_of_median")


def read_file(path: Path | None) -> CampaignFile | None:
    """Read the campaign file that the command line names, if any.

    Raises:
        ConfigError: The file is missing or wrong.
    """
    if path is None:
        return None
    if not path.exists():
        raise ConfigError("There is no such file.", where=str(path), hint=_NO_FILE)
    return campaignfile.read(path)


def read_requests(
    options: Options,
    *,
    dry: bool = False,
    rehearse: bool = False,
    past: Past | None = None,
    file: CampaignFile | None = None,
) -> tuple[CampaignRequest, ...]:
    """Return a request for each campaign, with its site and recipe.

    Args:
        options: The options, completed from the file.
        dry: Whether nothing will run.
        rehearse: Whether nothing will train.
        past: The campaign that says what to measure, instead of the options.
        file: The file that says what to measure.
    """
    from hpcbert.script import again, matrix

    _refuse_unused_options(options)
    if past:
        options, rehearse = _as_past(options, past), rehearse or past.campaign.rehearse
    selection: Selection = file or _selection(options)
    names = {name for axes in (selection, *selection.include) for name in axes.frameworks}
    if len(names) > 1:
        refuse_typed(
            _OF_ONE, "with several frameworks: set it in [frameworks.NAME] of the site.toml"
        )
    base = _request(options, file)
    sources = _Sources(options, {past.campaign.framework} if past else names)
    if past:
        recipe, here = sources.find(past.campaign.framework)
        portions: tuple[matrix.Portion, ...] = (
            matrix.Portion(recipe.name, again.request(past, recipe, here)),
        )
    else:
        where = file.where if file else ""
        portions = matrix.portions(matrix.Matrix(selection, base, where), sources.find)
    return tuple(
        _campaign_request(options, sources, portion, dry=dry, rehearse=rehearse, file=file)
        for portion in portions
    )


def _refuse_unused_options(options: Options) -> None:
    """Refuse options that others make ineffective, or that Slurm must not get."""
    if options.shapes:
        refuse_typed(("scaling",), "with --shapes, which can include it")
        if SCALING not in split(options.shapes):
            refuse_typed(("nodes", "gpus_per_node"), "with --shapes")
    if options.accumulation is not None and is_typed("accumulation"):
        refuse_typed(("global_batch_size",), "with --accumulation, of which it follows")
    for program, words in (("sbatch", options.sbatch_arg), ("srun", options.srun_arg)):
        if why := slurmwords.refusal(program, words):
            raise UsageError(f"--{program}-arg: {why}", hint=f"Leave it out of --{program}-arg.")


def complete(options: Options, file: CampaignFile | None) -> Options:
    """Return the options, completed with the file's settings of how to run; typed options win.

    Raises:
        UsageError: An option also says what to measure.
    """
    if not file:
        return options
    refuse_typed(_AXES, f"with {Path(file.where).name}, which says what to measure")
    values = {
        name: value
        for name, value in file.run_options().items()
        if not is_typed(name) and not is_typed(_EITHER.get(name, name))
    }
    return replace(options, **values)


def _selection(options: Options) -> Selection:
    """Return the points that the options combine to, in the form of a campaign file."""
    shapes = tuple(_checked("--shapes", campaignfile.shape, word) for word in split(options.shapes))
    curve = (SCALING,) if options.scaling else ()
    return Selection(
        frameworks=tuple(
            dict.fromkeys(name for text in options.frameworks for name in split(text))
        ),
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
                _checked(f"--env {name}", variables.asked, name),
                (_checked(f"--env {name}", variables.value, text),),
            )
            for name, text in pairs(options.env, "--env").items()
        ),
    )


def _checked(flag: str, check: Callable[[str], T], text: str) -> T:
    try:
        return check(text)
    except Invalid as error:
        raise UsageError(f"{flag} {error}", hint=error.hint) from None


def _sizes(text: str) -> tuple[campaignfile.Sizes, ...]:
    """Read `32,64` or `fp32=32,fp16=64,128`: each number belongs to the precision before it."""
    sizes: dict[str, tuple[int, ...]] = {}
    current = ""
    for word in split(text):
        name, equals, number = word.rpartition("=")
        if equals:
            current = precision(name)
            if current not in PRECISIONS:
                message = f"--batch-size names {name!r}, which is not a precision."
                raise UsageError(message, hint=did_you_mean(name, PRECISIONS))
        sizes[current] = tuple(dict.fromkeys((*sizes.get(current, ()), _number(number))))
    return tuple(campaignfile.Sizes("--batch-size", "", *item) for item in sizes.items())


def _repeats(options: Options, file: CampaignFile | None) -> tuple[int, float | None]:
    """Return the maximum number of repeats, and the required precision of the median."""
    if options.repeats != adaptive.AUTO:
        refuse_typed(_ADAPTIVE, f"without --repeats {adaptive.AUTO}")
        idle = [name for name in _ADAPTIVE if file and getattr(file, name) is not None]
        if file and idle and file.repeats != adaptive.AUTO:
            message = f'{idle[0]} has no effect without repeats = "{adaptive.AUTO}".'
            raise ConfigError(message, where=file.where, hint=f"Leave {idle[0]} out.")
        return int(options.repeats), None
    most = options.max_repeats or adaptive.MAX_REPEATS
    return most, float(options.precision_of_median or adaptive.PRECISION)


def _request(options: Options, file: CampaignFile | None) -> Request:
    repeats, precision_of_median = _repeats(options, file)
    return Request(
        shape=Shape(options.nodes or 1, options.gpus_per_node or 1),
        preset=options.protocol,
        device=device(options.device),
        accumulation=options.accumulation or 0,
        global_batch_size=options.global_batch_size or 0,
        xla=options.xla,
        repeats=repeats,
        precision_of_median=precision_of_median,
        iters=options.iters,
        skip=options.skip,
    )


class _Sources:
    """The site and the recipes, each read once.

    Args:
        options: What the command line says about them.
        frameworks: The requested frameworks; options for one framework need there to be only one.
    """

    def __init__(self, options: Options, frameworks: Collection[str]) -> None:
        self._options = options
        self._recipes: dict[str, Recipe] = {}
        only = next(iter(frameworks)) if len(frameworks) == 1 else ""
        self.site = site.load(options.site_file, replace(options, fw=only))
        self.folders = places.recipe_folders(Path(self.site.where), options.templates)

    def find(self, framework: str) -> tuple[Recipe, Site]:
        """Return a recipe and the site.

        Raises:
            UsageError: The recipe does not exist or is wrong, or it has no use for an option that
                was typed, or it does not run on the device.
        """
        if framework not in self._recipes:
            loaded = recipe.load(places.find_recipe(framework, self.folders))
            _refuse_unused_paths(loaded, self.site)
            device_of(loaded, self.site, device(self._options.device), self.folders)
            self._recipes[framework] = loaded
        return self._recipes[framework], self.site


def _campaign_request(
    options: Options,
    sources: _Sources,
    portion: Portion,
    *,
    dry: bool,
    rehearse: bool,
    file: CampaignFile | None,
) -> CampaignRequest:
    from hpcbert.script.resolve import SubmitOptions

    recipe, here = sources.find(portion.framework)
    scheduler = options.scheduler or here.scheduler
    warnings: tuple[str, ...] = ()
    if dry and traits(scheduler).here and portion.request.shape.nodes > 1:
        note = f"The site's scheduler is {scheduler}, with one node: this script is for Slurm."
        scheduler, warnings = SLURM.name, (note,)
    warnings += _mailed(options.notify, scheduler)
    warnings += tuple(
        f"{file.where}: {campaignfile.key_of(name)} has no effect with the {scheduler} scheduler."
        for name in (file.run_options() if file else ())
        if file and name in unused_with(scheduler)
    )
    in_one_job = options.repeats_in == "one-job"
    submit_options = SubmitOptions(
        scheduler=scheduler,
        folders=sources.folders,
        named=tuple(map(Path, options.templates)),
        concurrent=1 if in_one_job else options.concurrent_repeats,
        concurrent_points=options.concurrent_points,
        together=in_one_job,
        rehearse=rehearse,
        dry=dry,
        preflight=options.preflight,
        stop_on_failure=_stops(options, portion.request),
        file=Path(file.where) if file else None,
    )
    return CampaignRequest(portion.request, here, recipe, submit_options, warnings)


def _stops(options: Options, request: Request) -> bool:
    """Return whether to hold shapes back if the smallest fails; by default, those of a curve."""
    several = {cell.shape for cell in request.cells} or set(
        shapes(request.shape, scaling=request.scaling)
    )
    if len(several) == 1 or options.concurrent_points:
        return False
    if options.stop_on_failure is None:
        return Shape(1, 1) in several
    return options.stop_on_failure


def _mailed(notify: str, scheduler: str) -> tuple[str, ...]:
    """Return which mail Slurm is to send, if any."""
    if notify and "notify" in unused_with(scheduler):
        raise UsageError(
            f"--notify has no effect with the {scheduler} scheduler, which sends no mail.",
            hint="Leave --notify out: submit --wait and monitor wait until all repeats have ended.",
        )
    return (str(mail.parse(notify)),) if notify else ()


def _as_past(options: Options, past: Past) -> Options:
    """Return the options with those of a campaign that its request does not hold."""
    campaign, shape = past.campaign, past.largest.shape
    return replace(
        options,
        nodes=shape.nodes,
        gpus_per_node=shape.gpus_per_node,
        concurrent_repeats=campaign.concurrent_repeats,
        concurrent_points=campaign.concurrent_points,
        repeats_in="one-job" if any(array.together for array in campaign.measured) else "array",
    )


def _refuse_unused_paths(recipe: Recipe, here: Site) -> None:
    """Refuse options that the framework or the runtime has no use for."""
    if recipe.dataset is None and "data" not in recipe.needs:
        refuse_typed(("data",), f"with {recipe.name}, which reads none")
    if "source" not in recipe.needs and not recipe.source.repository:
        refuse_typed(("source",), f"with {recipe.name}, whose container image has the program")
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

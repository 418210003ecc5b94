"""campaign.toml: what one submission measures, and how. Each field here is a key there.

The measured points are all combinations of the axes, with those of `include` and without those that
`exclude` names. The file is read, and copied into the campaigns made from it, comments included;
nothing ever writes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from hpcbert.config import site
from hpcbert.config.options import SCALING, RunOptions, SlurmOptions, option_names
from hpcbert.config.toml import read as read_toml
from hpcbert.errors import ConfigError, Refusals, UsageError
from hpcbert.model import LARGEST_WORDS, PRECISIONS, OptionValue, Shape, parse_precision
from hpcbert.system.decode import GIVEN, EncodedAs, Filled, Invalid, Range, decode, did_you_mean

NAME = "campaign.toml"
# An example with every key, for `plan --init`.
EXAMPLE = Path(__file__).with_name("campaign.example.toml")
# Options of the site: the file has no keys for them.
_TYPED_OPTIONS = ("data", "image", "python", "runs", "runtime", "scheduler", "source", "templates")
_BatchSize = Annotated[int, Range(1, 1_000_000)]
_Size = _BatchSize | Literal["max", "max-common"]
_Samples = _Size | tuple[_Size, ...]
_Value = OptionValue | tuple[OptionValue, ...]
_Text = Filled | tuple[Filled, ...]
# An empty variable is a value.
_Values = str | tuple[str, ...]


class Sizes(NamedTuple):
    """Batch sizes: of one framework or all, for one precision or all.

    Attributes:
        key: Their key in the document, dotted.
    """

    key: str
    framework: str
    precision: str
    sizes: tuple[int, ...]


class OptionValues(NamedTuple):
    """The values that an option takes in turn, for one framework or all.

    Attributes:
        key: Its key in the document, dotted.
    """

    key: str
    framework: str
    name: str
    values: tuple[OptionValue, ...]


class Variable(NamedTuple):
    """The values that an environment variable takes in turn."""

    name: str
    values: tuple[str, ...]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """Return one value or an array of them as a tuple, each value once."""
    values = value if isinstance(value, tuple) else (value,)
    if not values:
        raise Invalid("names nothing")
    return tuple(dict.fromkeys(values))


def _read_precisions(value: Any) -> tuple[str, ...]:
    return _as_tuple(tuple(parse_precision(text) for text in _as_tuple(value)))


def _read_shapes(value: Any) -> tuple[Shape | str, ...]:
    return tuple(parse_shape(text) for text in _as_tuple(value))


def parse_shape(text: str) -> Shape | str:
    """Return a shape from its text, or the word for the whole curve."""
    try:
        return SCALING if text == SCALING else Shape.parse(text)
    except UsageError:
        raise Invalid(f"names {text!r}, which is not a shape", _SHAPES) from None


_SHAPES = f'Write nodes and GPUs per node, 4n8g, or "{SCALING}".'


def _read_size_tables(value: Any) -> tuple[Sizes, ...]:
    if not isinstance(value, dict):
        return (Sizes("batch_sizes", "", "", _read_sizes(value)),)
    batch_sizes: list[Sizes] = []
    for name, entry in value.items():
        key = f"batch_sizes.{name}"
        if parse_precision(name) in PRECISIONS:
            if isinstance(entry, dict):
                raise Invalid("must be a whole number or an array", key=name)
            batch_sizes.append(Sizes(key, "", parse_precision(name), _read_sizes(entry)))
        elif isinstance(entry, dict):
            batch_sizes += [
                Sizes(
                    f"{key}.{precision_name}",
                    name,
                    _check_precision(precision_name, name),
                    _read_sizes(sizes),
                )
                for precision_name, sizes in entry.items()
            ]
        else:
            batch_sizes.append(Sizes(key, name, "", _read_sizes(entry)))
    return tuple(batch_sizes)


def _check_precision(word: str, framework: str) -> str:
    precision_name = parse_precision(word)
    if precision_name not in PRECISIONS:
        raise Invalid(
            "is not a precision", did_you_mean(word, PRECISIONS), key=f"{framework}.{word}"
        )
    return precision_name


def _read_option_axes(value: Mapping[str, Any]) -> tuple[OptionValues, ...]:
    option_values: list[OptionValues] = []
    for name, entry in value.items():
        table = entry if isinstance(entry, dict) else {name: entry}
        framework = name if isinstance(entry, dict) else ""
        for option_name, values in table.items():
            key = ".".join(filter(None, ("options", framework, option_name)))
            option_values.append(OptionValues(key, framework, option_name, _as_tuple(values)))
    return tuple(option_values)


def _read_variable_axes(value: Mapping[str, Any]) -> tuple[Variable, ...]:
    point_variables = []
    for name, entry in value.items():
        try:
            values = tuple(site.check_point_value(text) for text in _as_tuple(entry))
            point_variables.append(Variable(site.check_point_variable(name), values))
        except Invalid as error:  # noqa: PERF203
            raise error.under(name) from None
    return tuple(point_variables)


_Texts = Annotated[tuple[str, ...], EncodedAs(_Text, _as_tuple)]
_Precisions = Annotated[tuple[str, ...], EncodedAs(_Text, _read_precisions)]
_Shapes = Annotated[tuple[Shape | str, ...], EncodedAs(_Text, _read_shapes)]
_PerPrecision = Mapping[str, _Samples]
_Sizes = Annotated[
    tuple[Sizes, ...],
    EncodedAs(_Samples | Mapping[str, _Samples | _PerPrecision], _read_size_tables),
]
_Options = Annotated[
    tuple[OptionValues, ...],
    EncodedAs(Mapping[str, _Value | Mapping[str, _Value]], _read_option_axes),
]
_Env = Annotated[tuple[Variable, ...], EncodedAs(Mapping[str, _Values], _read_variable_axes)]


@dataclass(frozen=True)
class Axes:
    """Axes to combine: `[[include]]`, and the file itself.

    Attributes:
        frameworks: Names of recipes.
        models: Names that the recipes have; empty for the site's or the recipe's first.
        precisions: Of PRECISIONS; empty for those in `batch_sizes`, else the recipe's
            first.
        batch_sizes: Samples per device: for all, by precision, by framework, or by both; empty for
            the site's or the recipe's.
        shapes: `4n8g`, or `scaling` for the curve up to `nodes` and `gpus_per_node`; empty for only
            the latter.
        options: The recipes' options, each with one value or several; a table named after a
            framework applies to that one alone.
        env: Environment variables of the ranks, each with one value or several.
    """

    frameworks: _Texts = ()
    models: _Texts = ()
    precisions: _Precisions = ()
    batch_sizes: _Sizes = ()
    shapes: _Shapes = ()
    options: _Options = ()
    env: _Env = ()

    def over(self, base: Axes) -> Axes:
        """Return these axes, with empty ones taken from others.

        Options and variables are merged one by one.
        """
        return Axes(
            frameworks=self.frameworks or base.frameworks,
            models=self.models or base.models,
            precisions=self.precisions or base.precisions,
            batch_sizes=self.batch_sizes or base.batch_sizes,
            shapes=self.shapes or base.shapes,
            options=_merge_entries(
                self.options, base.options, lambda option: (option.framework, option.name)
            ),
            env=_merge_entries(self.env, base.env, lambda variable: variable.name),
        )


def _merge_entries(
    entries: tuple[Any, ...], defaults: tuple[Any, ...], key: Callable[[Any], Any]
) -> Any:
    return tuple({key(entry): entry for entry in (*defaults, *entries)}.values())


def _read_sizes(value: Any) -> tuple[int, ...]:
    return tuple(LARGEST_WORDS.get(size, size) for size in _as_tuple(value))


@dataclass(frozen=True)
class Exclusion:
    """Points to leave out: `[[exclude]]`. It matches a point if all keys match.

    Attributes:
        frameworks, models, precisions, batch_sizes, shapes: One or several, of which one must
            match.
        options, env: One value or several by name, of which one must match.
    """

    frameworks: _Texts = ()
    models: _Texts = ()
    precisions: _Precisions = ()
    batch_sizes: Annotated[tuple[int, ...], EncodedAs(_Samples, _read_sizes)] = ()
    shapes: _Shapes = ()
    options: _Options = ()
    env: _Env = ()

    def __post_init__(self) -> None:
        if not any(getattr(self, key) for key in self.__annotations__):
            raise Invalid("must name what to leave out")
        for option in self.options:
            if option.framework:
                raise Invalid("is a table: name the framework in frameworks", key=option.key)


@dataclass(frozen=True)
class Selection(Axes):
    """The measurements of a file.

    Attributes:
        include: More axes; those that one leaves out are as in the file.
        exclude: Points to leave out.
    """

    include: tuple[Axes, ...] = ()
    exclude: tuple[Exclusion, ...] = ()


# Characters that a table shows in one column.
_MAX_NAME_LENGTH = 60


def check_name(text: str) -> str:
    """Return a name for a campaign, which list shows and other commands find.

    Raises:
        Invalid: It is empty or too long, or holds a slash or a control character.
    """
    if (
        not (0 < len(text) <= _MAX_NAME_LENGTH and text.isprintable())
        or "/" in text
        or text != text.strip()
    ):
        raise Invalid(
            f"must be 1 to {_MAX_NAME_LENGTH} printable characters without a slash", value=text
        )
    return text


@dataclass(frozen=True)
class CampaignFile(Selection, RunOptions):
    """A campaign.toml; a key that is left out comes from the command line, the site or the recipe.

    Attributes:
        where: The path of the file.
        name: Name of the campaigns in `list`.
        note: A note about them.
        slurm: Requests to Slurm, which replace those of the site.toml.
    """

    where: Annotated[str, GIVEN] = ""
    name: Annotated[str, check_name] | None = None
    note: Filled | None = None
    slurm: SlurmOptions = field(default_factory=SlurmOptions)

    def __post_init__(self) -> None:
        if self.accumulation and self.global_batch_size:
            raise Invalid(
                "follows from accumulation: set only one of them", key="global_batch_size"
            )
        if self.concurrent_repeats > 1 and self.repeats_in == "one-job":
            raise Invalid('has no effect with repeats_in = "one-job"', key="concurrent_repeats")
        if self.stop_on_failure and self.concurrent_points:
            raise Invalid("has no effect with concurrent_points", key="stop_on_failure")
        curve = any(SCALING in axes.shapes for axes in (self, *self.include))
        for key in ("nodes", "gpus_per_node"):
            if getattr(self, key) and self.shapes and not curve:
                raise Invalid(f'has no effect with shapes, unless "{SCALING}" is one', key=key)
        if curve and not self.gpus_per_node:
            raise Invalid(f'is missing, but "{SCALING}" in shapes needs it', key="gpus_per_node")

    def run_options(self) -> dict[str, Any]:
        """Return the options of how to run that the file sets, by their names."""
        parts = ((self, RunOptions), (self.slurm, SlurmOptions))
        return {
            option: value
            for source, options_class in parts
            for option in option_names(options_class)
            if (value := getattr(source, option)) != getattr(options_class, option)
        }


def option_key(option: str) -> str:
    """Return the key of an option of how to run, with its table."""
    return f"slurm.{option}" if option in option_names(SlurmOptions) else option


def read(path: Path) -> CampaignFile:
    """Read a campaign.toml strictly.

    Raises:
        ConfigError: The file is missing or wrong; the message names file and key.
        Refusals: Several of its keys are wrong.
    """
    values = read_toml(path)
    try:
        return decode(CampaignFile, values, file=str(path), where=str(path))
    except ConfigError as first_error:
        error = _explain_option(first_error)
        config_errors = {str(error): error, **_collect_errors(values, str(path))}
        raise (
            error if len(config_errors) == 1 else Refusals(tuple(config_errors.values()))
        ) from None


def _collect_errors(values: Mapping[str, Any], file: str) -> dict[str, ConfigError]:
    """Return the errors of each key by itself, by message."""
    config_errors: dict[str, ConfigError] = {}
    for key, value in values.items():
        try:
            decode(CampaignFile, {key: value}, file=file)
        except ConfigError as error:  # noqa: PERF203
            # An error because of other, absent keys is not this key's.
            if error.message.startswith(key):
                config_errors[str(error)] = _explain_option(error)
    return config_errors


def _explain_option(error: ConfigError) -> ConfigError:
    """Return an error about an unknown key; if an option has that name, with its place."""
    key, _, suffix = error.message.partition(" is not known")
    if not suffix or (key not in _TYPED_OPTIONS and key not in option_names(SlurmOptions)):
        return error
    if key in _TYPED_OPTIONS:
        hint = f"It is an option: type --{key} with the file."
    else:
        hint = "It is a key of the table [slurm]."
    return ConfigError(error.message, where=error.where, hint=hint)

"""campaign.toml: what one submission measures, and how. Each field here is a key there.

The measured points are all combinations of the axes, with those of `include` and without those that
`exclude` names. The file is read, and copied into the campaigns made from it, comments included;
nothing ever writes to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from hpcbert.config import site
from hpcbert.config.options import AUTO_REPEATS, SCALING, RunOptions, SlurmOptions, option_names
from hpcbert.config.toml import read as read_toml
from hpcbert.errors import ConfigError, Refusals, UsageError
from hpcbert.model import LARGEST_WORDS, PRECISIONS, OptionValue, Shape, parse_precision
from hpcbert.system.decode import GIVEN, EncodedAs, Filled, Invalid, Range, decode, did_you_mean

NAME = "campaign.toml"
# An example with every key, for `plan --init`.
EXAMPLE = Path(__file__).with_name("campaign.example.toml")
_BatchSize = Annotated[int, Range(1, 1_000_000)]
_Size = _BatchSize | Literal["max", "max-common"]
_Samples = _Size | tuple[_Size, ...]
_Value = OptionValue | tuple[OptionValue, ...]
_Text = Filled | tuple[Filled, ...]
# An empty variable is a value.
_Values = str | tuple[str, ...]


class AxisValues(NamedTuple):
    """What an entry of the tables `batch_sizes`, `options` or `env` takes in turn.

    Attributes:
        framework: The only framework that has it; empty for all.
        name: Of the option or the variable; for batch sizes the precision, empty for all.
    """

    key: str
    framework: str
    name: str
    values: tuple[OptionValue, ...]


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


def _read_size_tables(value: Any) -> tuple[AxisValues, ...]:
    """Read sizes for all, by precision, by framework, or by framework and precision."""
    if not isinstance(value, dict):
        return (AxisValues("batch_sizes", "", "", _read_sizes(value)),)
    batch_sizes: list[AxisValues] = []
    for name, entry in value.items():
        framework = "" if parse_precision(name) in PRECISIONS else name
        if isinstance(entry, dict) and not framework:
            raise Invalid("must be a whole number or an array", key=name)
        for word, sizes in entry.items() if isinstance(entry, dict) else [("", entry)]:
            precision = parse_precision(word if framework else name)
            if isinstance(entry, dict) and precision not in PRECISIONS:
                hint = did_you_mean(word, PRECISIONS)
                raise Invalid("is not a precision", hint, key=f"{name}.{word}")
            key = ".".join(filter(None, ("batch_sizes", name, word)))
            batch_sizes.append(AxisValues(key, framework, precision, _read_sizes(sizes)))
    return tuple(batch_sizes)


def _read_option_axes(value: Mapping[str, Any]) -> tuple[AxisValues, ...]:
    axes: list[AxisValues] = []
    for name, entry in value.items():
        if isinstance(entry, dict):
            key = f"options.{name}"
            axes += [AxisValues(f"{key}.{n}", name, n, _as_tuple(v)) for n, v in entry.items()]
        else:
            axes.append(AxisValues(f"options.{name}", "", name, _as_tuple(entry)))
    return tuple(axes)


def _read_variable_axes(value: Mapping[str, Any]) -> tuple[AxisValues, ...]:
    axes = []
    for name, entry in value.items():
        try:
            values = tuple(site.check_point_value(text) for text in _as_tuple(entry))
            axes.append(AxisValues(f"env.{name}", "", site.check_point_variable(name), values))
        except Invalid as error:  # noqa: PERF203
            raise error.under(name) from None
    return tuple(axes)


def _read_sizes(value: Any) -> tuple[int, ...]:
    return tuple(LARGEST_WORDS.get(size, size) for size in _as_tuple(value))


_Texts = Annotated[tuple[str, ...], EncodedAs(_Text, _as_tuple)]
_Precisions = Annotated[tuple[str, ...], EncodedAs(_Text, _read_precisions)]
_Shapes = Annotated[tuple[Shape | str, ...], EncodedAs(_Text, _read_shapes)]
_PerPrecision = Mapping[str, _Samples]
_Sizes = Annotated[
    tuple[AxisValues, ...],
    EncodedAs(_Samples | Mapping[str, _Samples | _PerPrecision], _read_size_tables),
]
_Options = Annotated[
    tuple[AxisValues, ...],
    EncodedAs(Mapping[str, _Value | Mapping[str, _Value]], _read_option_axes),
]
_Env = Annotated[tuple[AxisValues, ...], EncodedAs(Mapping[str, _Values], _read_variable_axes)]


@dataclass(frozen=True)
class _PointKeys:
    """Keys that select points: each has one value or several.

    Attributes:
        models: Names that the recipes have; empty for the site's or the recipe's first.
        precisions: Of PRECISIONS; empty for those in `batch_sizes`, else the recipe's
            first.
        shapes: `4n8g`, or `scaling` for the curve up to `nodes` and `gpus_per_node`; empty for only
            the latter.
        options: The recipes' options; a table named after a framework applies to that one alone.
    """

    frameworks: _Texts = ()
    models: _Texts = ()
    precisions: _Precisions = ()
    shapes: _Shapes = ()
    options: _Options = ()
    env: _Env = ()


@dataclass(frozen=True)
class Axes(_PointKeys):
    """Axes to combine: `[[include]]`, and the file itself.

    Attributes:
        batch_sizes: Samples per device: for all, by precision, by framework, or by both; empty for
            the site's or the recipe's.
    """

    batch_sizes: _Sizes = ()

    def over(self, base: Axes) -> Axes:
        """Return these axes, with empty ones taken from others.

        Options and variables are merged one by one.
        """
        axes: dict[str, Any] = {}
        for name in ("frameworks", "models", "precisions", "batch_sizes", "shapes"):
            axes[name] = getattr(self, name) or getattr(base, name)
        for name in ("options", "env"):
            entries = (*getattr(base, name), *getattr(self, name))
            merged = {(entry.framework, entry.name): entry for entry in entries}
            axes[name] = tuple(merged.values())
        return Axes(**axes)


@dataclass(frozen=True)
class Exclusion(_PointKeys):
    """Points to leave out: `[[exclude]]`. It matches a point if all keys match."""

    batch_sizes: Annotated[tuple[int, ...], EncodedAs(_Samples, _read_sizes)] = ()

    def __post_init__(self) -> None:
        if not any(vars(self).values()):
            raise Invalid("must name what to leave out")
        for option in self.options:
            if option.framework:
                raise Invalid("is a table: name the framework in frameworks", key=option.key)


@dataclass(frozen=True)
class Selection(Axes):
    """The measurements of a file.

    Attributes:
        include: More axes; those that one leaves out are as in the file.
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
    is_plain = text.isprintable() and "/" not in text and text == text.strip()
    if not is_plain or not 0 < len(text) <= _MAX_NAME_LENGTH:
        message = f"must be 1 to {_MAX_NAME_LENGTH} printable characters without a slash"
        raise Invalid(message, value=text)
    return text


@dataclass(frozen=True)
class CampaignFile(Selection, RunOptions):
    """A campaign.toml; a key that is left out comes from the command line, the site or the recipe.

    Attributes:
        slurm: Requests to Slurm, which replace those of the site.toml.
    """

    where: Annotated[str, GIVEN] = ""
    name: Annotated[str, check_name] | None = None
    note: Filled | None = None
    slurm: SlurmOptions = field(default_factory=SlurmOptions)

    def __post_init__(self) -> None:
        if self.accumulation and self.global_batch_size:
            message = "follows from accumulation: set only one of them"
            raise Invalid(message, key="global_batch_size")
        if self.concurrent_repeats > 1 and self.repeats_in == "one-job":
            raise Invalid('has no effect with repeats_in = "one-job"', key="concurrent_repeats")
        if self.stop_on_failure and self.concurrent_points:
            raise Invalid("has no effect with concurrent_points", key="stop_on_failure")
        for key in ("max_repeats", "precision_of_median"):
            if getattr(self, key) is not None and self.repeats != AUTO_REPEATS:
                raise Invalid(f'has no effect without repeats = "{AUTO_REPEATS}"', key=key)
        has_curve = any(SCALING in axes.shapes for axes in (self, *self.include))
        for key in ("nodes", "gpus_per_node"):
            if getattr(self, key) and self.shapes and not has_curve:
                raise Invalid(f'has no effect with shapes, unless "{SCALING}" is one', key=key)
        if has_curve and not self.gpus_per_node:
            raise Invalid(f'is missing, but "{SCALING}" in shapes needs it', key="gpus_per_node")

    def run_options(self) -> dict[str, Any]:
        """Return the options of how to run that the file sets, by their names."""
        values: dict[str, Any] = {}
        for table, options_class in ((self, RunOptions), (self.slurm, SlurmOptions)):
            for option in option_names(options_class):
                if getattr(table, option) != getattr(options_class, option):
                    values[option] = getattr(table, option)
        return values


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
        errors = [first_error]
    for key, value in values.items():
        try:
            decode(CampaignFile, {key: value}, file=str(path))
        except ConfigError as error:  # noqa: PERF203
            # An error because of other, absent keys is not this key's.
            errors += [error] if error.message.startswith(key) else []
    distinct = [_explain_key(error) for error in {str(error): error for error in errors}.values()]
    raise distinct[0] if len(distinct) == 1 else Refusals(distinct)


def _explain_key(error: ConfigError) -> ConfigError:
    if error.message.partition(" is not known")[0] in option_names(SlurmOptions):
        hint = "It is a key of the table [slurm]."
        return ConfigError(error.message, where=error.where, hint=hint)
    return error

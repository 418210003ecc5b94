"""click's options, made from the declarations in `hpcbert.config.options`, and help by subject."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from click.core import ParameterSource

from hpcbert.config.options import Options, Spec, declared_options
from hpcbert.errors import UsageError
from hpcbert.model import UNITS
from hpcbert.system.decode import MAX_COUNT, Invalid, Range, type_hints

Body = Callable[..., Any]


def flag_option(name: str, description: str, parameter: str = "") -> Callable[[Body], Body]:
    """Return an option without a value."""
    return click.option(*filter(None, (name, parameter)), is_flag=True, help=description)


def text_option(name: str, description: str, metavar: str | None = None) -> Callable[[Body], Body]:
    """Return an option whose value is a text, empty by default."""
    return click.option(name, default="", metavar=metavar, help=description)


def count_option(
    name: str, description: str, *, least: int = 1, default: int | None = None
) -> Callable[[Body], Body]:
    """Return an option whose value is a number of something."""
    shown, kind = default is not None, click.IntRange(least)
    return click.option(name, type=kind, default=default, show_default=shown, help=description)


# Options of several commands.
RUNS = text_option("--runs", "Directory of the campaigns.")
SITE = click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
RESULTS_SITE = click.option(
    "--site", "site_file", default="", help="Site whose runs are read without a path."
)
TEMPLATES = click.option("--templates", multiple=True, help="A folder with recipes of your own.")
RULE = text_option("--rule", "Rule that reads logs; default: the recipe's first.")
UNIT = click.option(
    "--unit",
    type=click.Choice(UNITS),
    default=UNITS[0],
    show_default=True,
    help="What rates count; tokens include padding, and real ones are shown apart.",
)
_FORMS = click.Choice(["text", "markdown"])
VIEW_FORM = click.option(
    "--format", "form", type=_FORMS, default="text", help="Format of verdicts."
)
MAX_RETRIES = count_option(
    "--max-retries", "Retry each invalid repeat up to N times.", least=0, default=0
)


def refuse_typed(options: Iterable[str], context: str) -> None:
    """Refuse those of some options that were typed.

    Args:
        context: The end of the sentence: `with --like`, `without --wait`.
    """
    names = [name for name in options if is_typed(name)]
    if names:
        params = {param.name: param for param in click.get_current_context().command.params}
        flags = " and ".join(_format_flag(params[name]) for name in names)
        verb = "have" if len(names) > 1 else "has"
        raise UsageError(f"{flags} {verb} no effect {context}.", hint=f"Leave {flags} out.")


def is_typed(name: str) -> bool:
    """Return whether the command line sets an option, not its default or a variable."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _format_flag(param: click.Parameter) -> str:
    is_argument = isinstance(param, click.Argument)
    return str(param.name).upper() if is_argument else max(param.opts, key=len)


def read_pairs(arguments: Iterable[str], flag: str = "--set") -> dict[str, str]:
    """Read the arguments of `--set` and `--env`.

    Raises:
        UsageError: One does not have the form NAME=VALUE, or a variable has two values.
    """
    values: dict[str, str] = {}
    for word in arguments:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{flag} needs NAME=VALUE, not {word!r}.")
        if flag == "--env" and name.strip() in values:
            hint = f'A campaign.toml can measure several: env = {{ {name} = ["a", "b"] }}'
            raise UsageError(f"{flag} gives {name} two values.", hint=hint)
        values[name.strip()] = value
    return values


def split_list(text: str) -> tuple[str, ...]:
    """Return the words of a comma-separated text; none of an empty text.

    Raises:
        UsageError: One of several is empty.
    """
    words = tuple(word.strip() for word in text.split(","))
    if words == ("",):
        return ()
    if "" in words:
        raise UsageError(f"{text!r} has an empty entry.", hint="Remove the comma too many.")
    return words


def shared_option(name: str, description: str = "") -> Callable[[Body], Body]:
    """Return click's option for a field of `Options`."""
    option = declared_options()[name]
    field = next(field for field in fields(Options) if field.name == name)
    kind, *type_marks = get_args(type_hints(Options)[name])
    checks = [annotation for annotation in type_marks if callable(annotation)]
    if get_origin(kind) in {Union, UnionType} and not option.read:
        kind = next(member for member in get_args(kind) if member is not NoneType)
    if get_origin(kind) is Annotated:
        kind, *checks = get_args(kind)
    readers = [option.read] if option.read else checks
    flags = option.flags.split() or [f"--{name.replace('_', '-')}"]
    return click.option(
        *flags,
        name,
        default=field.default if option.default is None else option.default,
        show_default=option.default is not None,
        help=description or option.help,
        metavar=option.metavar,
        callback=make_reader(*readers),
        **_type_arguments(kind, checks, option),
    )


def shared_options(*names: str) -> Callable[[Body], Body]:
    """Return click's options for fields of `Options`, as they are declared."""

    def add_options(body: Body) -> Body:
        for name in reversed(names):
            body = shared_option(name)(body)
        return body

    return add_options


def _type_arguments(kind: Any, checks: Iterable[Any], option: Spec) -> dict[str, Any]:
    bounds = next((check for check in checks if isinstance(check, Range)), None)
    arguments: dict[str, Any] = {}
    if option.read:
        arguments = {"type": str}
    elif kind is bool:
        arguments = {"is_flag": True}
    elif get_origin(kind) is tuple:
        arguments = {"multiple": True}
    elif get_origin(kind) is Literal:
        arguments = {"type": click.Choice(list(get_args(kind)))}
    elif bounds:
        number: Any = click.IntRange if kind is int else click.FloatRange
        maximum = None if bounds.most == MAX_COUNT else bounds.most
        arguments = {"type": number(bounds.low, maximum)}
    return arguments


def make_reader(
    *readers: Callable[[Any], Any],
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return click's callback for functions that read a value or raise `Invalid`."""

    def callback(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        try:
            for read in readers if value or value == 0 else ():
                value = read(value)
        except Invalid as error:
            raise click.BadParameter(f"{error} {error.hint}".rstrip()) from None
        return value

    return callback


def read_options(parameters: Mapping[str, Any]) -> Options:
    """Return the shared options among a command's parameters."""
    return Options(**{name: parameters[name] for name in declared_options()})


def add_submit_options(body: Callable[..., None]) -> Callable[..., None]:
    """Add all shared options to a command; they arrive as one argument."""

    def call(**parameters: Any) -> None:
        own_names = parameters.keys() - declared_options().keys()
        body(read_options(parameters), **{name: parameters[name] for name in own_names})

    first_names = [name for name in _EVERYDAY.split() if name in declared_options()]
    names = dict.fromkeys((*first_names, *declared_options()))
    command: Body = shared_options(*names)(functools.update_wrapper(call, body))
    return command


# Parameters of submit, plan and render by subject; what is not listed ends up in the last section.
SECTIONS = {
    "What to measure": "frameworks model precision batch_size protocol accumulation "
    "global_batch_size xla iters skip window_seconds settings env like",
    "Where": "nodes gpus_per_node scaling shapes device",
    "How often": "repeats max_repeats precision_of_median repeats_in concurrent_repeats "
    "concurrent_points stop_on_failure preflight max_retries",
    "Slurm": "partition account qos reservation nodelist exclude time_limit notify sbatch_arg "
    "srun_arg scheduler in_allocation",
    "Container and program": "runtime image data source python templates",
    "Output and control": "",
}
_EVERYDAY = (
    "frameworks nodes gpus_per_node scaling precision batch_size model repeats partition dry_run "
    "wait help help_all"
)
_SHOWS_ALL = "hpcbert.help-all"


def show_all(context: click.Context) -> None:
    """Let the help of a context, and of those below it, list every option."""
    context.meta[_SHOWS_ALL] = True


class SectionedCommand(click.Command):
    """A command whose `--help` lists the options of every day, and `--help-all` all by subject."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        option = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_all,
            help="Show all options, by subject.",
        )
        self.params.append(option)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of every day, or all by subject."""
        records = {
            # click names its own option after itself.
            "help" if "--help" in param.opts else param.name: record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx))
        }
        sections = {"Options": _EVERYDAY}
        if ctx.meta.get(_SHOWS_ALL):
            placed = " ".join(SECTIONS.values()).split()
            unlisted = " ".join(str(name) for name in records if name not in placed)
            sections = {heading: names or unlisted for heading, names in SECTIONS.items()}
        for heading, names in sections.items():
            with formatter.section(heading):
                formatter.write_dl([records[name] for name in names.split() if name in records])


def _print_all(context: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        show_all(context)
        click.echo(context.get_help(), color=context.color)
        context.exit()

"""The help of commands with many options: those of every day first, all of them by subject."""

from __future__ import annotations

from typing import Any

import click

# Parameters of submit, plan and render by subject; what is not listed ends up in the last section.
SECTIONS = {
    "What to measure": (
        *("frameworks", "model", "precision", "batch_size", "protocol", "accumulation"),
        *("global_batch_size", "xla", "iters", "skip", "window_seconds"),
        *("settings", "env", "like"),
    ),
    "Where": ("nodes", "gpus_per_node", "scaling", "shapes", "device"),
    "How often": (
        *("repeats", "max_repeats", "precision_of_median", "repeats_in", "concurrent_repeats"),
        *("concurrent_points", "stop_on_failure", "preflight", "max_retries"),
    ),
    "Slurm": (
        *("partition", "account", "qos", "reservation", "nodelist", "exclude", "time_limit"),
        *("notify", "sbatch_arg", "srun_arg", "scheduler"),
    ),
    "Container and program": ("runtime", "image", "data", "source", "python", "templates"),
    "Output and control": (),
}
_EVERYDAY = (
    *("frameworks", "nodes", "gpus_per_node", "scaling", "precision", "batch_size", "model"),
    *("repeats", "partition", "dry_run", "wait", "help", "help_all"),
)
_SHOWS_ALL = "hpcbert.help-all"


def show_all(context: click.Context) -> None:
    """Let the help of a context, and of those below it, list every option."""
    context.meta[_SHOWS_ALL] = True


class SectionedCommand(click.Command):
    """A command whose `--help` lists the options of every day, and `--help-all` all by subject."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_all,
                help="Show all options, by subject.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of every day, or all by subject."""
        records = {
            # click names its own option after itself.
            "help" if "--help" in param.opts else param.name: record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx))
        }
        if not ctx.meta.get(_SHOWS_ALL):
            with formatter.section("Options"):
                formatter.write_dl([records[name] for name in _EVERYDAY if name in records])
            return
        placed = {name for names in SECTIONS.values() for name in names}
        for heading, names in SECTIONS.items():
            listed = names or tuple(name for name in records if name not in placed)
            with formatter.section(heading):
                formatter.write_dl([records[name] for name in listed if name in records])


def _print_all(context: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        show_all(context)
        click.echo(context.get_help(), color=context.color)
        context.exit()

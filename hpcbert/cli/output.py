"""The end of every command: one result, printed once, as text or as one JSON document.

stdout carries the result only; errors, warnings and progress go to stderr.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, NoReturn

import click

from hpcbert.cli import streams
from hpcbert.errors import (
    HpcbertError,
    Interruption,
    Refusals,
    UnfinishedError,
    UsageError,
    explain_os_error,
)

VERSION = 1
# click names types as a programmer does.
_TYPES = {"a valid integer range": "a whole number", "a valid integer": "a whole number"}
# What pathlib and the calls below it raise instead of an OSError.
_PATHLIB = re.compile(r"(Symlink loop from .*|embedded null (?:byte|character))", re.DOTALL)
# What Slurm, launchers and training programs call an option.
_OTHER_NAMES = {
    "--fw": ("--framework", "--frameworks"),
    "--gpus-per-node": ("--gres", "--ngpus", "--num-gpus", "--nproc-per-node", "--ntasks-per-node"),
    "--nodes": ("--nnodes", "--num-nodes"),
    "--precision": ("--amp", "--bf16", "--fp16", "--fp32", "--fp8", "--tf32"),
    "--batch-size": ("--bs", "--micro-batch-size", "--per-device-batch-size"),
    "--iters": ("--iterations", "--max-steps", "--steps", "--train-iters"),
    "--skip": ("--warmup", "--warmup-steps", "--warm-up"),
    "--repeats": ("--runs-per-point", "--num-runs"),
    "--set": ("--optimizer", "--seq-len", "--seq-length", "--sequence-length", "--seed"),
    "--image": ("--container", "--container-image"),
    "--partition": ("--queue",),
    "--time": ("--walltime",),
    "--notify": ("--mail-type", "--mail-user"),
    "--sbatch-arg": ("--constraint", "--cpus-per-task", "--exclusive", "--licenses", "--mem"),
}
# Codes that click.style adds to a text.
_COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")


@dataclass(frozen=True)
class Result:
    """The result of a command.

    Attributes:
        data: For `--json`: plain dicts, lists, texts, numbers, booleans, None, and dataclasses
            of these.
        text: For stdout, without the last newline.
        errors: What went wrong, even if there is a result all the same.
        exact: Whether the text must arrive byte by byte, as a script or document.
    """

    data: object = None
    text: str = ""
    errors: tuple[HpcbertError, ...] = ()
    warnings: tuple[str, ...] = ()
    exact: bool = False

    @property
    def exit_code(self) -> int:
        """0 for success, else the highest code of the errors.

        6, unfinished, only if no other error is there: what is invalid stays so.
        """
        codes = {error.exit_code for error in self.errors}
        return max(codes - {UnfinishedError.exit_code} or codes, default=0)


def pick(entry: object, names: str) -> dict[str, Any]:
    """Return attributes of an object as a part of a document: `pick(point, "model precision")`."""
    return {name: getattr(entry, name) for name in names.split()}


def join_results(results: Sequence[Result]) -> Result:
    """Return the results on several campaigns as one; that on a single campaign as it is."""
    if len(results) == 1:
        return results[0]
    return Result(
        {"campaigns": [result.data for result in results]},
        "\n\n".join(result.text for result in results if result.text),
        errors=tuple(error for result in results for error in result.errors),
        warnings=tuple(dict.fromkeys(text for result in results for text in result.warnings)),
    )


def make_document(command: str, result: Result) -> str:
    """Return a command's one JSON document, as `docs/reference/json.md` describes it."""
    status = "success" if result.exit_code == 0 else "partial" if result.data else "error"
    document = {
        "version": VERSION,
        "command": command,
        "status": status,
        "exit_code": result.exit_code,
        "data": result.data,
        "errors": [
            {"code": error.code, "message": str(error), "hint": error.hint}
            for error in result.errors
        ],
        "warnings": list(result.warnings),
    }
    return dump_json(document)


def dump_json(value: object) -> str:
    """Return JSON on one line, without a character that could steer a terminal.

    Characters that stdout can't encode are escaped too.
    """
    has_unicode = streams.can_show_unicode(sys.stdout)
    document = json.dumps(value, ensure_ascii=not has_unicode, allow_nan=False, default=asdict)
    if document.isprintable():
        return document
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1]
        for character in document
    )


def replace_controls(text: str) -> str:
    """Return text without the control characters that could steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char in "\n\t" or char.isprintable() else "�" for char in text)


def print_text(text: str, *, err: bool = False) -> None:
    """Print text with click's colours; nothing else in it can steer a terminal.

    A file or a pipe gets the text unchanged: a script must arrive byte by byte.
    """
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        parts = _COLOURS.split(text)
        text = "".join(
            part if _COLOURS.fullmatch(part) else replace_controls(part) for part in parts
        )
    click.echo(text, err=err)


def _print_remark(label: str, colour: str, text: str) -> None:
    click.secho(f"{label}: ", fg=colour, bold=label == "error", nl=False, err=True)
    click.echo(replace_controls(text), err=True)


def print_error(error: HpcbertError) -> None:
    """Print an error and its hint on stderr."""
    _print_remark("error", "red", str(error))
    if error.hint:
        _print_remark("hint", "yellow", error.hint)


def _print_result(command: str, result: Result, *, as_json: bool) -> None:
    if as_json:
        click.echo(make_document(command, result))
        return
    if result.exact and not sys.stdout.isatty():
        streams.write_exactly(sys.stdout, f"{result.text}\n")
    elif result.text:
        print_text(result.text)
    for warning in result.warnings:
        _print_remark("warning", "yellow", warning)
    for error in result.errors:
        print_error(error)


def confirm(question: str, verb: str) -> bool:
    """Ask on stderr whether to do what VERB names; refuse without a terminal."""
    if not sys.stdin.isatty():
        hint = f"Give --yes to {verb} without asking."
        raise UsageError(f"{question} There is no terminal to ask on.", hint=hint)
    return click.confirm(question, err=True)


def convert_error(error: BaseException) -> HpcbertError:
    """Return the message for an exception that ended a command.

    An unexpected exception is a bug; with HPCBERT_DEBUG set, its traceback is printed.
    """
    if isinstance(error, HpcbertError):
        return error
    if isinstance(error, click.ClickException):
        return _convert_click_error(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return Interruption("Interrupted.")
    if isinstance(error, OSError):
        return explain_os_error(error)
    if path := _PATHLIB.match(str(error)):
        return UsageError(f"{path[1]}.")
    if os.environ.get("HPCBERT_DEBUG"):
        traceback.print_exception(error)
    return HpcbertError(
        f"This is a bug in hpcbert: {type(error).__name__}: {error}",
        hint="Report it with the command and the output under HPCBERT_DEBUG=1.",
    )


def _convert_click_error(error: click.ClickException) -> UsageError:
    context: click.Context | None = getattr(error, "ctx", None)
    path = context.command_path if context else "hpcbert"
    if not isinstance(error, click.NoSuchOption):
        # click has one line for each choice.
        message = error.format_message().replace("\n\t", " ")
        for name, replacement in _TYPES.items():
            message = message.replace(name, replacement)
        return UsageError(message, hint=f"See {path} --help.")
    params = context.command.params if context else []
    options = [param for param in params if isinstance(param, click.Option)]
    names = _find_options(error.option_name, [flag for option in options for flag in option.opts])
    nearest = f"Did you mean {' or '.join(names)}? " if names else ""
    return UsageError(f"No such option {error.option_name!r}.", hint=f"{nearest}See {path} --help.")


def _find_options(typed: str, flags: Sequence[str]) -> list[str]:
    """Return the options that a mistyped one may stand for: a guess from other letters misleads."""
    meant = [flag for flag, names in _OTHER_NAMES.items() if typed in names and flag in flags]
    # What is typed is often a beginning.
    beginnings = [flag for flag in flags if flag.startswith(typed)]
    close = get_close_matches(typed, flags, n=2, cutoff=0.75)
    return meant or beginnings or close or [flag for flag in flags if typed.startswith(f"{flag}-")]


def run_command(command: str, body: Callable[[], Result], *, as_json: bool) -> None:
    """Run a command's body, print its result and leave with its exit code.

    An interrupt leaves with 130. click prints its own messages about the command line.
    """
    try:
        result = body()
    except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
        raise
    except (Exception, KeyboardInterrupt) as error:
        if error is getattr(sys.stdout, "failure", None):
            raise
        result = Result(
            errors=error.each if isinstance(error, Refusals) else (convert_error(error),)
        )
    exit_with_result(command, result, as_json=as_json)


def exit_with_result(command: str, result: Result, *, as_json: bool) -> NoReturn:
    """Print a result and leave with its exit code.

    If stdout refuses the output, stderr reports that, and a code of 0 becomes 1.
    """
    code = result.exit_code
    try:
        _print_result(command, result, as_json=as_json)
        sys.stdout.flush()
    except OSError as error:
        # A document would have held these.
        for hpcbert_error in result.errors if as_json else ():
            print_error(hpcbert_error)
        exit_unwritten(error, code)
    raise SystemExit(code)


def exit_unwritten(error: OSError, code: int = 0) -> NoReturn:
    """Leave because stdout refuses the output: stderr reports that, and a code of 0 becomes 1.

    A reader that has read enough closes the pipe: that is no failure.
    """
    streams.discard_buffer(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        reason = "it is closed" if error.errno == errno.EBADF else error.strerror
        print_error(HpcbertError(f"Can't write to stdout: {reason}."))
        code = code or HpcbertError.exit_code
    raise SystemExit(code)


def returns_result(body: Callable[..., Result]) -> Callable[..., None]:
    """Make a click callback from a function that returns a Result; add the `--json` option.

    Long work shows how far it has come. The document names the command after the function:
    `lab_up` becomes `lab up`.
    """
    shown_body = streams.shows_progress(body)

    @wraps(body)
    def command(*args: Any, as_json: bool, **kwargs: Any) -> None:
        name = body.__name__.replace("_", " ").strip()
        run_command(name, lambda: shown_body(*args, **kwargs), as_json=as_json)

    # The first of click's list is the last in the help.
    option = click.Option(("--json", "as_json"), is_flag=True, help="Print one JSON document.")
    command.__dict__.setdefault("__click_params__", []).insert(0, option)
    return command

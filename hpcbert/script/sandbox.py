"""Templates that may come from anybody, in Jinja's immutable sandbox.

A recipe's folder is text that is rendered on the login node, also by `render` and in a dry run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcbert.config import trust
from hpcbert.errors import UsageError

_SUFFIX = ".j2"


class _Loader(jinja2.FileSystemLoader):
    """Loads templates that the user trusts, also those that another template includes."""

    def __init__(self, folders: Sequence[str], entries: Sequence[trust.TrustedPath]) -> None:
        super().__init__(folders)
        self._named = entries

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        """Return a template's text, file, and whether it is still up to date."""
        source = super().get_source(environment, template)
        trust.refuse_untrusted([Path(source[1])], self._named)
        return source


class Environment(ImmutableSandboxedEnvironment):
    """Jinja set up for shell: undefined names are errors, and every value is one word.

    Args:
        folders: Folders of templates; the first that has a file wins.
        finalize: Turns a value in `{{ }}` into shell words.
        named: What the command line trusts.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        finalize: Callable[[Any], str],
        entries: Sequence[trust.TrustedPath] = (),
    ) -> None:
        super().__init__(
            loader=_Loader([str(folder) for folder in folders], entries),
            undefined=jinja2.StrictUndefined,
            finalize=finalize,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )


@contextlib.contextmanager
def locate_errors(path: Path) -> Iterator[None]:
    """Turn the errors of a template into sentences that name its line.

    Args:
        path: The rendered file, if the error does not name one.

    Raises:
        UsageError: A template is wrong or reaches too far.
    """
    try:
        yield
    except UsageError as error:
        if error.where:
            raise
        raise UsageError(
            error.message, where=_find_error_line(error, path), hint=error.hint
        ) from error
    except jinja2.TemplateSyntaxError as error:
        where = f"{error.filename or path}:{error.lineno}"
        raise UsageError(f"A template is wrong: {error.message}.", where=where) from error
    except Exception as error:
        # Any error of its own arithmetic and calls: a division by 0, an endless recursion.
        text = str(error).rstrip(".") or type(error).__name__
        raise UsageError(
            f"A template is wrong: {text}.", where=_find_error_line(error, path)
        ) from error


def _find_error_line(error: BaseException, path: Path) -> str:
    """Return file and line of the template in which an error was raised.

    Jinja puts the template's own place into the traceback.
    """
    text = str(path)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(_SUFFIX):
            text = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return text

"""Templates that may come from anybody: what they can reach, and how much they may use.

A recipe's folder is text that is rendered on the login node, also by `render` and in a dry run.
Jinja's immutable sandbox keeps a template from Python's insides; limits of memory and time keep it
from exhausting the machine.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcbert.config import trust
from hpcbert.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

# Bytes of address space beyond the process's own, and seconds of processor time, that rendering one
# script may use: a hundred times what it does.
_MEMORY, _SECONDS = 1 << 30, 10.0
# Bits of a power: Python computes one of a billion digits without reacting to signals.
_BITS = 4096
_PAGE = resource.getpagesize()
_SUFFIX = ".j2"


class TooLongError(Exception):
    """A template uses too much time."""


class _Loader(jinja2.FileSystemLoader):
    """Loads templates that the user trusts, also those that another template includes."""

    def __init__(self, folders: Sequence[str], named: Sequence[trust.TrustedPath]) -> None:
        super().__init__(folders)
        self._named = named

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        """Return a template's text, file, and whether it is still up to date."""
        source = super().get_source(environment, template)
        trust.refuse([Path(source[1])], self._named)
        return source


class Environment(ImmutableSandboxedEnvironment):
    """Jinja set up for shell: undefined names are errors, and every value is one word.

    Args:
        folders: Folders of templates; the first that has a file wins.
        finalize: Turns a value in `{{ }}` into shell words.
        named: What the command line trusts.
    """

    intercepted_binops = frozenset({"**"})

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        finalize: Callable[[Any], str],
        named: Sequence[trust.TrustedPath] = (),
    ) -> None:
        super().__init__(
            loader=_Loader([str(folder) for folder in folders], named),
            undefined=jinja2.StrictUndefined,
            finalize=finalize,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._reachable: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read an attribute; Jinja decides by the object's type.

        It takes as long about it as the rest of a template, and asks again for each point.
        """
        known = self._reachable.get((type(obj), attr))
        if known is None:
            known = super().is_safe_attribute(obj, attr, value)
            self._reachable[type(obj), attr] = known
        return known

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Refuse a power that would take forever."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right
            if bits > _BITS:
                raise OverflowError(f"a power of {bits} bits")
        return super().call_binop(context, operator, left, right)


@contextlib.contextmanager
def bounded(place: Path) -> Iterator[None]:
    """Keep the rendering of a template within its limits, and turn its errors into sentences.

    Args:
        place: The rendered file, if the error does not name one.

    Raises:
        UsageError: A template is wrong, reaches too far, or uses too much.
    """
    try:
        with _limited_memory(), _limited_time():
            yield
    except UsageError as error:
        if error.where:
            raise
        raise UsageError(error.message, where=_where(error, place), hint=error.hint) from error
    except jinja2.TemplateSyntaxError as error:
        where = f"{error.filename or place}:{error.lineno}"
        raise UsageError(f"A template is wrong: {error.message}.", where=where) from error
    except MemoryError as error:
        text = f"A template uses more than {_MEMORY >> 20} MiB of memory."
        raise UsageError(text, where=_where(error, place)) from error
    except TooLongError as error:
        text = f"A template takes more than {_SECONDS:g} s to render."
        raise UsageError(text, where=_where(error, place)) from error
    except Exception as error:
        # Any error of its own arithmetic and calls: a division by 0, an endless recursion.
        text = str(error).rstrip(".") or type(error).__name__
        raise UsageError(f"A template is wrong: {text}.", where=_where(error, place)) from error


def _where(error: BaseException, place: Path) -> str:
    """Return file and line of the template in which an error was raised.

    Jinja puts the template's own place into the traceback.
    """
    found = str(place)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(_SUFFIX):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    """Allow the process this much more memory than it has now, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * _PAGE
    except OSError:
        yield
        return
    most = [limit for limit in (soft, hard, used + _MEMORY) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def _limited_time() -> Iterator[None]:
    """Interrupt what uses too much processor time; this works only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)

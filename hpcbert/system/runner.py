"""Starting processes, and being patient with interrupts while one runs: only this module does.

All other modules call a `Runner`; tests pass their own function instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from hpcbert.system.processes import die_with_parent

# The most bytes that a command may print: a hundred thousand jobs of sacct take a third.
MAX_OUTPUT = 1 << 26
_CHUNK = 1 << 16
_TIMED_OUT = "late"
_WEEK = 7 * 86_400.0
# Colours and other sequences for a terminal, which a site's wrappers of commands print.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\n]*\x07|[@-Z\\^_])")
# Slurm's commands wait a minute for a configuration that does not exist (SchedMD/slurm,
# src/common/parse_config.c, s_p_parse_file).
_SLURM_COMMANDS = frozenset(
    {"sacct", "sacctmgr", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"}
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one command.

    Attributes:
        returncode: Its exit status; 127 if the program does not exist, 124 after a timeout.
        stdout: Its output without colours, with undecodable bytes replaced.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str = ""
    stderr: str = ""

    @property
    def ok(self) -> bool:
        """Whether the command ended with status 0."""
        return self.returncode == 0


# Starts a command, waits for it and returns its outcome, as `run` does; does not raise if it fails.
Runner = Callable[..., Outcome]


def run(
    argv: Sequence[str],
    *,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 60.0,
    show: Callable[[str], None] | None = None,
    death_signal: int | None = signal.SIGKILL,
) -> Outcome:
    """Run a command to its end, in a new process group, and collect its output.

    The new group protects sbatch from a terminal's Ctrl-C: an interrupted submission
    must still learn the job id that Slurm gave it. But if this process is killed, the command is
    too: an sbatch that survived could submit after `submit --resume` has checked.

    Args:
        timeout: Seconds after which it is killed; also if it prints more than MAX_OUTPUT.
        show: Called with each line of its stderr as it arrives, without its end.
        death_signal: What it gets when this process dies; None: it goes on, and starts five times
            as fast, because this process need not be copied.
    """
    die = partial(die_with_parent, os.getpid(), death_signal) if death_signal else None
    words = tuple(argv)
    if refusal := _refuse_missing_configuration(words, env):
        return refusal
    with tempfile.TemporaryFile() as stdin_file:
        stdin_file.write(stdin.encode())
        stdin_file.seek(0)
        try:
            child = subprocess.Popen(
                words,
                stdin=stdin_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=die,  # noqa: PLW1509 - no threads
            )
        except PermissionError as error:
            return Outcome(words, 126, stderr=f"{words[0]}: {error.strerror}")
        except (FileNotFoundError, NotADirectoryError):
            return Outcome(words, 127, stderr=f"{words[0]}: no such program")
    return _finish(child, words, timeout, show)


class MemoRunner:
    """A runner that asks each question once, for commands that change nothing."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._answers: dict[tuple[object, ...], Outcome] = {}

    def __call__(self, argv: Sequence[str], **options: Any) -> Outcome:
        """Return the outcome of a command, as it was the first time."""
        key = tuple(argv), repr(options)
        if key not in self._answers:
            self._answers[key] = self._run(argv, **options)
        return self._answers[key]


def _finish(
    child: subprocess.Popen[bytes],
    words: tuple[str, ...],
    timeout: float,
    show: Callable[[str], None] | None = None,
) -> Outcome:
    with child:
        try:
            stdout, stderr, problem = _read_output(child, time.monotonic() + timeout, show)
        except BaseException:
            # Its pipe stays open until it has cleaned up: it may print what it does.
            child.terminate()
            child.wait()
            raise
        if problem:
            # It may have ended by now, while another process of its group holds the pipe.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    if problem == _TIMED_OUT:
        problem = f"gave no answer within {timeout:g} s"
    note = f"{words[0]}: {problem}" if problem else ""
    return Outcome(words, 124 if problem else child.returncode, stdout, f"{stderr}{note}")


def _refuse_missing_configuration(
    words: tuple[str, ...], env: Mapping[str, str] | None
) -> Outcome | None:
    """Return the failure of a command of Slurm if SLURM_CONF names a file that is missing."""
    path = (os.environ if env is None else env).get("SLURM_CONF", "")
    if not path or words[0] not in _SLURM_COMMANDS or os.path.lexists(path):
        return None
    return Outcome(words, 1, stderr=f"SLURM_CONF names {path}, which does not exist")


def _read_output(
    child: subprocess.Popen[bytes], deadline: float, show: Callable[[str], None] | None
) -> tuple[str, str, str]:
    """Return a child's stdout and stderr, and why reading stopped early; empty if it did not."""
    buffers = {stream: bytearray() for stream in (child.stdout, child.stderr) if stream}
    problem, shown = "", 0
    with selectors.DefaultSelector() as selector:
        for stream, buffer in buffers.items():
            selector.register(stream, selectors.EVENT_READ, buffer)
        while selector.get_map() and not problem:
            remaining = deadline - time.monotonic()
            ready = selector.select(remaining) if remaining > 0 else []
            problem = "" if ready else _TIMED_OUT
            for key, _ in ready:
                key.data.extend(data := os.read(key.fd, _CHUNK))
                if show and key.fileobj is child.stderr:
                    shown = _show_lines(key.data, shown, show, is_over=not data)
                if not data:
                    selector.unregister(key.fileobj)
                if len(key.data) > MAX_OUTPUT:
                    problem = f"printed more than {MAX_OUTPUT >> 20} MiB"
    try:
        child.wait(0 if problem else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        problem = problem or _TIMED_OUT
    texts = (bytes(output).decode(errors="replace") for output in buffers.values())
    stdout, stderr = (_ESCAPE.sub("", text) for text in texts)
    return stdout, stderr, problem


def _show_lines(
    output: bytearray, start: int, show: Callable[[str], None], *, is_over: bool
) -> int:
    """Show the lines of an output from `start` on, and return where they end."""
    end = len(output)
    if not is_over:  # the last line may be incomplete
        end = max(output.rfind(b"\n"), output.rfind(b"\r"), start - 1) + 1
    for line in output[start:end].decode(errors="replace").splitlines():
        show(line)
    return end


def follow(
    argv: Sequence[str],
    *,
    show: Callable[[str], None],
    stdin: str = "",
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a command that takes up to a week, as `run` does.

    An interrupt or the death of this process ends it by SIGTERM, so that it can clean up.
    """
    return run(argv, stdin=stdin, env=env, timeout=_WEEK, show=show, death_signal=signal.SIGTERM)


def start_detached(
    argv: Sequence[str], *, log_path: Path, env: Mapping[str, str], cwd: Path | None = None
) -> int:
    """Start a command that outlives this process, and return its process id.

    It leads a new session, so that neither Ctrl-C nor the end of a terminal reaches it; it reads
    nothing and appends its output to a file.

    Raises:
        OSError: The program does not exist, or the file can't be written.
    """
    descriptor = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "ab") as file:
        child = subprocess.Popen(
            tuple(argv),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    # This object never waits for the process, so it must neither warn about that nor reap it.
    child.returncode = 0
    return child.pid


# Ctrl-C, the signal of a scheduler or a shutdown, and the end of a connection.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DeferredInterrupts:
    """Lets a running command give its answer, and hpcbert record it.

    An interrupt takes effect at the next `check`, or in a pause. A second one takes effect at once.
    """

    def __init__(self) -> None:
        self._signal_count = 0
        self._is_pausing = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self._signal_count += 1
        if self._is_pausing or self._signal_count > 1:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Take effect now.

        Raises:
            KeyboardInterrupt: An interrupt is waiting.
        """
        if self._signal_count:
            raise KeyboardInterrupt

    def pausing(self, pause: Callable[[float], None]) -> Callable[[float], None]:
        """Return a function that sleeps, except after an interrupt."""

        def wait(seconds: float) -> None:
            self.check()
            self._is_pausing = True
            try:
                pause(seconds)
            finally:
                self._is_pausing = False

        return wait


@contextmanager
def defer_interrupts() -> Iterator[DeferredInterrupts]:
    """Handle signals patiently; ignored ones, as under nohup, stay ignored."""
    patience = DeferredInterrupts()
    previous_handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                previous_handlers[number] = signal.signal(number, patience.note)
    try:
        yield patience
        patience.check()
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)

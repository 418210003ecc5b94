"""A runner for a program that is called often and must die with this process: sbatch."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from hpcbert.system import runner
from hpcbert.system.runner import heard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpcbert.system.runner import Outcome, Runner


class Often:
    """A runner that starts one program with less effort, because it is called often.

    `run` has a first action of the command in Python, for which the kernel copies the tables of all
    memory of this process, and afterwards each page that is written to: 5 ms, as long as sbatch
    itself takes. setpriv takes 1. It starts the program by another name, `/proc/PID/root/…`, which
    some programs would remember.

    Args:
        run: Runs other commands; all if there is no setpriv that can do it, or if it is not the
            runner that starts processes.
        program: The program.
    """

    def __init__(self, run: Runner, program: str) -> None:
        self._run = run
        self._program = program if run is runner.run else ""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60.0,
    ) -> Outcome:
        """Run a command as `run` does: it dies with this process."""
        pid = os.getpid()
        file = self._file(env) if argv[0] == self._program and not stdin else ""
        if not file or not (leash := _leash(pid)):
            return self._run(argv, stdin=stdin, env=env, cwd=cwd, timeout=timeout)
        child = subprocess.Popen(
            (*leash, _name_during(pid, file), *argv[1:]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        return heard(child, tuple(argv), timeout)

    def _file(self, env: Mapping[str, str] | None) -> str:
        """Return the program's file; empty if it has no absolute name, or can't be started."""
        path = (os.environ if env is None else env).get("PATH")
        found = shutil.which(self._program, path=path)
        return found if found and found.startswith(os.sep) else ""


def _name_during(pid: int, file: str) -> str:
    """Return a name that a file has only during the life of a process.

    If the process dies before setpriv has requested its own end with it, setpriv can't start the
    program either.
    """
    return f"/proc/{pid}/root{file}"


@functools.cache
def _leash(pid: int) -> tuple[str, ...]:
    """Return the words before a command that dies with this process; none if it can't be done.

    setpriv has `--pdeathsig` since util-linux 2.33.
    """
    setpriv = shutil.which("setpriv", path="/usr/bin:/bin")
    if not setpriv:
        return ()
    words = (setpriv, "--pdeathsig", "KILL")
    tried = (*words, _name_during(pid, setpriv), "--version")
    nothing = subprocess.DEVNULL
    with subprocess.Popen(tried, stdin=nothing, stdout=nothing, stderr=nothing) as child:
        return words if child.wait() == 0 else ()

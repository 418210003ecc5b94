"""Short commands and detached daemons, both through the given runner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpcbert.system.runner import Runner

# /proc still belongs to the caller's PID namespace when this runs, so the number read is the one
# that the caller can use, also for a process that starts inside another PID namespace.
_SPAWN = """set -eu
cd /
umask 022
read -r pid rest </proc/self/stat
log=$1
shift
{prelude}
printf '%s\\n' "$pid"
exec >>"$log" 2>&1 </dev/null
exec "$@"
"""


def must(
    run: Runner,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: str = "",
    timeout: float = 60.0,
) -> str:
    """Run a command that must succeed, and return its output.

    Raises:
        CheckError: The command failed; the message contains its error.
    """
    result = run(argv, stdin=stdin, env=env, timeout=timeout)
    if not result.ok:
        complaint = result.stderr.strip() or f"exit status {result.returncode}"
        raise CheckError(complaint, where=" ".join(argv[:6]))
    return result.stdout


def spawn(
    run: Runner,
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    enter: Sequence[str] = (),
    prelude: str = "",
) -> int:
    """Start a daemon that outlives this process, and return its PID.

    `setsid --fork` makes it a child of init, or of its PID namespace's first process, in a new
    session: this process need not reap it, and signals from this terminal do not reach it.

    Args:
        run: Starts the short command that detaches it.
        argv: The daemon, in its foreground mode.
        log: The file that its output is appended to.
        env: Its whole environment.
        enter: A command to put before all others, such as `unshare --pid` or `nsenter --pid=…`: the
            PID namespace takes hold for the daemon because it is forked afterwards.
        prelude: Shell lines that run in the daemon's place just before it; `$1` onwards is argv.

    Raises:
        CheckError: The daemon could not be started.
    """
    words = [*enter, "setsid", "--fork", "sh", "-c", _SPAWN.format(prelude=prelude), "sh"]
    result = run([*words, str(log), *argv], env=env, timeout=60)
    # setsid has succeeded before the shell begins: only the number shows that everything worked.
    number = result.stdout.strip()
    if not number.isdecimal():
        raise CheckError(
            result.stderr.strip() or "It ended before it began.", where=log.stem, hint=f"See {log}."
        )
    return int(number)

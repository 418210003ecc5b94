"""Short commands and detached daemons, both through the one runner that is handed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpcbert.system.runner import Runner

# /proc still belongs to the caller's PID namespace when this runs, so the number read is the one
# that the caller can use, also for a process that is born inside another PID namespace.
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
    """Run a command that has to succeed, and return what it printed.

    Raises:
        CheckError: The command failed; the message carries its own complaint.
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

    `setsid --fork` makes it a child of init, of its own PID namespace's if it has one, in a session
    of its own: nothing here has to reap it, and no signal to this terminal reaches it.

    Args:
        run: Starts the short-lived command that does the detaching.
        argv: The daemon, in its foreground mode.
        log: Where its output is appended.
        env: Its whole environment.
        enter: A command to put before everything, such as `unshare --pid` or `nsenter --pid=…`: the
            PID namespace takes hold for the daemon because it is forked afterwards.
        prelude: Shell lines that run in the daemon's place just before it; `$1` onwards is argv.

    Raises:
        CheckError: The daemon could not be started at all.
    """
    words = [*enter, "setsid", "--fork", "sh", "-c", _SPAWN.format(prelude=prelude), "sh"]
    result = run([*words, str(log), *argv], env=env, timeout=60)
    # setsid has succeeded before the shell begins: only the number tells that all went well.
    number = result.stdout.strip()
    if not number.isdecimal():
        raise CheckError(
            result.stderr.strip() or "It ended before it began.", where=log.stem, hint=f"See {log}."
        )
    return int(number)

"""The lab's cables and daemons: starting each, waiting for its answer, finding all processes.

Cables lead from each node and from the host to a switch, a bridge in a network namespace of its
own. In the host's own, packets between nodes would pass the host's firewall, and Docker's drops
unknown ones (bridge-nf-call-iptables).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import tomli

from hpcbert.errors import CheckError, SchedulerError
from hpcbert.lab.files import DATABASE_USER, render_file
from hpcbert.lab.record import SWITCH, Journal, Lab, Network, command
from hpcbert.system.processes import Process, identify, list_processes, read_proc_file
from hpcbert.system.runner import Runner

# --- Its cables -----------------------------------------------------------------------------------

# Names inside the switch; a node's end has the node's name.
_BRIDGE = "bridge"
_SWITCH_END = "uplink"


def reserve_slot(journal: Journal, run: Runner) -> Lab:
    """Take the first free slot and lay the cable from the host to the switch.

    Raises:
        CheckError: No slot is free.
    """
    reason = ""
    for slot in journal.lab.plan.slots():
        network = Network(slot)
        reason = _find_occupied(network, run, journal.lab.daemon_environment)
        if reason:
            continue
        lab = journal.note(slot=slot)
        reason = _lay_uplink(lab, run)
        if not reason:
            return lab
        journal.note(slot=None)
    raise CheckError(f"The lab found no free network: {reason}", where="lab slot")


def plug_nodes(lab: Lab, run: Runner) -> None:
    """Give each node a cable to the switch, and its address."""
    network = lab.network
    cables = "".join(
        f"link add name {node} master {_BRIDGE} up type veth peer name eth0 netns {host.pid}\n"
        for node, host in lab.node_hosts.items()
    )
    run_ip(lab, lab.host(SWITCH), cables, run)
    for node, host in lab.node_hosts.items():
        address = f"addr add {network.address(node)}/24 dev eth0\n"
        run_ip(lab, host, f"link set lo up\n{address}link set eth0 up\n", run)


def remove_uplink(lab: Lab, run: Runner) -> tuple[str, ...]:
    """Remove the host's cable, after all processes have ended; return what is left of it."""
    if _uplink_is_ours(lab, run):
        run(["ip", "link", "del", "dev", lab.network.uplink], env=lab.daemon_environment)
    return (f"link {lab.network.uplink}",) if _uplink_is_ours(lab, run) else ()


def _uplink_is_ours(lab: Lab, run: Runner) -> bool:
    if lab.slot is None:
        return False
    argv = ["ip", "-json", "link", "show", "dev", lab.network.uplink]
    answer = run(argv, env=lab.daemon_environment)
    links = json.loads(answer.stdout or "[]") if answer.ok else []
    return any(link.get("address") == _hardware_address(lab) for link in links)


def _lay_uplink(lab: Lab, run: Runner) -> str:
    """Lay the host's cable; return the error, empty if there was none."""
    uplink, switch, env = lab.network.uplink, lab.host(SWITCH), lab.daemon_environment
    argv = ["ip", "link", "add", "name", uplink, "address", _hardware_address(lab)]
    argv += ["type", "veth", "peer", "name", _SWITCH_END, "netns", str(switch.pid)]
    result = run(argv, env=env)
    if not result.ok:
        return f"{uplink}: {result.stderr.strip()}"
    switch_end = f"link add name {_BRIDGE} type bridge\nlink set {_BRIDGE} up\n"
    run_ip(lab, switch, f"{switch_end}link set {_SWITCH_END} master {_BRIDGE} up\n", run)
    host_end = f"addr add {lab.network.controller}/24 dev {uplink}\nlink set {uplink} up\n"
    run_checked(run, ["ip", "-batch", "-"], stdin=host_end, env=env)
    return ""


def run_ip(lab: Lab, host: Process, commands: str, run: Runner) -> None:
    """Run commands of ip in the network namespace of a process."""
    argv = ["nsenter", f"--net=/proc/{host.pid}/ns/net", "ip", "-batch", "-"]
    run_checked(run, argv, stdin=commands, env=lab.daemon_environment)


def _hardware_address(lab: Lab) -> str:
    """Return a locally administered unicast address from the mark, which identifies the lab."""
    return ":".join(["02", *(lab.mark[index : index + 2] for index in range(0, 10, 2))])


def _find_occupied(network: Network, run: Runner, env: dict[str, str]) -> str:
    """Return the part of a slot that is in use, as a clause; empty if all are free."""
    routes = run(["ip", "-4", "route", "show", "root", network.prefix], env=env)
    if routes.stdout.strip():
        return f"{network.prefix} is in use"
    for port in (network.controller_port, network.node_port, network.accounting_port):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                return f"port {port} is in use"
    return ""


# --- Its daemons --------------------------------------------------------------------------------

_POLL = 0.05
_PATIENCE = 15.0
# Seconds to wait for each daemon, and for all nodes to be idle.
_READY_PATIENCE = 180.0
_LOG_TAIL = 12
_SLEEP_FOREVER = ("sleep", "infinity")
_SERVING_STATES = ("idle", "mixed", "allocated", "completing", "draining", "drained")


def start_node(journal: Journal, node: str, run: Runner) -> None:
    """Start the process that is a node: it holds the namespaces and adopts orphans."""
    unshare = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid"]
    hosts = str(journal.lab.layout.hosts)
    argv = [hosts, node, "env", "--ignore-signal=CHLD", *_SLEEP_FOREVER]
    _start(journal, "hosts", node, argv, run, enter=unshare, prelude=render_file("node.sh"))


def start_switch(journal: Journal, run: Runner) -> None:
    """Start the process that holds the switch's network namespace."""
    _start(journal, "hosts", SWITCH, _SLEEP_FOREVER, run, enter=["unshare", "--net"])


def start_daemon(journal: Journal, name: str, run: Runner) -> None:
    """Start a daemon without waiting for its answer.

    Raises:
        SchedulerError: It ended immediately.
    """
    enter = []  # the PID namespace, before all others
    if name in journal.lab.plan.node_names:
        enter = ["nsenter", f"--pid=/proc/{journal.lab.host(name).pid}/ns/pid"]
    _start(journal, "daemons", name, program_argv(journal.lab, name), run, enter=enter)


def _start(
    journal: Journal,
    kind: Literal["hosts", "daemons"],
    name: str,
    argv: Sequence[str],
    run: Runner,
    *,
    enter: Sequence[str],
    prelude: str = "",
) -> None:
    lab = journal.note_process(kind, name, None)
    log_name = f"{name}-host" if kind == "hosts" else name
    log, env = lab.layout.log(log_name), lab.daemon_environment
    process = identify(spawn(run, argv, log=log, env=env, enter=enter, prelude=prelude))
    if process is None:
        raise _make_error(lab, log_name, "The daemon ended at once.")
    journal.note_process(kind, name, process)


def wait_for_daemon(lab: Lab, name: str, run: Runner) -> None:
    """Wait until a daemon answers.

    Raises:
        SchedulerError: It ended or did not answer in time; the message ends with its log's tail.
    """
    _wait_until_ready(lab, name, lambda: _check_daemon(lab, name, run))


def wait_for_accounting(lab: Lab, run: Runner) -> None:
    """Wait until the cluster is registered with slurmdbd and sacct answers.

    Raises:
        SchedulerError: Not in time; the message ends with slurmdbd's log's tail.
    """

    def silence() -> str:
        argv = ["sacctmgr", "-nP", "show", "cluster", "format=controlport"]
        registered = run(argv, env=lab.daemon_environment, timeout=_PATIENCE)
        if registered.stdout.strip() in ("", "0"):
            return f"the cluster is not registered {registered.stderr.strip()}"
        return _check_command(run, ["sacct", "-X", "-n"], lab)

    _wait_until_ready(lab, "slurmdbd", silence)


def read_node_states(lab: Lab, run: Runner) -> dict[str, str]:
    """Return each node's state in sinfo's words, such as `idle` or `down*`; empty if unknown."""
    argv = ["sinfo", "--Node", "--noheader", "--partition=gpu", "--format=%N %T"]
    answer = run(argv, env=lab.daemon_environment, timeout=_PATIENCE)
    return dict(line.split(maxsplit=1) for line in answer.stdout.splitlines())


def run_as(user: str) -> tuple[str, ...]:
    """Return the prefix of a command that runs it as another user."""
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups")


_PROGRAMS = tomli.loads(Path(__file__).with_name("daemons.toml").read_text(encoding="utf-8"))


def program_argv(lab: Lab, name: str) -> list[str]:
    """Return the command of a program of the lab; a node's slurmd has the node's name."""
    namespaces = ""
    if name in lab.plan.node_names:
        namespaces = f"/proc/{lab.host(name).pid}/ns"
    program = _PROGRAMS["slurmd" if namespaces else name]
    user, words = program.get("user", ""), [program["program"]]
    words += _PROGRAMS["database_options"] if user == DATABASE_USER else []
    words += program["arguments"]
    values = {"layout": lab.layout, "name": name, "namespaces": namespaces}
    return [*(run_as(user) if user else ()), *(word.format_map(values) for word in words)]


def _check_daemon(lab: Lab, name: str, run: Runner) -> str:
    """Check that a daemon answers; return the error, empty if it does."""
    if name == "mariadbd":
        path = str(lab.layout.database_socket)
        with socket.socket(socket.AF_UNIX) as probe:
            error = probe.connect_ex(path)
        return f"{path}: {os.strerror(error)}" if error else ""
    if name in _PROGRAMS:
        question = [word.format(layout=lab.layout) for word in _PROGRAMS[name]["question"]]
        return _check_command(run, question, lab)
    state = read_node_states(lab, run).get(name, "")
    return "" if state in _SERVING_STATES else f"Slurm calls the node {state or 'nothing'}"


def _check_command(run: Runner, argv: Sequence[str], lab: Lab) -> str:
    result = run(argv, env=lab.daemon_environment, timeout=_PATIENCE)
    return "" if result.ok else result.stderr.strip() or f"exit status {result.returncode}"


def _wait_until_ready(lab: Lab, name: str, silence: Callable[[], str]) -> None:
    deadline = time.monotonic() + _READY_PATIENCE
    process = lab.daemons.get(name)
    while reason := silence():
        if process is None or not process.alive:
            raise _make_error(lab, name, "The daemon ended instead of answering.")
        if time.monotonic() > deadline:
            raise _make_error(lab, name, f"No answer in {_READY_PATIENCE:g} s: {reason}")
        time.sleep(_POLL)


def _make_error(lab: Lab, name: str, problem: str) -> SchedulerError:
    path, text = lab.layout.log(name), ""
    with contextlib.suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
    tail = "".join(f"\n  {line}" for line in text.splitlines()[-_LOG_TAIL:])
    hint = f"Its whole log: {path}. `{command('down', lab.directory)}` cleans up."
    return SchedulerError(f"{problem}{tail}", where=name, hint=hint)


# --- Its processes --------------------------------------------------------------------------------

# A process of a lab has the lab's mark in its environment, or is on a node: then it ends with the
# first process of the node's PID namespace, which has the mark (pid_namespaces(7)).


def run_checked(
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
        enter: A command to put before all others, such as `unshare --pid` or `nsenter --pid=…`: the
            PID namespace takes hold for the daemon because it is forked afterwards.
        prelude: Shell lines that run in the daemon's place just before it; `$1` onwards is argv.

    Raises:
        CheckError: The daemon could not be started.
    """
    script = render_file("spawn.sh", prelude=prelude)
    launcher = [*enter, "setsid", "--fork", "sh", "-c", script, "sh"]
    result = run([*launcher, str(log), *argv], env=env, timeout=60)
    # setsid has succeeded before the shell begins: only the number shows that everything worked.
    number = result.stdout.strip()
    if not number.isdecimal():
        raise CheckError(
            result.stderr.strip() or "It ended before it began.", where=log.stem, hint=f"See {log}."
        )
    return int(number)


_PROGRAM_NAMES = (b"munged", b"mariadbd", b"mysqld", b"slurmdbd", b"slurmctld", b"slurmd")


def find_marked(mark: str) -> Iterator[Process]:
    """Find the processes that started with `mark`, a NAME=value pair, in their environment."""
    pair = mark.encode()
    return (
        process
        for process in list_processes()
        if pair in read_proc_file(process.pid, "environ").split(b"\0")
    )


def is_daemon(process: Process) -> bool:
    """Return whether a process runs one of the lab's programs (proc(5), comm)."""
    return read_proc_file(process.pid, "comm").strip() in _PROGRAM_NAMES

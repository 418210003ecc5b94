"""The lab's cables: from each node and from the host to a switch.

The switch is a bridge in a network namespace of its own. In the host's own, packets between nodes
would pass the host's firewall, and Docker's drops unknown ones (bridge-nf-call-iptables).
"""

from __future__ import annotations

import json
import socket
import time

from hpcbert.errors import CheckError
from hpcbert.lab.plan import Network
from hpcbert.lab.processes import run_checked
from hpcbert.lab.record import SWITCH, Journal, Lab
from hpcbert.system.processes import Process
from hpcbert.system.runner import Runner

# Names inside the switch; a node's end has the node's name.
_BRIDGE = "bridge"
_SWITCH_END = "uplink"
_CLEAN_UP_TIMEOUT = 30.0


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


def unplug_host(lab: Lab, run: Runner) -> None:
    """Remove the host's cable; all others end with the switch and the nodes."""
    if _uplink_is_ours(lab, run):
        run(["ip", "link", "del", "dev", lab.network.uplink], env=lab.daemon_environment)


def find_remains(lab: Lab, run: Runner) -> tuple[str, ...]:
    """Return descriptions of the network's remains, after all processes have ended."""
    deadline = time.monotonic() + _CLEAN_UP_TIMEOUT
    while _uplink_is_ours(lab, run):
        # The kernel removes a dead namespace's links with a delay.
        if time.monotonic() > deadline:
            return (f"link {lab.network.uplink}",)
        time.sleep(0.1)
    return ()


def _uplink_is_ours(lab: Lab, run: Runner) -> bool:
    """Return whether the host's cable exists and has this lab's hardware address."""
    if lab.slot is None:
        return False
    argv = ["ip", "-json", "link", "show", "dev", lab.network.uplink]
    answer = run(argv, env=lab.daemon_environment)
    links = json.loads(answer.stdout or "[]") if answer.ok else []
    return any(link.get("address") == _hardware_address(lab) for link in links)


def _lay_uplink(lab: Lab, run: Runner) -> str:
    """Lay the host's cable; return the error, empty if there was none."""
    network, switch = lab.network, lab.host(SWITCH)
    argv = ["ip", "link", "add", "name", network.uplink, "address", _hardware_address(lab)]
    argv += ["type", "veth", "peer", "name", _SWITCH_END, "netns", str(switch.pid)]
    result = run(argv, env=lab.daemon_environment)
    if not result.ok:
        return f"{network.uplink}: {result.stderr.strip()}"
    run_ip(
        lab,
        switch,
        f"link add name {_BRIDGE} type bridge\n"
        f"link set {_BRIDGE} up\n"
        f"link set {_SWITCH_END} master {_BRIDGE} up\n",
        run,
    )
    host_end = (
        f"addr add {network.controller}/24 dev {network.uplink}\nlink set {network.uplink} up\n"
    )
    run_checked(run, ["ip", "-batch", "-"], stdin=host_end, env=lab.daemon_environment)
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
        if not _is_free(port):
            return f"port {port} is in use"
    return ""


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True

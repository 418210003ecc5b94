"""The lab's bridge and cables."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

from hpcbert.errors import CheckError
from hpcbert.lab.plan import Network
from hpcbert.lab.shell import must

if TYPE_CHECKING:
    from hpcbert.lab.process import Process
    from hpcbert.lab.record import Journal, Lab
    from hpcbert.lab.shell import Runner


def reserve(journal: Journal, run: Runner) -> Lab:
    """Take the first free slot and make its bridge.

    Raises:
        CheckError: No slot is free, or the one that was asked for is not.
    """
    reason = ""
    for slot in journal.lab.plan.slots():
        network = Network(slot)
        reason = _occupied(network, run, journal.lab.daemon_environment)
        if reason:
            continue
        lab = journal.note(slot=slot)
        reason = _make_bridge(lab, run)
        if not reason:
            return lab
        journal.note(slot=None)
    raise CheckError(f"No network is free for the lab: {reason}", where="lab slot")


def plug(lab: Lab, hosts: dict[str, Process], run: Runner) -> None:
    """Give each node a cable to the bridge, and its address."""
    network, env = lab.network, lab.daemon_environment
    cables = "".join(
        f"link add name {network.link(node)} master {network.bridge} up"
        f" type veth peer name eth0 netns {host.pid}\n"
        for node, host in hosts.items()
    )
    must(run, ["ip", "-batch", "-"], stdin=cables, env=env)
    for node, host in hosts.items():
        inside = f"link set lo up\naddr add {network.address(node)}/24 dev eth0\nlink set eth0 up\n"
        enter = ["nsenter", f"--net=/proc/{host.pid}/ns/net"]
        must(run, [*enter, "ip", "-batch", "-"], stdin=inside, env=env)


def set_link(lab: Lab, node: str, *, up: bool, run: Runner) -> None:
    """Cut a node's cable or mend it."""
    words = ["ip", "link", "set", "dev", lab.network.link(node), "up" if up else "down"]
    must(run, words, env=lab.daemon_environment)


def unplug(lab: Lab, run: Runner) -> None:
    """Remove the cables and the bridge, if the bridge bears this lab's mark."""
    env = lab.daemon_environment
    for name in (*cables(lab, run), *bridge(lab, run)):
        run(["ip", "link", "del", "dev", name], env=env)


def bridge(lab: Lab, run: Runner) -> tuple[str, ...]:
    """Find the lab's bridge: its name, or nothing if there is none or it is another lab's."""
    if lab.slot is None:
        return ()
    return tuple(
        link["ifname"]
        for link in _links(["dev", lab.network.bridge], lab, run)
        if link.get("address") == _hardware_address(lab)
    )


def cables(lab: Lab, run: Runner) -> tuple[str, ...]:
    """Find the links that hang on the lab's bridge."""
    return tuple(
        link["ifname"] for name in bridge(lab, run) for link in _links(["master", name], lab, run)
    )


def _links(which: list[str], lab: Lab, run: Runner) -> list[dict[str, str]]:
    answer = run(["ip", "-json", "link", "show", *which], env=lab.daemon_environment)
    # An empty answer is `[{},…]` or nothing at all, as the version of iproute2 likes.
    links = json.loads(answer.stdout or "[]") if answer.ok else []
    return [link for link in links if link]


def _make_bridge(lab: Lab, run: Runner) -> str:
    """Make the bridge; return why it failed, or nothing."""
    network, env = lab.network, lab.daemon_environment
    words = ["ip", "link", "add", "name", network.bridge, "address", _hardware_address(lab)]
    made = run([*words, "type", "bridge"], env=env)
    if not made.ok:
        return f"{network.bridge}: {made.stderr.strip()}"
    settings = (
        f"addr add {network.controller}/24 dev {network.bridge}\nlink set {network.bridge} up\n"
    )
    must(run, ["ip", "-batch", "-"], stdin=settings, env=env)
    return ""


def _hardware_address(lab: Lab) -> str:
    """Return a locally administered unicast address made of the mark: it tells whose it is."""
    return ":".join(["02", *(lab.mark[at : at + 2] for at in range(0, 10, 2))])


def _occupied(network: Network, run: Runner, env: dict[str, str]) -> str:
    """Return why a slot cannot be had, or nothing."""
    routes = run(["ip", "-4", "route", "show", "root", network.prefix], env=env)
    if routes.stdout.strip():
        return f"{network.prefix} is in use"
    for port in (network.controller_port, network.node_port, network.accounting_port):
        if not _free(port):
            return f"port {port} is in use"
    return ""


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True

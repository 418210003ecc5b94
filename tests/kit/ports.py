"""Ports that are still free when a program binds them, long after they were chosen."""

from __future__ import annotations

import itertools
import os
import socket

# Below those that Linux gives to whoever connects (ip_local_port_range), and above those of the
# scripts' ranks and of labs: another program does not take one by chance between choice and use.
_PORTS = range(30000, 32768)
_tried = itertools.count(os.getpid())


def free_port() -> int:
    """Return a free port of this machine, another one each time."""
    for number in itertools.islice(_tried, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is free")

"""Ranks say hello to each other, by TCP as PyTorch's do and by MPI: for `hpcbert doctor`.

Usage: hello.py MPI [OTHERS]; MPI is `yes` if ranks find each other by it. Prints lines as look.sh
does. Needs Python 3.6 and nothing else; it calls MPI through the installed library.
"""

import contextlib
import ctypes
import ctypes.util
import os
import socket
import sys
import time
from typing import Any

ALL, SOME = b"hpcbert hears all\n", b"hpcbert hears some\n"
PATIENCE = 10.0
NODE = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
RANK, RANKS = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
HOST, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
# Open MPI 4 and 5, MPICH and its descendants.
LIBRARIES = ("libmpi.so.40", "libmpi.so.12", "libmpi.so")
MPICH_WORLD = 0x44000000
# Ends a detail if another interface could work, as look.sh prints it.
OTHERS = "".join(sys.argv[2:])


def report(name: str, status: str, detail: str) -> None:
    """Print a finding as tab-separated fields: node, name, status, detail."""
    print(NODE, name, status, " ".join(detail.split()), sep="\t", flush=True)


def serve() -> bool:
    """As the first rank, hear every other one, then answer all; return whether it heard all."""
    kind = socket.AF_INET6 if ":" in HOST else socket.AF_INET
    listener = socket.socket(kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", PORT))
    except OSError as error:
        report("port", "fail", "{}: {}".format(PORT, error.strerror or error))
        return False
    report("port", "ok", "rank 0's port is free")
    listener.listen(RANKS)
    peers: Any = {}
    deadline = time.monotonic() + PATIENCE
    while len(peers) < RANKS - 1:
        remaining = deadline - time.monotonic()
        listener.settimeout(max(0.1, remaining))
        try:
            peer = listener.accept()[0]
        except OSError:
            # A rank that connected while this one was suspended is heard all the same.
            if remaining <= 0:
                break
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            peer.settimeout(5)
            peers[int(peer.recv(64).split()[0])] = peer
    missing = sorted(set(range(1, RANKS)) - set(peers))
    for peer in peers.values():
        with contextlib.suppress(OSError):
            peer.sendall(SOME if missing else ALL)
    if missing:
        names = ", ".join(map(str, missing[:20]))
        report("hello", "fail", "rank 0 hears nothing from ranks {}{}".format(names, OTHERS))
    return not missing


def greet() -> bool:
    """Connect to the first rank, which may not listen yet; return whether it heard all."""
    deadline, reason = time.monotonic() + PATIENCE, ""
    while not reason or time.monotonic() < deadline:
        try:
            with socket.create_connection((HOST, PORT), timeout=5) as peer:
                peer.sendall("{} {}\n".format(RANK, NODE).encode())
                peer.settimeout(PATIENCE + 5)
                answer = peer.recv(64)
            if answer in (ALL, SOME):
                report("hello", "ok", "ranks reach the first one")
                return answer == ALL
            reason = "another program answers"
        except OSError as error:
            reason = error.strerror or str(error) or "no answer"
        time.sleep(0.2)
    detail = "rank {} does not reach rank 0 at {}:{}: {}{}"
    report("hello", "fail", detail.format(RANK, HOST, PORT, reason, OTHERS))
    return False


def library() -> Any:
    """Return the MPI library of this machine or image; None without one."""
    for name in filter(None, (*LIBRARIES, ctypes.util.find_library("mpi"))):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    return None


def greet_by_mpi(mpi: Any) -> int:
    """Return the number of ranks by MPI, after a barrier."""
    mpi.MPI_Init(None, None)
    # A pointer to a structure, or a number.
    world: Any = ctypes.c_int(MPICH_WORLD)
    if hasattr(mpi, "ompi_mpi_comm_world"):
        world = ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world"))
    count = ctypes.c_int(0)
    mpi.MPI_Comm_size(world, ctypes.byref(count))
    mpi.MPI_Barrier(world)
    mpi.MPI_Finalize()
    return count.value


def try_mpi() -> None:
    """Report whether MPI counts all ranks; without a library, what srun offers."""
    mpi = library()
    if mpi is None:
        names = [name for name in ("PMIX_RANK", "PMI_RANK") if name in os.environ]
        detail = "not tried: no MPI library; srun sets {}"
        status = "ok" if names else "warn"
        report("MPI", status, detail.format(" and ".join(names) or "no rank for it"))
        return
    count = greet_by_mpi(mpi)
    if count == RANKS:
        report("MPI", "ok", "all ranks met")
    else:
        report("MPI", "fail", "a rank counts {} of {} ranks".format(count, RANKS))


def main(*, by_mpi: bool) -> None:
    """Say hello by TCP, then by MPI, which would hang if a rank were missing."""
    met = serve() if RANK == 0 else greet()
    if by_mpi and met:
        try_mpi()


main(by_mpi=sys.argv[1] == "yes")

"""Runs a program under Horovod's Gloo as Slurm started it, without horovodrun and without MPI.

    python gloo.py PROGRAM.py [WORD …]

Horovod's ranks find each other in a store at HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT (horovod
0.28.1, horovod/common/gloo/gloo_context.cc). horovodrun keeps it, and starts ranks by ssh. Here
rank 0 keeps it; the others wait until it answers, since Horovod itself tries for 1.5 seconds only.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import threading
import time
from pathlib import Path

# Seconds. Ranks start together; what differs is how long each takes to read its files.
PATIENCE = 600.0


def keep_store(port: int) -> None:
    """Keep the store on this host for as long as this process lives."""
    from horovod.runner.http.http_server import KVStoreHandler, RendezvousHTTPServer

    class Handler(KVStoreHandler):
        """Forgets nothing: a rank that is connected deletes what others may not have read yet."""

        def do_DELETE(self) -> None:  # noqa: N802
            """Answer as Horovod's own server does."""
            self.send_status_code(200)

    server = RendezvousHTTPServer(("", port), Handler, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def answers(host: str, port: int) -> bool:
    """Say whether somebody listens there."""
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError:
        return False
    return True


def wait_for_store(host: str, port: int) -> None:
    """Return when the store answers, or end the rank with a sentence."""
    end = time.monotonic() + PATIENCE
    while not answers(host, port):
        if time.monotonic() > end:
            raise SystemExit(f"rank 0 did not answer at {host}:{port} within {PATIENCE:g} s")
        time.sleep(0.2)


def main() -> None:
    """Join the others, then run the program in this process."""
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    if os.environ["HOROVOD_RANK"] == "0":
        keep_store(port)
    else:
        wait_for_store(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], port)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

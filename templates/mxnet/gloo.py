"""Runs a program under Horovod's Gloo as Slurm started it, without horovodrun and without MPI.

    python gloo.py PROGRAM.py [WORD …]

Horovod's ranks find each other in a store that they reach at HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT
(horovod 0.28.1, horovod/common/gloo/gloo_context.cc). horovodrun keeps it, and starts the ranks itself,
by ssh. Here rank 0 keeps the store; the others wait until it answers, since Horovod tries thrice in 1.5 s.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import threading
import time

# Ranks start together; what differs is how long each takes to unpack an image or read its files.
PATIENCE = 600.0


def keep_store(port: int) -> None:
    """Keep the store on this host for as long as this process lives."""
    from horovod.runner.http.http_server import KVStoreHandler, RendezvousHTTPServer

    class Handler(KVStoreHandler):
        """Forgets nothing: ranks delete their addresses as soon as they are connected themselves."""

        def do_DELETE(self) -> None:
            """Answer as Horovod's own server does."""
            self.send_status_code(200)

    server = RendezvousHTTPServer(("", port), Handler, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def wait_for_store(host: str, port: int) -> None:
    """Return when somebody answers there, or end the rank with a sentence."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((host, port), timeout=10).close()
        except OSError as error:
            if time.monotonic() > end:
                raise SystemExit(f"rank 0 does not answer at {host}:{port}: {error}") from error
            time.sleep(0.2)
        else:
            return


def main() -> None:
    """Join the others, then run the program in this process."""
    host = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    if os.environ["HOROVOD_RANK"] == "0":
        keep_store(port)
    else:
        wait_for_store(host, port)
    program = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()

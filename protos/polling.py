"""How gRPC waits for the network: in the thread that asks, not in threads of its own.

With its event engine, each message passes through three threads on either side: one that waits for the
socket, one that reads it, and the one that asked. Threads that do nothing but ask need no others, and a
round trip then takes a third of the CPU time (docs/decisions/0025-completion-queue.md).
"""

import os

VARIABLE = "GRPC_EXPERIMENTS"
IN_PLACE = "-event_engine_client,-event_engine_listener"


def poll_in_place() -> None:
    """Ask gRPC to wait in the thread that asks. To be called before gRPC is imported, which reads it.

    It is asked by an environment variable, which child processes get too. Where the user has set that,
    or has imported gRPC already, nothing changes: all works then, more slowly.
    """
    os.environ.setdefault(VARIABLE, IN_PLACE)

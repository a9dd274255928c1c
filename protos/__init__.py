"""What actors and the learner share: the wire contract, specs, tensors, errors and option parsing."""

import os

# Before gRPC is imported, which reads it only then: let a thread that waits for a message read the
# network itself. Otherwise each message passes through threads of gRPC's own, on either side, for twice
# the CPU time (docs/decisions/0025-completion-queue.md). What the user has set stays.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

PROTOCOL_VERSION = 1
"""Version of the message order and contents in inference.proto; `Open.protocol_version`."""

PROTOCOL_MINOR = 1
"""Goes up with each field that is added, within one `PROTOCOL_VERSION`; `Open.protocol_minor`."""

"""Flags of a row: the wire's StepFlag bits, and one of the learner's own beside them."""

from protos import inference_pb2 as pb

LAST = pb.TERMINATED | pb.TRUNCATED
"""Rows with either flag are the last of their episode."""

ALL_WIRE_FLAGS = LAST | pb.FIRST

LEASE_START = 8
"""The row is the first of its environment in a lease."""

RESET = pb.FIRST | LEASE_START
"""Rows with either flag start with a fresh memory."""

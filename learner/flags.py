"""Flags of a row (the wire's StepFlag bits, and one of the learner's own), and how leases end."""

from enum import StrEnum

from protos import inference_pb2 as pb

LAST = pb.TERMINATED | pb.TRUNCATED
"""Rows with either flag are the last of their episode."""

ALL_WIRE_FLAGS = LAST | pb.FIRST

LEASE_START = 8
"""The row is the first of its environment in a lease."""

RESET = pb.FIRST | LEASE_START
"""Rows with either flag start with a fresh memory."""


class LeaseEnd(StrEnum):
    """Why a lease is over, and with it the unrolls that its environments have begun."""

    CLOSED = "closed"
    """its client said Close"""
    EXPIRED = "expired"
    """its stream broke, and nobody resumed it in time"""
    REFUSED = "refused"
    """its client broke the contract"""
    DRAINED = "drained"
    """the learner ends"""

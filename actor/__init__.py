"""Actors: processes that own environments and nothing else. Importing this never imports TensorFlow."""

import os

from protos import polling

# Before gRPC is imported, which reads both only then. Its handlers of fork() end some of the processes
# that an environment forks beside a stream by a segmentation fault; none of them uses gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault(polling.VARIABLE, polling.IN_PLACE)

from actor.client import InferenceClient
from actor.retry import RetryPolicy
from actor.timestep import TimeStep, restart, transition
from actor.waiting import Interrupted
from protos.credentials import Credentials

__all__ = [
    "Credentials",
    "InferenceClient",
    "Interrupted",
    "RetryPolicy",
    "TimeStep",
    "restart",
    "transition",
]

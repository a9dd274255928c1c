"""Actors: processes that own environments and nothing else. Importing this never imports TensorFlow."""

import os

# Before gRPC is imported, which reads it only then. Its handlers of fork() end some of the processes
# that an environment forks beside a stream by a segmentation fault; none of them uses gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import protos  # noqa: F401 - before gRPC too, for more of its settings

# isort: split
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

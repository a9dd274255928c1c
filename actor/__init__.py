"""Actors: processes that own environments and nothing else. Importing this never imports TensorFlow."""

from actor.client import InferenceClient
from actor.retry import RetryPolicy
from actor.runner import Interrupted
from actor.timestep import TimeStep, restart, transition
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

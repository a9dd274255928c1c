"""Which systems are compared, on what, with which settings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from benchmarks.peer_drivers.settings import Settings

Kind = Literal["equal", "best"]
KINDS: Sequence[Kind] = ("equal", "best")


class Workload(NamedTuple):
    """One task."""

    title: str
    threshold: float | None = None
    """mean return of 100 episodes that the run is timed to"""


class Peer(NamedTuple):
    """A system, and the driver that its interpreter runs."""

    driver: str
    """module in benchmarks.peer_drivers"""
    packages: Sequence[str]
    """distributions whose versions are recorded; without the first it is not installed"""


WORKLOADS: Mapping[str, Workload] = {
    "W1": Workload("environment of no cost, float32[4], 2 actions, truncated at 1000 steps"),
    "W2": Workload("environment of no cost, uint8 84x84, 4 frames stacked, 6 actions"),
    "W3": Workload("CartPole-v1, to a mean return of 475 over 100 episodes", threshold=475.0),
    "W4": Workload("ALE/Pong-v5, frame skip 4, gray 84x84, 4 frames stacked, no sticky actions"),
    "W5": Workload("straggler: 5 ms a step, 100 ms for 5 % of steps, 500 ms a reset"),
    "W6": Workload("a cue to be remembered for 6 steps, LSTM of 64"),
}

PEERS: Mapping[str, Peer] = {
    "seedbed": Peer("drive_seedbed", ("seedbed", "tensorflow-cpu", "tensorflow", "keras", "grpcio")),
    "sample-factory": Peer("drive_sample_factory", ("sample-factory", "torch")),
    "rllib": Peer("drive_rllib", ("ray", "torch")),
    "stable-baselines3": Peer("drive_stable_baselines3", ("stable-baselines3", "torch")),
}

ALWAYS_RECORDED = ("numpy", "gymnasium", "ale-py")

EQUAL: Mapping[str, str] = {
    "seedbed": "V-trace",
    "sample-factory": "APPO",
    "rllib": "IMPALA",
    "stable-baselines3": "A2C",
}
"""The algorithm of each system's equal settings."""

_VECTORISED: Mapping[str, Any] = {"actors": 1, "extra": {"splits": 2}}
"""Sample Factory where environments are vectorised: one actor alternates between two groups."""

BEST: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "seedbed": {
        "W1": {"envs_per_actor": 2048, "unroll_length": 16, "batch_steps": 32_768},
        "W2": {"actors": 4, "envs_per_actor": 32, "unroll_length": 20, "batch_steps": 640},
        # Those of the preset cartpole-ppo, but for the learning rate's end: the run outlasts its goal.
        "W3": {
            "envs_per_actor": 16, "batch_steps": 1024, "learning_rate": 2e-3, "discount": 0.98,
            "entropy_cost": 0.0,
            "extra": {
                "agent": "ppo", "algorithm": "PPO", "epochs": 8, "minibatches": 4, "lock_step": True,
                "trace_lambda": None, "value_cost": None,
            },
        },
        "W4": {"actors": 4, "envs_per_actor": 32, "unroll_length": 20, "batch_steps": 640},
        # Threads that sleep cost little.
        "W5": {"envs_per_actor": 64, "extra": {"threads_per_actor": 64}},
        "W6": {"envs_per_actor": 32},
    },
    "sample-factory": {
        "W1": {**_VECTORISED, "envs_per_actor": 1024, "batch_steps": 16_384},
        "W2": {"envs_per_actor": 16, "unroll_length": 20, "batch_steps": 640},
        # Its defaults, but for the vectorised environment.
        "W3": {
            "actors": 1, "envs_per_actor": 64, "batch_steps": 2048, "learning_rate": 1e-4,
            "gradient_clip": 4.0, "entropy_cost": 0.003, "adam_epsilon": 1e-6,
            "extra": {
                "splits": 2,
                "shared": True,
                "flags": {
                    "normalize_input": True, "normalize_returns": True, "value_bootstrap": False,
                    "nonlinearity": "elu",
                },
            },
        },
        "W4": {"envs_per_actor": 16, "unroll_length": 20, "batch_steps": 640},
        "W5": {"actors": 16, "envs_per_actor": 1},
        "W6": {
            "actors": 1, "envs_per_actor": 64, "batch_steps": 2048,
            "extra": {"splits": 2, "shared": True},
        },
    },
    "rllib": {
        "W1": {"envs_per_actor": 32, "unroll_length": 50, "batch_steps": 1600},
        "W2": {"actors": 1, "envs_per_actor": 32, "unroll_length": 20, "batch_steps": 640},
        "W3": {
            "unroll_length": 50, "batch_steps": 500, "gradient_clip": 40.0, "value_cost": 0.05,
            "entropy_cost": 0.0,
            "extra": {"algorithm": "APPO", "passes": 2, "buffers": 8, "shared": True},
        },
        "W4": {"actors": 1, "envs_per_actor": 32, "unroll_length": 20, "batch_steps": 640},
        "W5": {"actors": 16, "envs_per_actor": 1},
        "W6": {"envs_per_actor": 32, "batch_steps": 2048},
    },
    "stable-baselines3": {
        "W1": {"actors": 0, "envs_per_actor": 32, "unroll_length": 20, "batch_steps": 640},
        "W2": {"actors": 0, "envs_per_actor": 16, "unroll_length": 20, "batch_steps": 320},
        "W3": {
            "actors": 0, "envs_per_actor": 8, "unroll_length": 5, "batch_steps": 40,
            "learning_rate": 7e-4, "trace_lambda": 1.0, "entropy_cost": 0.0,
            "extra": {"use_rms_prop": True},
        },
        "W4": {"actors": 0, "envs_per_actor": 16, "unroll_length": 20, "batch_steps": 320},
        "W5": {"actors": 16, "envs_per_actor": 1},
    },
}  # fmt: skip
"""What differs from the equal settings where each system runs at its best, as far as we know it, on two
cores. A workload is absent where a system cannot do it."""

CANNOT: Mapping[tuple[str, str], str] = {
    ("stable-baselines3", "W6"): "it has no recurrent policies",
}


DIFFERENT: Mapping[tuple[str, str], Mapping[str, Any]] = {
    # 2.1.1 fails with an LSTM in each of two towers: 'PackedSequence' object has no attribute 'chunk'.
    ("sample-factory", "W6"): {"extra": {"shared": True}},
    # As many environments in as many processes; the others step those of a process one after the other.
    ("seedbed", "W5"): {"extra": {"threads_per_actor": 8}},
}
"""What is not equal in the equal settings, because it cannot be or because it is the point."""


def settings_for(peer: str, workload: str, kind: Kind, seed: int) -> Settings | None:
    """The settings of one run; None where the system cannot do the task."""
    if (peer, workload) in CANNOT:
        return None
    changes = BEST[peer][workload] if kind == "best" else DIFFERENT.get((peer, workload), {})
    return replace(Settings(workload, seed=seed), **changes)


def algorithm_of(peer: str, settings: Settings) -> str:
    """The name of the algorithm that the settings ask for."""
    return str(settings.extra.get("algorithm", EQUAL[peer]))


def wire_case(settings: Settings) -> tuple[str, int]:
    """seedbed's message, as `benchmarks.wire` takes it, and the number of actions."""
    observation, actions = "4:float32", 2
    if settings.images:
        observation, actions = "84x84x1:uint8", 6
    elif settings.recurrent:
        observation, actions = "6:float32", 4
    rows = settings.envs_per_actor // int(settings.extra.get("threads_per_actor", 1))
    return f"{rows}x{observation}", actions


def in_turn(
    workloads: Sequence[str], kinds: Sequence[Kind], peers: Sequence[str], repeats: int
) -> list[tuple[str, Kind, str, int]]:
    """(workload, kind, peer, repeat) in the order in which they run: A-B-C-A-B-C within a workload, so
    that what changes on the machine meanwhile meets all systems alike."""
    return [
        (workload, kind, peer, repeat)
        for kind in kinds
        for workload in workloads
        for repeat in range(1, repeats + 1)
        for peer in peers
    ]

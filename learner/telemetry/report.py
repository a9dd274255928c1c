"""One interval of a run in numbers: what the display shows and metrics.jsonl keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


@dataclass(frozen=True, kw_only=True)
class Report:
    """Rates and fractions are those of the interval; counters are over all resumptions."""

    env_steps: int
    """executed environment steps"""
    total_steps: int
    """environment steps after which the run ends"""
    seconds: float
    """seconds of training"""
    steps_per_second: float
    """environment steps a second"""
    episodes: int = 0
    """finished training episodes"""
    mean_return_100: float | None = None
    """mean return of the last 100 episodes, or of as many as there are; None before the first"""
    policy_version: int = 0
    """training version, which each batch increases by one"""
    policy_lag: float | None = None
    """versions between acting and training, mean of the interval's batches; None without a batch"""
    batch_mean: float = 0.0
    """environments in a policy call"""
    batch_max: int = 0
    """environments that fit into a policy call"""
    actors: int = 0
    """connected training sessions"""
    environments: int = 0
    """environments of training sessions, those that wait to be resumed among them"""
    training_busy: float = 0.0
    """part of its time that the training thread works, 0 to 1"""
    training_data_wait: float = 0.0
    """part of its time that the training thread waits for a batch, 0 to 1"""
    inference_busy: float = 0.0
    """part of their time that the inference threads work, 0 to 1"""
    actors_idle: float | None = None
    """part of their time that environments wait for actions, 0 to 1; None if it is not known"""
    evaluation: float | None = None
    """mean return of the last evaluation; None if there is none"""
    event_loop_busy: float = 0.0
    """part of the time that the event loop's thread computes, 0 to 1"""
    queue_full: float = 0.0
    """part of the time that the queue had no room, so that acting waited, 0 to 1"""
    queue_depth: int = 0
    """finished unrolls that wait for training"""
    queue_capacity: int = 0
    """finished unrolls that may wait before actors must"""
    training: Mapping[str, float] = field(default_factory=dict)
    """the last update's scalars, "loss" among them"""

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end at the present rate; None while nothing moves."""
        if self.steps_per_second <= 0:
            return None
        return max(self.total_steps - self.env_steps, 0) / self.steps_per_second


class SessionReport(NamedTuple):
    """One client's session, for whoever watches."""

    number: int
    """counts the learner's sessions, from 1"""
    client: str
    """what it calls itself, in printable characters"""
    client_version: str
    """which version of its program it is, in printable characters; empty if it does not say"""
    environments: int
    steps: int
    """environment steps that it has brought so far"""
    connected: bool
    """False while its lease waits to be resumed"""
    trains: bool
    """False where it evaluates"""


def metrics(report: Report, snapshot: Mapping[str, float]) -> dict[str, Any]:
    """The flat object of metrics.jsonl: the report, the training scalars, and all statistics."""
    values = {
        entry.name: getattr(report, entry.name) for entry in fields(report) if entry.name != "training"
    }
    return {**snapshot, **report.training, **values}


def return_text(value: float) -> str:
    """A return in words that change when it does: with at least three digits, small ones with more
    decimals."""
    size = abs(value)
    return f"{value:.{3 if size < 10 else 2 if size < 100 else 1}f}"

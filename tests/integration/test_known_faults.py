"""Faults that users of other systems met, each by itself."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import actor.stream
import learner.serving.server
from actor import InferenceClient, RetryPolicy, restart, transition
from benchmarks.measure import resident_bytes
from learner.flags import LEASE_START
from learner.serving.batcher import Request
from learner.telemetry.episodes import EpisodeTracker
from protos import inference_pb2 as pb
from tests.fakes import ACTIONS, OBSERVATIONS, FakeLearner, LogLines, Proxy, answer, observation
from tests.integration.processes import Launcher, options, until
from tests.learner.serving.wire import Stream, step

KEEPALIVE = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
"""gRPC's options by which it finds out that the other side is silent."""

STEPS = 1_000_000
WARM_STEPS = 100_000
"""Environment steps after which everything has been allocated that a run needs."""

LEARNER_GROWTH_BYTES = 20e6
"""What TensorFlow's allocator and a longer learning curve may take; one byte a row would be no more."""

ACTOR_GROWTH_BYTES = 5e6


def quick(grpc_options: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """The same options with 1 s for each 10 s of the keepalive. What is not set keeps gRPC's 60 s."""
    return tuple((name, 1000 if name in KEEPALIVE else value) for name, value in grpc_options)


def test_half_open_streams_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replacement actor gets the place of one whose stream is open and dead."""
    monkeypatch.setattr(learner.serving.server, "_OPTIONS", quick(learner.serving.server._OPTIONS))
    with (
        FakeLearner("127.0.0.1:0", capacity=2, lease_seconds=0.01) as full,
        Proxy(full.server.port) as proxy,
        InferenceClient(proxy.address, OBSERVATIONS, ACTIONS, num_environments=2) as dead,
    ):
        dead.act(restart(observation(1, 2), 2))
        proxy.stall()
        retry = RetryPolicy(give_up_seconds=20.0)
        with InferenceClient(
            full.address, OBSERVATIONS, ACTIONS, num_environments=2, retry=retry
        ) as heir:
            assert heir.act(restart(observation(3, 4), 2)).tolist() == [3, 4]
        proxy.cut()


@pytest.mark.timeout(40)
def test_a_client_with_no_deadline_leaves_a_half_open_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor.stream, "_OPTIONS", quick(actor.stream._OPTIONS))
    with FakeLearner("127.0.0.1:0") as fake, Proxy(fake.server.port) as proxy:

        def stall(request: Request) -> None:
            proxy.stall()
            fake.on_step = answer
            answer(request)

        fake.on_step = stall
        with (
            LogLines("actor.client") as log,
            InferenceClient(
                proxy.address, OBSERVATIONS, ACTIONS, num_environments=2, answer_timeout_seconds=1e6
            ) as client,
        ):
            assert client.act(restart(observation(1, 2), 2)).tolist() == [1, 2]
            no = np.zeros(2, bool)
            assert client.act(transition(observation(3, 4), np.ones(2), no, no)).tolist() == [3, 4]
        assert any("ping timeout" in line for line in log.lines()), log.lines()
        assert fake.server.statistics()["count_sessions_begun"] == 1


def test_an_old_request_is_not_answered_to_the_restarted_actor() -> None:
    """Killed with a step in an inference batch, and restarted under the same name before it is
    answered."""
    with FakeLearner("127.0.0.1:0", lease_seconds=0.01) as fake, LogLines("learner.serving") as log:
        fake.on_step = fake.requests.put
        with Stream(fake.address) as killed:
            killed.open(2, client="the same")
            killed.send(step(1, 10, 11, flags=pb.FIRST))
            old = fake.next_request()
            killed.cut()
        log.wait_for("lease expired")

        def answer_the_old_one_first(request: Request) -> None:
            answer(old)
            answer(request)
            fake.on_step = answer

        fake.on_step = answer_the_old_one_first
        with InferenceClient(
            fake.address, OBSERVATIONS, ACTIONS, num_environments=2, name="the same"
        ) as heir:
            assert heir.act(restart(observation(5, 6), 2)).tolist() == [5, 6]
            assert fake.next_dropped() == old.slots.tolist(), "free once its step is answered"
            no = np.zeros(2, bool)
            assert heir.act(transition(observation(7, 8), np.ones(2), no, no)).tolist() == [7, 8]


@pytest.mark.parametrize("last", [pb.TERMINATED, pb.TRUNCATED, pb.TERMINATED | pb.TRUNCATED])
def test_statistics_do_not_leak_across_an_episodes_end(last: int) -> None:
    tracker = EpisodeTracker(1)
    rows = [
        (0.0, pb.FIRST | LEASE_START), (1.0, 0), (1.0, last),
        (0.0, pb.FIRST), (10.0, 0), (10.0, 0), (10.0, last),
    ]  # fmt: skip
    for reward, flags in rows:
        tracker.observe(
            np.zeros(1, np.int32), np.array([reward], np.float32), np.array([flags], np.uint8)
        )
    assert (tracker.episodes, tracker.env_steps, tracker.mean_return()) == (2, 5, (2 + 30) / 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_is_flat_over_a_million_steps(launch: Launcher, tmp_path: Path) -> None:
    """With streams that come and go all the while."""
    address, logdir = f"unix:{tmp_path}/s", tmp_path / "run"
    server = launch.seedbed(
        "learner",
        *options(listen=address, logdir=logdir, env="CartPole-v1", total_steps=10 * STEPS),
        *options(log_interval_seconds=0.5, checkpoint_interval_seconds=5, progress="none"),
    )
    actors = [
        launch.actor(*options(server=address, env="CartPole-v1", num_envs=8, seed=seed))
        for seed in (1, 2)
    ]

    def env_steps() -> int:
        assert server.running, server.stderr
        metrics = logdir / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        return int(json.loads(lines[-1])["env_steps"]) if lines else 0

    until(lambda: env_steps() > WARM_STEPS, "the first steps", seconds=600)
    come_and_go(address)
    before = [resident_bytes(process.pid) for process in (server, *actors)]
    streams = 0
    while env_steps() < STEPS:
        come_and_go(address)
        streams += 1
    after = [resident_bytes(process.pid) for process in (server, *actors)]
    growth = [late - early for late, early in zip(after, before, strict=True)]
    assert streams > 100
    assert growth[0] < LEARNER_GROWTH_BYTES, f"{growth} bytes over {streams} streams"
    assert max(growth[1:]) < ACTOR_GROWTH_BYTES, f"{growth} bytes"


def come_and_go(address: str) -> None:
    """Twenty sessions one after the other, that make a step each."""
    environment = gymnasium.make("CartPole-v1")
    observation, _ = environment.reset(seed=1)
    for _ in range(20):
        spaces = environment.observation_space, environment.action_space
        with InferenceClient(address, *spaces) as client:
            client.act(restart(observation))

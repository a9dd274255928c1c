"""Every step of every environment reaches the training, once and in order, as it happened."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from actor.client import InferenceClient
from actor.loop import run_actor
from actor.retry import RetryPolicy
from learner.config import LearnerOptions
from learner.experience.trajectory import Batch
from tests.fakes import Proxy
from tests.integration.scripted import ACTIONS, OBSERVATIONS, History, ScriptedEnvironments
from tests.integration.serving import ServingLearner

UNROLL_LENGTH = 4
BATCH_SIZE = 3
ROWS = 61
"""Rows that each environment sends: 15 unrolls."""


class Actor:
    """A real client and the actor's real loop, in a thread."""

    def __init__(
        self,
        address: str,
        numbers: list[int],
        *,
        on_failure: Callable[[], object],
        one_by_one: bool = False,
    ) -> None:
        self.environments = ScriptedEnvironments(numbers)
        self._on_failure = on_failure
        self._one_by_one = one_by_one
        self._client = InferenceClient(
            address,
            OBSERVATIONS,
            ACTIONS,
            num_environments=len(numbers),
            retry=RetryPolicy(give_up_seconds=20.0),
            name=f"environments {numbers}",
        )
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(20.0)
        self.check()
        assert not self._thread.is_alive(), "expected the actor to end"

    def check(self) -> None:
        """Raise what ended it, if anything did."""
        for error in self._errors:
            raise error

    def _run(self) -> None:
        try:
            with self._client as client:
                if self._one_by_one:
                    self._act_one_by_one(client)
                else:
                    run_actor(self.environments, client, stopped=self._stopped)
        except BaseException as error:  # noqa: BLE001 - `check` raises it again
            self._errors.append(error)
            self._on_failure()

    def _stopped(self) -> bool:
        return all(len(history.actions) >= ROWS for history in self.environments.histories)

    def _act_one_by_one(self, client: InferenceClient) -> None:
        """Send each environment's rows in messages of their own."""
        environments = self.environments
        timesteps = [
            type(rows)(*(leaf[i : i + 1] for leaf in rows))
            for rows in [environments.reset()]
            for i in range(environments.num_envs)
        ]
        while not self._stopped():
            for i in range(environments.num_envs):
                actions = client.act(timesteps[i], environments=[i])
                history = environments.histories[i]
                row = len(history.actions)
                assert actions.tolist() == [history.action(row, client.policy_version)]
                timesteps[i] = environments.step_some([i], actions)


@pytest.mark.parametrize("inference_threads", [1, 2])
def test_every_step_arrives_once_in_order_as_it_happened(
    inference_threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = LearnerOptions(
        unroll_length=UNROLL_LENGTH,
        batch_size=BATCH_SIZE,
        inference_threads=inference_threads,
        max_environments=10,
        inference_batch_size=4,
    )
    with ExitStack() as stack:
        serving = stack.enter_context(ServingLearner("127.0.0.1:0", tmp_path, monkeypatch, options))
        proxy = stack.enter_context(Proxy(serving.server.port))
        stop = serving.learner.stop_training
        actors = [
            Actor(serving.address, [1], on_failure=stop),
            Actor(serving.address, [2, 3], on_failure=stop),
            Actor(proxy.address, [4, 5, 6], on_failure=stop),
            Actor(serving.address, [7, 8], on_failure=stop, one_by_one=True),
        ]
        breaks = [(15, proxy.cut), (35, proxy.reset)]
        proxied = actors[2].environments.histories[0]

        def break_connection(batches: int) -> None:
            if breaks and len(proxied.actions) >= breaks[0][0]:
                breaks.pop(0)[1]()

        serving.agent.on_update = break_connection
        unrolls = 8 * ((ROWS - 1) // UNROLL_LENGTH)
        serving.train(unrolls // BATCH_SIZE)
        for actor in actors:
            actor.check()
        for actor in actors:
            actor.join()
        assert proxy.accepted >= 3, "expected the proxy's client to have come back twice"

    histories = {history.number: history for actor in actors for history in actor.environments.histories}
    assert len(histories) == 8
    check_batches(serving.agent.batches, histories)
    check_episodes(serving, list(histories.values()))


def check_batches(batches: list[Batch], histories: dict[int, History]) -> None:
    """Compare what was trained on with what happened."""
    starts: Counter[int] = Counter()
    versions: set[int] = set()
    for trained, batch in enumerate(batches):
        assert batch.reward.shape == (UNROLL_LENGTH + 1, BATCH_SIZE)
        for b in range(BATCH_SIZE):
            number = int(batch.observation[0][0, b, 0])
            check_unroll(batch, b, histories[number], starts[number])
            starts[number] += UNROLL_LENGTH
        assert batch.version.max() <= trained, "expected weights that had been published by then"
        versions.update(batch.version.ravel().tolist())
    assert set(starts) == set(histories), "expected unrolls of every environment"
    assert len(versions) > len(batches) // 2, f"expected many versions, found {versions}"


def check_unroll(batch: Batch, b: int, history: History, start: int) -> None:
    """Compare one unroll with the rows from `start` on: where the environment's last one ended."""
    rows = range(start, start + UNROLL_LENGTH + 1)
    happened = [history.rows[row] for row in rows]
    assert batch.observation[0][:, b].tolist() == [[history.number, row] for row in rows]
    assert batch.reward[:, b].tolist() == [row.reward for row in happened]
    assert batch.first[:, b].tolist() == [row.first for row in happened]
    assert batch.terminated[:, b].tolist() == [row.terminated for row in happened]
    assert batch.truncated[:, b].tolist() == [row.truncated for row in happened]
    assert batch.record["reset"][:, b].tolist() == [row.first for row in happened]
    assert len(set(batch.record["slot"][:, b].tolist())) == 1
    np.testing.assert_array_equal(batch.initial_state["sum"][b], history.memory(start))
    assert batch.record["action"][:, b].tolist() == [history.actions[row] for row in rows]
    versions = batch.version[:, b].tolist()
    assert [history.actions[row] for row in rows] == [
        history.action(row, version) for row, version in zip(rows, versions, strict=True)
    ]
    assert versions == sorted(versions)


def check_episodes(serving: ServingLearner, histories: list[History]) -> None:
    """Compare what is reported with what happened: every row that was sent was counted once."""
    sent = [history.rows[: len(history.actions)] for history in histories]
    returns = []
    for rows in sent:
        total = 0.0
        for row in rows:
            total += row.reward
            if row.terminated or row.truncated:
                returns.append(total)
                total = 0.0
    episodes = serving.learner.episodes
    assert episodes.env_steps == sum(not row.first for rows in sent for row in rows)
    assert episodes.episodes == len(returns) <= 100
    assert episodes.mean_return() == pytest.approx(sum(returns) / len(returns))

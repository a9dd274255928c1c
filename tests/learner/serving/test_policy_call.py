"""The policy call over its state tables."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from learner.experience.trajectory import ActInputs, ActOutputs, State, Tensor
from learner.experience.unrolls import RowSpec
from learner.flags import LEASE_START
from learner.graph import shared_tensor
from learner.numpy_graph import NumpyGraph
from learner.serving import policy_call
from learner.serving.batcher import InferenceBatch, Request
from learner.serving.env_state import StateTables
from learner.serving.policy_call import PolicyAnswer, PolicyFunction, bucket_sizes, efficiencies
from learner.training.weights import PublishedWeights
from protos import inference_pb2 as pb
from protos.errors import ConfigError
from protos.specs import ArraySpec
from tests.fakes import PATIENCE_SECONDS, SPEC, SumPolicy, observation
from tests.learner.experience.running import Running

SLOTS = 10
MAX_ROWS = 6


@pytest.fixture(params=["tensorflow", "numpy"])
def engine(request: pytest.FixtureRequest) -> str:
    """For tests of what both do."""
    return str(request.param)


def make_function(
    policy: SumPolicy | None = None,
    engine: str = "tensorflow",
    observation: Sequence[ArraySpec] = SPEC.observation,
    **options: Any,
) -> PolicyFunction:
    arguments = {"num_slots": SLOTS, "max_rows": MAX_ROWS, "seed": 1, "engine": engine, **options}
    return PolicyFunction(policy or SumPolicy(counts=False), observation, **arguments)


def make_batch(
    slots: list[int], numbers: list[float], flags: int | list[int] = 0, reply: Any = None
) -> InferenceBatch:
    """A batch of one request, in a buffer whose padding holds the rest of an earlier one."""
    batch = InferenceBatch(SPEC.observation, MAX_ROWS, SLOTS)
    refill(batch, list(range(MAX_ROWS)), [500.0] * MAX_ROWS)
    refill(batch, slots, numbers, flags, reply)
    return batch


def refill(
    batch: InferenceBatch,
    slots: list[int],
    numbers: list[float],
    flags: int | list[int] = 0,
    reply: Any = None,
) -> None:
    batch.clear()
    batch.add(
        Request(
            slots=np.array(slots, np.int32),
            observation=[observation(*numbers)],
            reward=np.zeros(len(slots), np.float32),
            flags=np.broadcast_to(np.array(flags, np.uint8), len(slots)),
            reply=reply or (lambda actions, version: None),
        )
    )


def act(function: PolicyFunction, slots: list[int], numbers: list[float], flags: Any = 0) -> list[int]:
    actions: list[int] = function(make_batch(slots, numbers, flags)).action.tolist()
    return actions


class EchoPolicy(SumPolicy):
    """Hands its inputs on as they are: as the action and as the memory."""

    def act(
        self, inputs: ActInputs, state: State, *, seed: Tensor, greedy: bool
    ) -> tuple[ActOutputs, State]:
        outputs, after = super().act(inputs, state, seed=seed, greedy=greedy)
        (seen,) = inputs.observation
        return ActOutputs(seen, outputs.record), {"sum": seen, "steps": after["steps"]}


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, [1]),
        (2, [1, 2]),
        (5, [1, 2, 3, 4, 5]),
        (6, [1, 2, 3, 4, 6]),
        (100, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100]),
    ],
)
def test_buckets_grow_by_half_at_most_and_end_with_the_largest(largest: int, sizes: list[int]) -> None:
    assert bucket_sizes(largest) == sizes


def test_any_seed_is_taken(engine: str) -> None:
    assert act(make_function(engine=engine, seed=2**31 + 5), [3, 1], [10, 20]) == [10, 20]


def test_each_environment_has_a_memory_of_its_own(engine: str) -> None:
    function = make_function(engine=engine)
    assert act(function, [3, 1], [10, 20]) == [10, 20]
    assert act(function, [1], [5]) == [25]
    assert act(function, [0, 1, 3], [1, 2, 3]) == [1, 27, 13]


def test_batches_are_padded_to_the_next_bucket_and_padding_shows_nowhere() -> None:
    function = make_function()
    for size, bucket in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 6)]:
        answer = function(make_batch(list(range(size)), [1.0] * size, pb.FIRST))
        assert answer.action.tolist() == [1] * size
        assert answer.record["rows"].tolist() == [bucket] * size
        assert answer.record["slot"].tolist() == list(range(size))
        assert set(answer.record) == set(function.layout.record)


def test_by_numpy_a_call_has_the_batchs_rows() -> None:
    function = make_function(engine="numpy")
    for size in (1, 5, 6):
        answer = function(make_batch(list(range(size)), [1.0] * size, pb.FIRST))
        assert answer.record["rows"].tolist() == [size] * size


def test_padding_changes_no_environments_memory(engine: str) -> None:
    function = make_function(engine=engine)
    act(function, [0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])
    for _ in range(3):
        act(function, [6, 7, 8, 9, 5], [0, 0, 0, 0, 10])  # one row of padding, with leftovers in it
    assert act(function, [0, 1, 2, 3, 4, 5], [0] * 6) == [1, 2, 3, 4, 5, 36]
    assert act(function, [6, 7, 8, 9], [0] * 4) == [0, 0, 0, 0]


@pytest.mark.parametrize("flag", [pb.FIRST, LEASE_START, pb.FIRST | LEASE_START])
def test_memory_starts_afresh_with_an_episode_and_with_a_lease(flag: int, engine: str) -> None:
    function = make_function(engine=engine)
    act(function, [0, 1], [10, 20])
    answer = function(make_batch([0, 1], [1, 2], [flag, pb.TERMINATED | pb.TRUNCATED]))
    assert answer.action.tolist() == [1, 22]
    assert answer.record["reset"].tolist() == [True, False]
    assert answer.record["steps"].tolist() == [1, 2]
    assert act(function, [0, 1], [1, 2]) == [2, 24]


def test_the_state_before_is_what_the_policy_was_handed(engine: str) -> None:
    function = make_function(engine=engine)
    act(function, [0, 1, 2], [10, 20, 30])
    first = function(make_batch([2, 0, 1], [1, 1, 1], [0, pb.FIRST, 0]))
    act(function, [0, 1, 2], [7, 7, 7])
    state = first.state_before(np.array([2, 0]))
    assert state["sum"].tolist() == [[20, 0], [30, 0]]
    assert state["steps"].tolist() == [1, 1]
    assert first.state_before(np.array([1]))["sum"].tolist() == [[0, 0]]


def test_actions_and_memory_outlive_the_batch_that_they_were_made_of(engine: str) -> None:
    """Actions are sent, and memory is read, when other rows are where the observations were."""
    function = make_function(EchoPolicy(counts=False), engine)
    batch = make_batch([3, 1], [10, 20])
    first = function(batch)
    refill(batch, [5, 6], [7, 8])
    second = function(batch)
    assert first.action[:, 0].tolist() == [10, 20]
    assert second.action[:, 0].tolist() == [7, 8]
    memory = function(make_batch([1, 5, 3], [0, 0, 0])).state_before(np.arange(3))
    assert memory["sum"][:, 0].tolist() == [20, 7, 10]


def test_a_buffers_tensors_are_made_once_for_each_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []

    def shared(array: np.ndarray) -> tf.Tensor:
        made.append(array.shape)
        return shared_tensor(array)

    monkeypatch.setattr(policy_call, "shared_tensor", shared)
    function, other = make_function(), make_function()
    batch = make_batch([3, 1], [10, 20])
    for slots, numbers in [([0, 1], [1, 2]), ([0], [3]), ([2, 0], [4, 5])]:
        refill(batch, slots, numbers)
        assert function(batch).action[-1] == other(make_batch(slots, numbers)).action[-1]
    # Of that buffer the first and the second have two rows and one, and the third none of its own.
    assert made[:2] == [(2, 2), (4, 2)]
    assert made[4:6] == [(1, 2), (4, 1)]
    assert len(made) == 10


def test_bools_are_copied_at_each_call(engine: str) -> None:
    observation = [*SPEC.observation, ArraySpec("door", (), np.dtype(np.bool_))]
    function = make_function(engine=engine, observation=observation)
    batch = InferenceBatch(observation, MAX_ROWS, SLOTS)
    batch.slots[0], batch.size = 4, 1
    for number, total in ((1, 1), (2, 3)):
        batch.observation[0][0] = number
        assert function(batch).action.tolist() == [total]
    assert not batch.inputs


def test_leaves_of_no_elements_are_no_end_of_the_process(engine: str) -> None:
    observation = [*SPEC.observation, ArraySpec("nothing", (0,), np.dtype(np.float32))]
    function = make_function(engine=engine, observation=observation)
    batch = InferenceBatch(observation, MAX_ROWS, SLOTS)
    batch.slots[0], batch.size = 4, 1
    batch.observation[0][0] = 3
    assert function(batch).action.tolist() == [3]


def test_greedy_reaches_the_policy(engine: str) -> None:
    assert act(make_function(engine=engine), [0], [5]) == [5]
    assert act(make_function(engine=engine, greedy=True), [0], [5]) == [1005]


def test_the_policys_variables_are_read_at_each_call() -> None:
    policy = SumPolicy()
    function = make_function(policy)
    assert act(function, [0], [5], pb.FIRST) == [5]
    policy.offset.assign(100)
    assert act(function, [0], [5], pb.FIRST) == [105]


def test_one_trace_serves_every_size_and_each_bucket_is_warmed() -> None:
    policy = SumPolicy(counts=True)
    function = make_function(policy)
    function.warm_up(InferenceBatch(SPEC.observation, MAX_ROWS, SLOTS))
    # And once more, to be timed.
    assert policy.calls.numpy() == 2 * len(bucket_sizes(MAX_ROWS))
    for size in range(1, MAX_ROWS + 1):
        act(function, list(range(size)), [1.0] * size)
    assert policy.traces == 1


def test_warming_up_touches_no_environments_memory(engine: str) -> None:
    function = make_function(engine=engine)
    batch = make_batch([0], [700])
    batch.clear()
    function.warm_up(batch)
    assert act(function, list(range(6)), [1] * 6) == [1] * 6


def test_efficiency_is_the_part_of_the_best_calls_rows_a_second() -> None:
    # 1 ms a call and 1 ms a row: 1/2, 2/3 and 4/5 of a row in a millisecond. 3 rows are padded to 4.
    seconds = {1: 2e-3, 2: 3e-3, 4: 5e-3}
    padded = [0, 1 / 2 / 0.8, 2 / 3 / 0.8, 3 / 5 / 0.8, 1]
    assert efficiencies(seconds, 4, padded=True) == pytest.approx(padded)
    # And 3/4, where they take 4 ms.
    assert efficiencies(seconds, 4, padded=False) == pytest.approx([*padded[:3], 3 / 4 / 0.8, 1])


def test_calls_that_are_not_padded_are_as_efficient_one_row_above_a_bucket() -> None:
    seconds = {size: size * 1e-6 for size in bucket_sizes(1024)}
    assert efficiencies(seconds, 1024, padded=False) == pytest.approx([0] + [1] * 1024)
    assert efficiencies(seconds, 1024, padded=True)[193] == pytest.approx(193 / 256)


@pytest.mark.parametrize("padded", [True, False])
def test_noise_makes_no_larger_call_quicker(padded: bool) -> None:
    # The second was measured while nobody disturbed it.
    assert efficiencies({1: 3e-3, 2: 2e-3}, 2, padded=padded) == pytest.approx([0, 1 / 2, 1])
    assert efficiencies({1: 0.0}, 1, padded=padded) == [0, 1]
    # And the third here, which says nothing of what lies between.
    assert efficiencies({1: 3e-3, 2: 6e-3, 4: 4e-3}, 4, padded=padded)[3] == pytest.approx(3 / 4)


def test_only_tensorflows_calls_are_padded(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_call, "efficiencies", lambda seconds, largest, *, padded: [padded])
    function = make_function(engine=engine)
    function.warm_up(InferenceBatch(SPEC.observation, MAX_ROWS, SLOTS))
    assert function.efficiency == [engine == "tensorflow"]


def test_calls_of_one_size_are_efficient(engine: str) -> None:
    function = make_function(engine=engine, max_rows=1)
    function.warm_up(InferenceBatch(SPEC.observation, 1, SLOTS))
    assert function.efficiency == [0, 1]


def test_warming_takes_no_seeds(engine: str) -> None:
    function = make_function(engine=engine)
    function.warm_up(InferenceBatch(SPEC.observation, MAX_ROWS, SLOTS))
    answer = function(make_batch([0], [1]))
    assert answer.record["seed"][0].tolist() == [1, 0]


def test_seeds_differ_by_call_and_repeat_by_run(engine: str) -> None:
    def seeds(seed: int) -> list[list[int]]:
        function = make_function(engine=engine, seed=seed)
        return [function(make_batch([0], [1])).record["seed"][0].tolist() for _ in range(3)]

    first, second, third = seeds(4)
    assert first != second != third != first
    assert seeds(4) == [first, second, third]
    assert seeds(5) != [first, second, third]


def test_a_resumed_run_goes_on_with_the_next_seed(engine: str) -> None:
    function, resumed = make_function(engine=engine), make_function(engine=engine)
    first, second = (function(make_batch([0], [1])).record["seed"].tolist() for _ in range(2))
    resumed.number_from(1)
    assert resumed(make_batch([0], [1])).record["seed"].tolist() == second != first
    assert resumed.calls == function.calls == 2


def test_the_layout_describes_what_is_stored(engine: str) -> None:
    layout = make_function(engine=engine).layout
    assert layout.observation == SPEC.observation
    assert layout.record == {
        "slot": RowSpec((), np.dtype(np.int32)),
        "reset": RowSpec((), np.dtype(bool)),
        "steps": RowSpec((), np.dtype(np.int32)),
        "rows": RowSpec((), np.dtype(np.int32)),
        "seed": RowSpec((2,), np.dtype(np.int32)),
    }
    assert layout.state == {
        "sum": RowSpec((2,), np.dtype(np.float32)),
        "steps": RowSpec((), np.dtype(np.int32)),
    }


def test_tables_hold_any_shape_and_dtype_and_zero_the_reset_rows() -> None:
    specs = {
        "frames": tf.TensorSpec((2, 3), tf.uint8),
        "done": tf.TensorSpec((), tf.bool),
        "core": tf.TensorSpec((1,), tf.float16),
    }
    tables = StateTables(specs, 4)  # rows of 4 slots, and the scratch slot 4
    stored = {
        "frames": tf.fill((2, 2, 3), tf.constant(9, tf.uint8)),
        "done": tf.constant([True, True]),
        "core": tf.constant([[0.5], [1.5]], tf.float16),
    }
    tables.scatter(tf.constant([3, 4]), stored)
    state = tables.gather(tf.constant([4, 3, 3, 0]), tf.constant([False, True, False, False]))
    assert state["frames"].numpy()[:, 0, 0].tolist() == [9, 0, 9, 0]
    assert state["done"].numpy().tolist() == [True, False, True, False]
    assert state["core"].numpy()[:, 0].tolist() == [1.5, 0, 0.5, 0]
    assert {name: value.dtype for name, value in state.items()} == {
        name: spec.dtype for name, spec in specs.items()
    }


def test_two_threads_never_use_a_seed_twice(engine: str) -> None:
    """Calls of two threads that overlap: each reads its seed while the other is in the middle."""
    function = make_function(engine=engine)
    both = threading.Barrier(2)

    def seeds() -> list[int]:
        batch = make_batch([0], [1])
        both.wait()
        return [int(function(batch).record["seed"][0, 1]) for _ in range(200)]

    threads = [Running(seeds) for _ in range(2)]
    found = [thread.result() for thread in threads]
    assert len({*found[0], *found[1]}) == 400


@contextmanager
def announced(lock: AbstractContextManager[Any], asked: threading.Event) -> Iterator[None]:
    """The lock, for once; and an event when somebody wants it."""
    asked.set()
    with lock:
        yield


def test_numpy_computes_one_call_after_another_each_with_the_weights_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of a call, weights are published, and another thread's call begins."""
    policy = SumPolicy(counts=False)
    weights = PublishedWeights(lambda: policy.offset.assign(100))
    function = make_function(policy, "numpy", weights=weights)
    compute, lock, settled = NumpyGraph.__call__, function._lock, threading.Event()
    others: list[Running[PolicyAnswer]] = []

    def other() -> PolicyAnswer:
        try:
            return function(make_batch([3], [5]))
        finally:
            settled.set()

    def interrupted(graph: NumpyGraph, *inputs: np.ndarray) -> dict[str, np.ndarray]:
        monkeypatch.setattr(NumpyGraph, "__call__", compute)
        monkeypatch.setattr(function, "_lock", announced(lock, settled))
        weights.publish(1)
        others.append(Running(other))
        # It either waits for this call's end, or has overtaken it.
        assert settled.wait(PATIENCE_SECONDS)
        return compute(graph, *inputs)

    monkeypatch.setattr(NumpyGraph, "__call__", interrupted)
    first = function(make_batch([3], [10]))
    second = others[0].result()
    assert (first.action.tolist(), first.version) == ([10], 0)
    assert (second.action.tolist(), second.version) == ([115], 1)


def test_seeds_are_numbered_on_the_host_at_each_call(engine: str) -> None:
    """By a variable in the graph, two threads could read one value before either has counted."""
    function = make_function(engine=engine)
    batches = [make_batch([0], [1]) for _ in range(3)]
    function(batches[0])
    function(batches[2])
    function(batches[1])
    assert [int(batch.rows[3, 0]) for batch in batches] == [0, 2, 1]


def test_seeds_stay_within_their_dtype(engine: str) -> None:
    batch = make_batch([0], [1])
    batch.set_call(2**31 + 5)
    assert batch.rows[3, 0] == 5
    assert make_function(engine=engine)(batch).action.tolist() == [1]


def test_numpy_says_what_it_cannot_compute() -> None:
    with pytest.raises(ConfigError) as error:
        make_function(SumPolicy(counts=True), engine="numpy")
    assert str(error.value) == (
        "--policy-engine numpy: only TensorFlow computes some operations of this policy "
        "(AssignAddVariableOp): say auto or tensorflow"
    )


def test_numpy_is_chosen_for_small_policies_it_can_compute() -> None:
    assert make_function(engine="auto").by_numpy
    assert not make_function(engine="tensorflow").by_numpy
    assert not make_function(SumPolicy(counts=True), engine="auto").by_numpy

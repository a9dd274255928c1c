"""Traced functions, computed by NumPy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from learner.graph import Graph
from learner.numpy_graph import NumpyGraph, UnsupportedGraph, Work

MATRIX = tf.TensorSpec((None, 4), tf.float32)
NUMBERS = tf.TensorSpec((None,), tf.int32)
UNKNOWN = tf.TensorSpec(None, tf.float32)
SCALAR = tf.TensorSpec((), tf.float32)

Outputs = dict[str, Any]


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


def check(
    function: Callable[..., Outputs], specs: Sequence[tf.TensorSpec], *calls: Sequence[np.ndarray]
) -> None:
    """Both compute the same, at every call, and the inputs stay as they were."""
    graph = Graph(function, *specs)
    numpy = NumpyGraph(graph)
    for inputs in calls:
        given = [np.array(each) for each in inputs]
        found = numpy(*given)
        expected = graph(*(tf.constant(each) for each in inputs))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value.numpy(), 1e-5, 1e-6)
            assert found[name].dtype == value.dtype
        for before, after in zip(inputs, given, strict=True):
            np.testing.assert_array_equal(before, after)


def refused(function: Callable[..., Outputs], *specs: tf.TensorSpec) -> set[str]:
    """What it is refused for."""
    with pytest.raises(UnsupportedGraph) as error:
        NumpyGraph(Graph(function, *specs))
    return set(str(error.value).split(", "))


# Memory -----------------------------------------------------------------------------------------


def fresh(x: Any) -> Any:
    """What an operation's result may take the place of."""
    return 2.0 * x + 1.0


def reshaped_and_used(x: Any) -> Outputs:
    y = fresh(x)
    view = tf.reshape(y, [-1, 2])
    return {"y": tf.exp(y), "view": view, "sum": view + 1.0}


def split_and_used(x: Any) -> Outputs:
    first, second = tf.split(fresh(x), 2, -1)
    return {"a": first * second, "b": first - 1.0, "c": second}


def sliced_and_used(x: Any) -> Outputs:
    y = fresh(x)
    part = y[:, 1:3]
    changed = -part
    return {"y": y, "changed": tf.exp(changed), "part": part, "first": y[0] * 3.0}


def constant_first(x: Any) -> Outputs:
    folded = tf.exp(tf.constant([1.0, 2, 3, 4])) * 2.0
    return {"y": folded * x, "z": tf.constant(3.0) - folded, "w": tf.tanh(folded)}


def constant_drawn(x: Any) -> Outputs:
    noise = tf.random.stateless_uniform([4], [1, 2])
    # Other numbers than TensorFlow's, but always the same.
    return {"zero": (noise - noise) * x, "also": noise * 1.0 - noise}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: {"y": fresh(x) * fresh(x), "z": fresh(fresh(x))},
        lambda x: {"y": (y := fresh(x)), "z": tf.exp(y)},
        lambda x: {"y": (y := fresh(x)) * y, "z": -y},
        lambda x: {"y": (y := fresh(x)) * y},
        lambda x: {"y": tf.exp(y := fresh(x)), "z": tf.tanh(y)},
        lambda x: {"y": tf.identity(y := fresh(x)), "z": -y},
        lambda x: {"y": -tf.identity(fresh(x)), "z": -x},
        lambda x: {"y": (y := fresh(x)) - tf.transpose(tf.transpose(y))},
        lambda x: {"y": x @ tf.ones((4, 4)) + 1.0, "z": tf.exp(x @ tf.ones((4, 2)))},
        lambda x: {"y": fresh(x) > 0.0, "z": ~(fresh(x) > 1.0)},
        lambda x: {"y": tf.exp(fresh(tf.stop_gradient(x))), "x": x},
        reshaped_and_used,
        split_and_used,
        sliced_and_used,
        constant_first,
        constant_drawn,
    ],
)
def test_nothing_that_is_still_used_is_overwritten(function: Callable[..., Outputs]) -> None:
    check(function, [MATRIX], [rows(3)], [rows(3, 1)], [rows(1)])


def test_what_grows_at_run_time_is_not_written_in_place() -> None:
    specs = [tf.TensorSpec((None, None), tf.float32)] * 2
    column, row = np.ones((3, 1), np.float32), rows(1)
    check(
        lambda x, y: {"y": fresh(x) + y, "z": fresh(y) + x},
        specs,
        (column, row),
        (row, column),
        (row, row),
    )
    check(lambda x: {"y": fresh(x) + tf.ones((5, 4))}, [MATRIX], [rows(1)], [rows(5)])
    check(lambda x: {"y": fresh(x) + tf.ones((0, 4))}, [MATRIX], [rows(1)], [rows(0)])
    check(lambda x: {"y": fresh(x)[..., :1] + tf.ones(4)}, [MATRIX], [rows(3)])


def test_scalars_and_unknown_ranks_are_computed() -> None:
    check(lambda x: {"y": tf.tanh(fresh(x)) * 3.0}, [SCALAR], [np.float32(2)])
    check(lambda x: {"y": tf.exp(fresh(tf.reduce_sum(x)))}, [MATRIX], [rows(2) / 8])
    check(lambda x: {"y": tf.tanh(fresh(x)) * 3.0}, [UNKNOWN], [rows(3)], [rows(3)[0]], [np.float32(2)])


def test_outputs_of_a_call_outlive_the_next() -> None:
    numpy = NumpyGraph(Graph(lambda x: {"y": tf.exp(fresh(x))}, MATRIX))
    first = numpy(rows(3))["y"]
    kept = first.copy()
    numpy(rows(3, 1))
    np.testing.assert_array_equal(first, kept)


# Structure --------------------------------------------------------------------------------------


def test_outputs_may_be_inputs_or_constants_or_what_was_captured() -> None:
    captured = tf.constant([3.0, 4.0])
    check(
        lambda x, i: {
            "i": i,
            "x": x,
            "same": x,
            "one": tf.constant(1),
            "c": captured,
            "d": captured + 1.0,
        },
        [MATRIX, NUMBERS],
        (rows(2), np.array([5, 6], np.int32)),
    )


def test_inputs_may_be_unused_and_outputs_are_named_in_any_order() -> None:
    check(
        lambda x, _, z: {"b": x - z, "a": z - x, "C": x, "record/ü'": x * z},
        [MATRIX] * 3,
        [rows(2, seed) for seed in range(3)],
    )


def test_constants_that_are_no_numbers_are_folded_without_a_warning() -> None:
    largest = tf.constant([2**31 - 1])
    check(
        lambda x: {
            "inf": x + tf.math.log(tf.constant(0.0)),
            "nan": tf.sqrt(tf.constant(-1.0)) * x,
            "over": tf.exp(tf.constant(1000.0)) * x,
            "wraps": largest[0] + 1 + tf.constant(2**31 - 1),
        },
        [MATRIX],
        [rows(2)],
    )


def work_of_a_row(function: Callable[..., Outputs], *specs: tf.TensorSpec) -> Work:
    graph = NumpyGraph(Graph(function, *specs))
    one, two, nine = (graph.work(count) for count in (1, 2, 9))
    row = Work(*(after - before for after, before in zip(two, one, strict=True)))
    # As much for each.
    assert nine == Work(*(first + 8 * more for first, more in zip(one, row, strict=True)))
    return row


def test_multiply_adds_are_those_of_a_row() -> None:
    several, turned = tf.ones((2, 8, 3)), tf.ones((8, 4))
    # The last is of matrices that do not depend on how many rows there are.
    work = work_of_a_row(
        lambda x: {"y": x @ tf.ones((4, 8)) @ several, "z": tf.ones((2, 4)) @ x[0][:, None]}, MATRIX
    )
    assert work == Work(4 * 8 + 2 * 8 * 3, 0)
    work = work_of_a_row(lambda x: {"y": tf.matmul(x, turned, transpose_b=True)}, MATRIX)
    assert work == Work(4 * 8, 0)


ENTITIES = tf.TensorSpec((None, 32, 16), tf.float32)
PRODUCT = 32 * 16 * 512


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.tanh(x @ tf.ones((16, 512))),
        # As layers of Keras have it.
        lambda x: tf.tanh(tf.tensordot(x, tf.ones((16, 512)), 1)),
        # Their number is known nowhere, or stands where rows do.
        lambda x: tf.tanh(tf.reshape(x, [-1, 16]) @ tf.ones((16, 512))),
        lambda x: tf.tanh(tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0)) @ tf.ones((16, 512))),
        lambda x: tf.tanh(tf.transpose(x, [1, 0, 2]) @ tf.ones((16, 512))),
        lambda x: tf.tanh(tf.transpose(x, [1, 0, 2]) @ tf.ones((32, 16, 512))),
    ],
)
def test_a_row_of_many_entities_takes_what_each_of_them_does(function: Callable[..., Any]) -> None:
    work = work_of_a_row(lambda x: {"y": function(x)}, ENTITIES)
    assert work == Work(PRODUCT, 32 * 512)


def test_elements_are_those_that_a_row_makes_anew() -> None:
    work = work_of_a_row(lambda x: {"y": tf.reshape(tf.tanh(x), [-1, 2, 2]), "z": x[:, 1]}, MATRIX)
    assert work == Work(0, 4)
    several = work_of_a_row(lambda x: {"y": tf.unstack(x, axis=1)[2] + 1.0}, MATRIX)
    assert several == Work(0, 4 + 1)
    once = work_of_a_row(lambda x: {"y": tf.exp(tf.ones(8) * x[0, 0])}, MATRIX)
    assert once == Work(0, 0)


def test_inputs_of_any_rank_can_be_counted_too() -> None:
    graph = NumpyGraph(Graph(lambda x: {"y": tf.exp(x)}, UNKNOWN))
    assert graph.work(3) == Work(0, 1)


def test_counting_changes_no_variable() -> None:
    table = tf.Variable(tf.zeros((4, 2)))
    numpy = NumpyGraph(Graph(counting(table), NUMBERS))
    assert numpy.work(2).elements > numpy.work(1).elements
    assert (numpy(np.array([0], np.int32))["before"] == 0).all()


def test_what_an_operation_did_not_change_is_not_overwritten() -> None:
    graph = Graph(lambda x: {"y": tf.minimum((x + 0.0) * 1.0, 0.5)}, MATRIX)
    x = np.ones((3, 4), np.float32)
    assert NumpyGraph(graph)(x)["y"].max() == 0.5
    assert x.min() == 1, "the input is the caller's"


# Variables --------------------------------------------------------------------------------------


def test_variables_are_read_at_a_refresh_alone() -> None:
    weight, never = tf.Variable(2.0), tf.Variable([1.0, 2.0, 3.0, 4.0])
    graph = Graph(lambda x: {"y": weight * x, "z": never * weight, "w": weight + 0.0}, MATRIX)
    numpy = NumpyGraph(graph)
    x = rows(2)
    weight.assign(5.0)
    assert numpy(x)["w"] == 2
    np.testing.assert_allclose(numpy(x)["y"], 2 * x)
    numpy.use(numpy.present_weights())
    np.testing.assert_allclose(numpy(x)["y"], 5 * x)
    np.testing.assert_allclose(numpy(x)["z"], [5, 10, 15, 20])


def test_results_never_take_a_variables_place() -> None:
    weight = tf.Variable([1.0, 2.0, 3.0, 4.0])
    table = tf.Variable(tf.ones((3, 4)))
    check(
        lambda i: {
            "a": tf.exp(-(weight * 2.0)),
            "b": -weight,
            "c": -tf.gather(table, i),
            "d": tf.exp(tf.gather(table, i) + weight),
        },
        [NUMBERS],
        *[[np.array([0, 2], np.int32)]] * 3,
    )


def counting(table: tf.Variable) -> Callable[..., Outputs]:
    def count(slots: Any) -> Outputs:
        before = tf.gather(table, slots)
        table.scatter_update(tf.IndexedSlices(before + 1.0, slots))
        return {"before": before, "all": table * 1.0, "read": tf.convert_to_tensor(table)}

    return count


def test_variables_that_are_written_are_its_own() -> None:
    table, twin = tf.Variable(tf.zeros((4, 2))), tf.Variable(tf.zeros((4, 2)))
    numpy, graph = NumpyGraph(Graph(counting(table), NUMBERS)), Graph(counting(twin), NUMBERS)
    table.assign(tf.fill((4, 2), 100.0))
    kept = []
    for slots in ([0, 2], [2], [], [1, 2, 3]):
        numpy.use(numpy.present_weights())
        index = np.array(slots, np.int32)
        found, expected = numpy(index), graph(tf.constant(index))
        kept.append((found, {name: value.numpy() for name, value in expected.items()}))
    for found, numbers in kept:
        for name, value in numbers.items():
            np.testing.assert_array_equal(found[name], value)
    assert (table.numpy() == 100).all()


def test_a_variable_may_be_written_and_never_read() -> None:
    table = tf.Variable(tf.zeros((4, 4)))

    def write(slots: Any, x: Any) -> Outputs:
        table.scatter_update(tf.IndexedSlices(x, slots))
        return {"y": x + 1.0}

    check(write, [NUMBERS, MATRIX], (np.array([1, 3], np.int32), rows(2)))


# What only TensorFlow does ----------------------------------------------------------------------


@tf.function
def nested_square(x: Any) -> Any:
    return x * x


def test_side_effects_are_never_dropped() -> None:
    counter = tf.Variable(0.0)

    @tf.function
    def counting_inside(x: Any) -> Any:
        counter.assign_add(1.0)
        return x

    def effects(x: Any) -> dict[str, Callable[[], Any]]:
        return {
            "AssignAddVariableOp": lambda: counter.assign_add(1.0),
            "AssignVariableOp": lambda: counter.assign(x[0, 0]),
            "PrintV2": lambda: tf.print(x),
            "Assert": lambda: tf.debugging.assert_equal(tf.shape(x)[0], 3),
            "StatefulPartitionedCall": lambda: counting_inside(x),
            "If": lambda: tf.cond(x[0, 0] > 0, lambda: counter.assign_add(1.0), lambda: counter + 0.0),
            "PyFunc": lambda: tf.numpy_function(lambda y: y, [x], tf.float32),
        }

    for name in effects(np.ones((1, 1))):

        def function(x: Any, name: str = name) -> Outputs:
            effects(x)[name]()
            return {"y": x + 1.0}

        assert any(each.startswith(name) for each in refused(function, MATRIX))
        assert counter.numpy() == 0


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("StatelessIf", lambda x: {"y": tf.cond(x[0, 0] > 0, lambda: x, lambda: -x)}),
        (
            "StatelessWhile",
            lambda x: {"y": tf.while_loop(lambda y: y[0, 0] < 9, lambda y: (2 * y,), [x])[0]},
        ),
        ("PartitionedCall", lambda x: {"y": nested_square(x)}),
        ("RandomUniform", lambda x: {"y": x * tf.random.uniform([4])}),
        ("CheckNumerics", lambda x: {"y": tf.debugging.check_numerics(x, "x")}),
    ],
)
def test_control_flow_and_functions_within_are_refused(
    name: str, function: Callable[..., Outputs]
) -> None:
    assert name in refused(function, MATRIX)


def test_every_operation_that_is_missing_is_named() -> None:
    def function(x: Any) -> Outputs:
        return {"y": tf.math.erf(x), "z": tf.math.lgamma(x), "w": tf.math.erf(-x)}

    assert refused(function, MATRIX) == {"Erf", "Lgamma"}


def test_dtypes_that_numpy_has_not_are_refused_by_name() -> None:
    brain, text = tf.TensorSpec((None,), tf.bfloat16), tf.TensorSpec((None,), tf.string)
    assert refused(lambda x: {"y": x}, brain) == {"Identity of bfloat16"}
    assert refused(lambda x: {"y": x + x}, brain) >= {"AddV2 of bfloat16"}
    assert refused(lambda x: {"y": tf.cast(x, tf.float32)}, brain) == {"Cast of bfloat16"}
    assert refused(lambda x: {"y": x == "a"}, text) >= {"Equal of string"}
    assert refused(lambda x: {"y": tf.constant("a")}, MATRIX) >= {"Const of string"}
    assert refused(lambda x: {"y": tf.math.real(x)}, tf.TensorSpec((2,), tf.complex64)) == {
        "Real of complex64"
    }
    weight = tf.Variable(tf.ones(4, tf.bfloat16))
    assert "ReadVariableOp of bfloat16" in refused(
        lambda x: {"y": tf.cast(weight, tf.float32) + x}, MATRIX
    )
    captured = tf.constant(["a", "b"])
    assert refused(lambda x: {"y": captured}, MATRIX) >= {"Identity of string"}

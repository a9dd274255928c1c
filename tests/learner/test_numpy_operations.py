"""Every operation that NumPy computes, compared with TensorFlow's on random inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from learner import numpy_operations
from learner.graph import Graph
from learner.numpy_graph import NumpyGraph, UnsupportedGraph

raw = tf.raw_ops
RNG = np.random.default_rng(0)
ROWS = 6
FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int32", "int64"]
TOLERANCE = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-12}


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def integers(*shape: int, dtype: str = "int32", low: int = 0, high: int = 5) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> np.ndarray:
    return RNG.random(shape) < 0.5


EXTREME = np.array(
    [[np.inf, -np.inf, np.nan, 0.0], [1000, -1000, 1, -1], [1e-30, -1e-30, 1e30, -1e30]] * 2, np.float32
)


class Case(NamedTuple):
    operation: str
    function: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    sizes: tuple[int, ...] = (ROWS, 1, 0)
    """of the leading dimension, which the graph does not know; () if it knows all"""


CASES: list[Case] = []


def case(operation: str, function: Callable[..., Any], *inputs: np.ndarray, **sizes: Any) -> None:
    CASES.append(Case(operation, function, inputs, **sizes))


def elementwise(name: str, *inputs: np.ndarray) -> None:
    parameters = ["features"] if name in ("Relu", "Relu6", "Softplus") else ["x", "y"]
    case(name, lambda *x: getattr(raw, name)(**dict(zip(parameters, x, strict=False))), *inputs)


for name in (
    "Exp",
    "Expm1",
    "Log",
    "Log1p",
    "Neg",
    "Relu",
    "Relu6",
    "Rsqrt",
    "Sigmoid",
    "Softplus",
    "Sqrt",
):
    for dtype in FLOATS:
        elementwise(name, normal(ROWS, 4, dtype=dtype))
    elementwise(name, EXTREME)
for name in ("Square", "Tanh", "ZerosLike"):
    elementwise(name, normal(ROWS, 4))
    elementwise(name, EXTREME)
for dtype in ("int32", "int64"):
    for name in ("Neg", "Square", "ZerosLike"):
        elementwise(name, integers(ROWS, 3, dtype=dtype, low=-9))
for name in ("AddV2", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "Maximum", "Minimum"):
    for dtype in FLOATS:
        elementwise(name, normal(ROWS, 4, dtype=dtype), normal(ROWS, 4, dtype=dtype))
    for dtype in INTEGERS:
        elementwise(name, integers(ROWS, 4, dtype=dtype), integers(ROWS, 4, dtype=dtype))
    elementwise(name, EXTREME, EXTREME[:, ::-1])
for name in ("Mul", "NotEqual", "Sub"):
    # Overflow wraps.
    for dtype in ("float32", *INTEGERS):
        elementwise(name, integers(ROWS, 4, dtype=dtype, high=120), integers(ROWS, 4, dtype=dtype))
    elementwise(name, EXTREME, EXTREME[:, ::-1])
for name in ("AddV2", "Mul", "RealDiv"):
    elementwise(name, normal(ROWS, 4), normal(ROWS, 1))
    elementwise(name, EXTREME, EXTREME[:, ::-1])
for dtype in ("int32", "uint8"):
    elementwise("BitwiseAnd", integers(ROWS, dtype=dtype), integers(ROWS, dtype=dtype))
for name in ("LogicalAnd", "LogicalOr"):
    elementwise(name, bools(ROWS, 3), bools(ROWS, 3))
elementwise("LogicalNot", bools(ROWS))
case("Mul", lambda x: x * 2**30, integers(ROWS, low=-9))
case("BiasAdd", lambda x: tf.nn.bias_add(x, [1.0, 2, 3, 4]), normal(ROWS, 4))
case("FloorMod", lambda x: x % 3, integers(ROWS, low=-9))
case("FloorMod", lambda x: x % -3, integers(ROWS, low=-9))
case("FloorMod", lambda x: x % 0.7, normal(ROWS, 4))
for name in ("Identity", "PreventGradient", "StopGradient"):
    case(name, lambda x, name=name: getattr(raw, name)(input=x), normal(ROWS, 2))

# Shapes of arrays.
for before in ("bool", "uint8", "int32", "int64", "float16", "float32"):
    for after in ("bool", "uint8", "int32", "int64", "float16", "float32"):
        if before != after:
            case("Cast", lambda x, to=after: tf.cast(x, to), integers(ROWS, 2, dtype=before))
case("Cast", lambda x: tf.cast(x, tf.int32), normal(ROWS, 4) * 10)
case("Cast", lambda x: tf.cast(x, tf.bool), EXTREME)
case("Cast", lambda x: tf.cast(x, tf.int32), integers(ROWS, dtype="int64", low=2**31, high=2**40))
case("Bitcast", lambda x: tf.bitcast(x, tf.float32), integers(ROWS))
case("Bitcast", lambda x: tf.bitcast(x[:, 1], tf.int32), normal(ROWS, 4))
case("Reshape", lambda x: tf.reshape(x, [-1, 2, 3]), normal(ROWS, 6))
case("Reshape", lambda x: tf.reshape(tf.transpose(x), [-1, 3]), normal(ROWS, 6))
case("Reshape", lambda x: tf.reshape(x, tf.concat([tf.shape(x)[:1], [3, 2]], 0)), normal(ROWS, 6))
case("BroadcastTo", lambda x: tf.broadcast_to([1.0, 2], [tf.shape(x)[0], 2]), normal(ROWS))
for axis in (0, 1, -1):
    case("ExpandDims", lambda x, a=axis: tf.expand_dims(x, a), normal(ROWS, 2))
case("Squeeze", lambda x: tf.squeeze(x, [1, -1]), normal(ROWS, 1, 2, 1))
case("Squeeze", tf.squeeze, normal(2, 1, 3, 1), sizes=())
for order in ([1, 0, 2], [2, 1, 0]):
    case("Transpose", lambda x, order=order: tf.transpose(x, order), normal(ROWS, 2, 3))
for axis in (0, 1, -1):
    case("Pack", lambda x, y, a=axis: tf.stack([x, y], a), normal(ROWS, 2), normal(ROWS, 2))
    case("ConcatV2", lambda x, y, a=axis: tf.concat([x, y], a), normal(ROWS, 2), normal(ROWS, 2))
case("Pack", lambda x: tf.stack([tf.shape(x)[0], 3]), normal(ROWS))
for axis, count in ((1, 3), (-1, 2), (-1, 1), (1, 1)):
    shape = (ROWS, 3, 2) if count > 1 else (ROWS, 1)
    case("Unpack", lambda x, a=axis: tf.unstack(x, axis=a), normal(*shape))
    case("Split", lambda x, a=axis, n=count: tf.split(x, n, a), normal(*shape))
case("Unpack", tf.unstack, normal(2, 3), sizes=())
case("Unpack", tf.unstack, normal(1, 3), sizes=())
SLICES: list[Callable[[Any], Any]] = [
    lambda x: x[:, 1], lambda x: x[:, -1], lambda x: x[..., 0], lambda x: x[:, None, 1:],
    lambda x: x[:, ::-1], lambda x: x[:, 2:0:-1], lambda x: x[::2], lambda x: x[1:],
    lambda x: x[:-1, 1, None], lambda x: x[..., None], lambda x: x[:, 1, :2], lambda x: x[:, -2:, ...],
    lambda x: x[None, ..., 1:2],
]  # fmt: skip
for part in SLICES:
    case("StridedSlice", part, normal(ROWS, 3, 4))
case("StridedSlice", lambda x: x[3, 0], normal(ROWS, 4), sizes=(ROWS,))
for axis in (0, 1, -1):
    case("GatherV2", lambda x, a=axis: tf.gather(x, [2, 0], axis=a), normal(ROWS, 3), sizes=(ROWS,))
case("GatherV2", lambda i: tf.gather([[1.0, 2], [3, 4]], i), integers(ROWS, 2, high=2))
for dtype in ("uint8", "int32", "int64"):
    case("OneHot", lambda i: tf.one_hot(i, 4), integers(ROWS, 2, dtype=dtype, high=6))
case("OneHot", lambda i: tf.one_hot(i, 4, True, False), integers(ROWS, low=-3))
case("Fill", lambda x: tf.fill(tf.shape(x), x[0, 0]), normal(ROWS, 3), sizes=(ROWS, 1))
case("Fill", lambda x: tf.fill(tf.shape(x), tf.constant(7, tf.uint8)), normal(ROWS, 3))
for dtype in ("int32", "int64"):
    # TensorFlow itself fails where a shape alone is an output.
    case("Shape", lambda x, to=dtype: 2 * tf.shape(x, to), normal(ROWS, 3))
    case("Size", lambda x, to=dtype: tf.size(x, to), normal(ROWS, 3))
case("GatherV2", lambda x, i: tf.gather(x, i, batch_dims=1), normal(ROWS, 3), integers(ROWS, high=3))
case(
    "Select",
    lambda c, x, y: raw.Select(condition=c, x=x, y=y),
    *(bools(ROWS, 3), normal(ROWS, 3), normal(ROWS, 3)),
)
case("SelectV2", tf.where, bools(ROWS, 1), normal(ROWS, 3), normal(ROWS, 3))
case("SelectV2", lambda c, x: tf.where(c, 5, x), bools(ROWS), integers(ROWS))

# Numbers.
for across_a, across_b in ((False, False), (True, False), (False, True), (True, True)):
    case(
        "MatMul",
        lambda a, b, ta=across_a, tb=across_b: tf.matmul(a, b, ta, tb),
        normal(*((4, 6) if across_a else (6, 4))),
        normal(*((3, 4) if across_b else (4, 3))),
        sizes=(),
    )
case("MatMul", lambda x: x @ tf.ones((4, 3)), normal(ROWS, 4))
case("BatchMatMulV2", lambda x: x @ tf.ones((2, 4, 3)), normal(ROWS, 2, 5, 4))
case("BatchMatMulV2", lambda x: x[None] @ tf.ones((2, 4, 3)), normal(ROWS, 4))
for dtype in ("int32", "int64"):
    case("ArgMax", lambda x, to=dtype: tf.argmax(x, -1, to), normal(ROWS, 4))
    case("ArgMax", lambda x, to=dtype: tf.argmax(x, 1, to), integers(ROWS, 9, high=3))
case("ArgMax", lambda x: tf.argmax(x, 0), integers(ROWS, 3, high=3), sizes=(ROWS, 1))
for operation, reduce in {
    "Max": tf.reduce_max, "Min": tf.reduce_min, "Prod": tf.reduce_prod, "Sum": tf.reduce_sum,
}.items():  # fmt: skip
    for axes in (None, 0, 1, -1, (0, -1), ()):
        for keep in (False, True):
            for value in (normal(ROWS, 3, 2), integers(ROWS, 3, 2, dtype="int8", low=-9)):
                case(operation, lambda x, r=reduce, a=axes, k=keep: r(x, a, k), value)
    case(operation, lambda x, r=reduce: r(x, -1), EXTREME)
for axes in (None, 0, -1, (0, 1)):
    case("Mean", lambda x, a=axes: tf.reduce_mean(x, a, keepdims=True), normal(ROWS, 3))
    case("Mean", lambda x, a=axes: tf.reduce_mean(x, a), normal(ROWS, 3, dtype="float64"))
for operation, softmax in {"LogSoftmax": tf.nn.log_softmax, "Softmax": tf.nn.softmax}.items():
    # Beside a NaN, TensorFlow's softmax is not NaN everywhere.
    for value in (normal(ROWS, 4), normal(ROWS, 2, 3), 1000 * normal(ROWS, 4), EXTREME[1:3]):
        case(operation, softmax, value)
for scale in (1, 1000):
    for dtype in ("int32", "int64"):
        case(
            "SparseSoftmaxCrossEntropyWithLogits",
            tf.nn.sparse_softmax_cross_entropy_with_logits,
            integers(ROWS, dtype=dtype, high=4),
            scale * normal(ROWS, 4),
        )

# Those of variables are tested with `NumpyGraph`, since they are nothing without.
OF_VARIABLES = numpy_operations.READING | numpy_operations.WRITING
RANDOM = {"StatelessRandomGetKeyCounter", "StatelessRandomNormalV2", "StatelessRandomUniformV2"}


def traced(function: Callable[..., Any], *specs: tf.TensorSpec) -> Graph:
    """The function, with its outputs numbered."""

    def call(*inputs: Any) -> dict[str, Any]:
        return {f"y{i}": y for i, y in enumerate(tf.nest.flatten(function(*inputs)))}

    return Graph(call, *specs)


def operations(graph: Graph) -> set[str]:
    return {each.type for each in graph.concrete.graph.get_operations()}


@pytest.mark.parametrize("each", CASES, ids=[f"{i}-{each.operation}" for i, each in enumerate(CASES)])
def test_numpy_computes_what_tensorflow_does(each: Case) -> None:
    graph = traced(
        each.function,
        *(tf.TensorSpec((None, *x.shape[1:]) if each.sizes else x.shape, x.dtype) for x in each.inputs),
    )
    assert each.operation in operations(graph)
    numpy = NumpyGraph(graph)
    for size in each.sizes or (len(each.inputs[0]),):
        inputs = [x[:size].copy() for x in each.inputs]
        found, expected = numpy(*inputs), graph(*(tf.constant(x) for x in inputs))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            _assert_same(found[name], value.numpy())


def _assert_same(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    tolerance = TOLERANCE.get(found.dtype.name, 0)
    np.testing.assert_allclose(found, expected, tolerance, tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("function", [tf.exp, tf.sigmoid, tf.nn.softmax])
def test_small_results_are_as_exact_as_large_ones(function: Callable[..., Any], dtype: str) -> None:
    """Their logarithms are taken."""
    # Far apart in a row.
    x = np.linspace(-40, 40, 161).reshape(7, 23).T.astype(dtype)
    graph = traced(function, tf.TensorSpec((None, 7), dtype))
    found, expected = NumpyGraph(graph)(x)["y0"], graph(tf.constant(x))["y0"].numpy()
    np.testing.assert_allclose(found, expected, TOLERANCE[dtype], 0)


def test_every_operation_has_a_case() -> None:
    known = numpy_operations.UFUNCS.keys() | numpy_operations.IDENTITIES
    known |= numpy_operations._FUNCTIONS.keys() | numpy_operations._DRAWING
    assert {each.operation for each in CASES} | OF_VARIABLES | RANDOM == known


# Random numbers ---------------------------------------------------------------------------------


def drawn(draw: Callable[..., Any], seed: Any, dtype: str = "int32", rows: int = 20_000) -> np.ndarray:
    graph = traced(
        lambda seed, like: draw([tf.shape(like)[0], 2], seed),
        tf.TensorSpec((2,), dtype),
        tf.TensorSpec((None,), tf.float32),
    )
    numpy = NumpyGraph(graph)
    inputs = np.array(seed, dtype), np.zeros(rows, np.float32)
    found, again = numpy(*inputs)["y0"], numpy(*inputs)["y0"]
    np.testing.assert_array_equal(found, again)
    expected = graph(*(tf.constant(each) for each in inputs))["y0"]
    assert (found.shape, found.dtype) == (tuple(expected.shape), expected.dtype.as_numpy_dtype)
    return found


DRAWS = [tf.random.stateless_uniform, tf.random.stateless_normal]


@pytest.mark.parametrize("draw", DRAWS)
def test_each_seed_has_its_own_numbers(draw: Callable[..., Any]) -> None:
    seeds = [[0, 0], [0, 1], [1, 0], [-1, 0], [0, -1], [2**31 - 1, -(2**31)]]
    found = [drawn(draw, seed, rows=50) for seed in seeds]
    assert len({each.tobytes() for each in found}) == len(seeds)
    wide = [drawn(draw, [0, high * 2**32], "int64", rows=50) for high in (0, 1, 2)]
    assert len({each.tobytes() for each in wide}) == 3
    np.testing.assert_array_equal(wide[0], found[0])


def test_uniform_numbers_have_the_moments_and_the_range() -> None:
    found = drawn(tf.random.stateless_uniform, [3, 4])
    assert found.mean() == pytest.approx(0.5, abs=0.01)
    assert found.var() == pytest.approx(1 / 12, abs=0.005)
    assert 0 <= found.min() < 0.001 < 0.999 < found.max() < 1
    within = drawn(lambda shape, seed: tf.random.stateless_uniform(shape, seed, -3, 5), [3, 4])
    np.testing.assert_allclose(within, found * 8 - 3, atol=1e-5)


def test_normal_numbers_have_the_moments() -> None:
    found = drawn(tf.random.stateless_normal, [3, 4])
    assert found.mean() == pytest.approx(0, abs=0.02)
    assert found.var() == pytest.approx(1, abs=0.03)
    assert (found**4).mean() == pytest.approx(3, abs=0.2)
    assert np.corrcoef(found.T)[0, 1] == pytest.approx(0, abs=0.02)


def test_logarithms_of_positive_uniform_numbers_are_finite() -> None:
    tiny = np.finfo(np.float32).tiny

    def gumbel(shape: Any, seed: Any) -> Any:
        return -tf.math.log(-tf.math.log(tf.random.stateless_uniform(shape, seed, tiny)))

    found = drawn(gumbel, [5, 6], rows=200_000)
    assert np.isfinite(found).all()
    assert found.mean() == pytest.approx(np.euler_gamma, abs=0.01)


# What is refused --------------------------------------------------------------------------------

VECTOR = tf.TensorSpec((None, 4), tf.float32)
NUMBERS = tf.TensorSpec((None,), tf.int32)
UNKNOWN = tf.TensorSpec(None, tf.float32)


def counter(seed: Any) -> Any:
    return raw.StatelessRandomGetKeyCounter(seed=seed)


@pytest.mark.parametrize(
    ("function", "spec", "text"),
    [
        (tf.math.erf, VECTOR, "Erf"),
        (lambda x: raw.BiasAdd(value=x[:, :, None], bias=x[0], data_format="NCHW"),
         VECTOR, "BiasAdd along another axis than the last"),
        (lambda x: 5 % x, NUMBERS, "FloorMod with input 1 from the graph"),
        (lambda x: x % [3, 0], tf.TensorSpec((2,), tf.int32), "FloorMod by zero"),
        (tf.strings.length, tf.TensorSpec((None,), tf.string), "StringLength of string"),
        (lambda x: tf.cast(x, tf.bfloat16), VECTOR, "Cast of bfloat16"),
        (lambda x: tf.bitcast(x, tf.uint8), VECTOR, "Bitcast from float32 to uint8"),
        (lambda x: tf.transpose(x, tf.argsort(tf.shape(x))), VECTOR,
         "Transpose with input 1 from the graph"),
        (lambda x: tf.split(x, 2), VECTOR, "Split of an unknown size"),
        (lambda x: tf.split(x, 2), UNKNOWN, "Split of an unknown size"),
        (lambda x: x[: tf.shape(x)[0] - 1], VECTOR, "StridedSlice with input 2 from the graph"),
        (lambda x: tf.gather(x, tf.zeros((4, 1), tf.int32), batch_dims=1),
         tf.TensorSpec((4, 2), tf.float32), "GatherV2 of slices with batch dimensions"),
        (lambda x: raw.Select(condition=x[:, 0] > 0, x=x, y=-x),
         tf.TensorSpec((4, 2), tf.float32), "Select by rows"),
        (lambda i: tf.one_hot(i, 3, axis=0), NUMBERS, "OneHot along another axis than the last"),
        (lambda x: tf.matmul(x[None], x[None], adjoint_a=True), VECTOR, "BatchMatMulV2 of an adjoint"),
        (lambda x: tf.matmul(x, x, transpose_a=True), VECTOR, "MatMul with matrices of unknown size"),
        (lambda x: x @ tf.ones((4, 3), tf.float16),
         tf.TensorSpec((None, 4), tf.float16), "MatMul of float16"),
        (lambda x: x @ tf.ones((2, 4, 3), tf.int32),
         tf.TensorSpec((None, 4), tf.int32), "BatchMatMulV2 of int32"),
        (tf.reduce_mean, NUMBERS, "Mean of int32"),
        (lambda x: raw.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=tf.argmax(x, 1)),
         VECTOR, "SparseSoftmaxCrossEntropyWithLogits with its gradient"),
        (lambda s: tf.random.stateless_uniform([2], s, dtype=tf.float64),
         tf.TensorSpec((2,), tf.int32), "StatelessRandomUniformV2 of float64"),
        (lambda s: raw.StatelessRandomUniformV2(
            shape=[2], key=tf.cast(s[:1], tf.uint64), counter=tf.zeros(2, tf.uint64), alg=1),
         tf.TensorSpec((2,), tf.int32), "StatelessRandomUniformV2 without a seed"),
        (lambda s: counter(s)[0], tf.TensorSpec((2,), tf.int32),
         "StatelessRandomGetKeyCounter for Identity"),
    ],
)  # fmt: skip
def test_what_numpy_is_not_used_for_is_named(
    function: Callable[..., Any], spec: tf.TensorSpec, text: str
) -> None:
    with pytest.raises(UnsupportedGraph) as error:
        NumpyGraph(traced(function, spec))
    assert text in str(error.value).split(", ")


def test_gathering_from_variables_by_batches_is_refused() -> None:
    table = tf.Variable(tf.zeros((4, 3)))
    function = traced(
        lambda i: raw.ResourceGather(resource=table.handle, indices=i, batch_dims=1, dtype=tf.float32),
        tf.TensorSpec((4,), tf.int32),
    )
    with pytest.raises(UnsupportedGraph, match="ResourceGather with batch dimensions"):
        NumpyGraph(function)

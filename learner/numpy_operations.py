"""TensorFlow's operations, computed by NumPy: what `learner.numpy_graph` makes its steps of.

A small network's operations are small too, and then what counts is what it takes to run one: NumPy needs
about a microsecond, TensorFlow several. Only what policies are made of is here; convolutions are not,
which are TensorFlow's strength.

What TensorFlow refuses at run time, NumPy may compute: indices below 0 count from the end here.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

Function = Callable[..., Any]
"""From the values of an operation's inputs, in their order, to that of its output, or a sequence of
those of its outputs."""


class Random(Protocol):
    """Where random operations draw from."""

    def generator(self, seed: np.ndarray) -> np.random.Generator:
        """That of this seed, integers [2]: each call begins its numbers anew. Valid until the next."""
        ...


class Unsupported(Exception):
    """An operation, or a way of using one, that is not here. Its text names it."""


def check_dtypes(operation: Any) -> None:
    """See that NumPy has the dtypes of a tf.Operation.

    Raises:
        Unsupported: it has not.
    """
    for tensor in (*operation.inputs, *operation.outputs):
        # Operations on variables are few, and known by their type.
        if tensor.dtype != tf.resource:
            _dtype(tensor.dtype, operation)


def function_of(operation: Any, constants: Sequence[np.ndarray | None], random: Random) -> Function:
    """What computes a tf.Operation.

    Args:
        operation: of a graph.
        constants: the values of those inputs that never change; None for the others.
        random: what random operations draw from.

    Raises:
        Unsupported: there is no such function.
    """
    kind = operation.type
    if kind in UFUNCS:
        _check_ufunc(operation, constants)
        return UFUNCS[kind]
    if kind in _DRAWING:
        return _drawn(operation, random)
    if kind not in _FUNCTIONS:
        raise Unsupported(kind)
    return _FUNCTIONS[kind](operation, constants)


# With the same inputs as the operations, element by element; so a result may take an input's place.
UFUNCS: Mapping[str, np.ufunc] = {
    "AddV2": np.add,
    "BiasAdd": np.add,
    "BitwiseAnd": np.bitwise_and,
    "Equal": np.equal,
    "Exp": np.exp,
    "Expm1": np.expm1,
    "FloorMod": np.mod,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Log": np.log,
    "Log1p": np.log1p,
    "LogicalAnd": np.logical_and,
    "LogicalNot": np.logical_not,
    "LogicalOr": np.logical_or,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "NotEqual": np.not_equal,
    "RealDiv": np.true_divide,
    "Sqrt": np.sqrt,
    "Square": np.square,
    "Sub": np.subtract,
    "Tanh": np.tanh,
}


def _check_ufunc(operation: Any, constants: Sequence[np.ndarray | None]) -> None:
    if operation.type == "BiasAdd" and operation.get_attr("data_format") != b"NHWC":
        raise Unsupported("BiasAdd along another axis than the last")
    divides = operation.type == "FloorMod" and operation.outputs[0].dtype.is_integer
    if divides and not _constant(constants, 1, operation).all():
        # TensorFlow raises an error.
        raise Unsupported("FloorMod by zero")


IDENTITIES = frozenset({"Identity", "PreventGradient", "StopGradient"})
"""Operations whose output is their input."""

PRODUCTS = frozenset({"BatchMatMulV2", "MatMul"})
"""Products of matrices, of which the second's size is known."""

VIEWS = frozenset(
    {
        "Bitcast",
        "ExpandDims",
        "Reshape",
        "Shape",
        "Size",
        "Split",
        "Squeeze",
        "StridedSlice",
        "Transpose",
    }
)
"""Operations that compute no element."""

READING = frozenset({"ReadVariableOp", "ResourceGather"})
"""Operations whose output is the value of their variable, or of a part of it."""

WRITING = frozenset({"ResourceScatterUpdate"})
"""Operations that change their variable."""

_DRAWING = frozenset({"StatelessRandomNormalV2", "StatelessRandomUniformV2"})

FRESH = UFUNCS.keys() | PRODUCTS | _DRAWING
"""Operations whose result is memory that nothing else shares."""


def value_of(operation: Any) -> np.ndarray:
    """Of an operation Const."""
    value: np.ndarray = tf.make_ndarray(operation.get_attr("value"))
    return value


def terms_of(product: Any, second: np.ndarray) -> int:
    """How many multiply-adds each element of a product takes, by its second matrix."""
    transposed = product.type == "MatMul" and product.get_attr("transpose_b")
    terms: int = second.shape[-1 if transposed else -2]
    return terms


def _dtype(dtype: tf.DType, operation: Any) -> np.dtype:
    """The NumPy dtype of a tensor's.

    Raises:
        Unsupported: NumPy itself has none.
    """
    if dtype == tf.resource:
        raise Unsupported(operation.type)
    found: np.dtype = np.dtype(dtype.as_numpy_dtype)
    if found.kind not in "biuf":
        raise Unsupported(f"{operation.type} of {dtype.name}")
    return found


def _constant(constants: Sequence[np.ndarray | None], index: int, operation: Any) -> np.ndarray:
    """The constant that an input must be.

    Raises:
        Unsupported: it changes from call to call.
    """
    value = constants[index]
    if value is None:
        raise Unsupported(f"{operation.type} with input {index} from the graph")
    return value


def _axes(constants: Sequence[np.ndarray | None], index: int, operation: Any) -> tuple[int, ...]:
    return tuple(_constant(constants, index, operation).reshape(-1).tolist())


def _shape(value: np.ndarray) -> tuple[int, ...]:
    return tuple(value.tolist())


# Arrays ---------------------------------------------------------------------------------------


def _cast(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    dtype = _dtype(operation.get_attr("DstT"), operation)
    return lambda x: x.astype(dtype)


def _bitcast(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    before = _dtype(operation.inputs[0].dtype, operation)
    after = _dtype(operation.get_attr("type"), operation)
    if before.itemsize != after.itemsize:
        raise Unsupported(f"Bitcast from {before} to {after}")
    return lambda x: x.view(after)


def _reshape(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    if constants[1] is None:
        return lambda x, shape: x.reshape(_shape(shape))
    target = _shape(constants[1])
    return lambda x, _: x.reshape(target)


def _broadcast_to(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    def broadcast(x: np.ndarray, shape: np.ndarray) -> np.ndarray:
        # Several times faster than np.broadcast_to.
        result = np.empty(_shape(shape), x.dtype)
        result[...] = x
        return result

    return broadcast


def _expand_dims(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    axes = _axes(constants, 1, operation)
    return lambda x, _: np.expand_dims(x, axes)


def _squeeze(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    axes = tuple(operation.get_attr("squeeze_dims")) or None
    return lambda x: x.squeeze(axes)


def _transpose(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    order = _axes(constants, 1, operation)
    return lambda x, _: x.transpose(order)


def _pack(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    axis = operation.get_attr("axis")
    if all(each.shape.rank == 0 for each in operation.inputs):
        return lambda *values: np.array(values)
    return lambda *values: np.stack(values, axis)


def _unpack(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    axis, count = operation.get_attr("axis"), operation.get_attr("num")
    if count == 1:
        return lambda x: x.take(0, axis)

    def unpack(x: np.ndarray) -> list[np.ndarray]:
        return [x.take(i, axis) for i in range(count)] if axis else [x[i] for i in range(count)]

    return unpack


def _concat(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    axis = int(_constant(constants, -1, operation))
    return lambda *values: np.concatenate(values[:-1], axis)


def _split(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    axis, count = int(_constant(constants, 0, operation)), operation.get_attr("num_split")
    shape = operation.inputs[1].shape
    if shape.rank is None or shape[axis] is None:
        raise Unsupported("Split of an unknown size")
    if count == 1:
        return lambda _, x: x
    before, size = (slice(None),) * (axis % shape.rank), shape[axis] // count
    parts = [(*before, slice(i * size, (i + 1) * size)) for i in range(count)]
    return lambda _, x: [x[part] for part in parts]


def _strided_slice(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    begin, end, strides = (_axes(constants, i, operation) for i in (1, 2, 3))
    masks = {
        name: operation.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }

    def part(i: int) -> Any:
        on = {name for name, mask in masks.items() if mask & 1 << i}
        if "ellipsis" in on:
            return Ellipsis
        if "new_axis" in on:
            return None
        if "shrink_axis" in on:
            return begin[i]
        return slice(None if "begin" in on else begin[i], None if "end" in on else end[i], strides[i])

    index = tuple(part(i) for i in range(len(begin)))
    return lambda x, *_: x[index]


def _gather(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    axis, batch_dims = int(_constant(constants, 2, operation)), operation.get_attr("batch_dims")
    if not batch_dims:
        return lambda x, indices, _: x.take(indices, axis)
    x_rank, indices_rank = (tensor.shape.rank for tensor in operation.inputs[:2])
    # As the cross entropy of deterministic operations has it.
    if batch_dims != 1 or x_rank != 2 or indices_rank != 1 or axis not in (1, -1):
        raise Unsupported("GatherV2 of slices with batch dimensions")
    return lambda x, indices, _: x[_numbers(len(x)), indices]


def _select(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    if len({tensor.shape.rank for tensor in operation.inputs}) > 1:
        raise Unsupported("Select by rows")
    return np.where


def _resource_gather(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    if operation.get_attr("batch_dims"):
        raise Unsupported("ResourceGather with batch dimensions")
    return lambda table, indices: table.take(indices, 0)


def _resource_scatter_update(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    def scatter(table: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> None:
        table[indices] = updates

    return scatter


def _one_hot(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    depth, on, off = (_constant(constants, i, operation) for i in (1, 2, 3))
    if operation.get_attr("axis") != -1:
        raise Unsupported("OneHot along another axis than the last")
    categories = np.arange(int(depth))
    return lambda indices, *_: np.where(indices[..., None] == categories, on, off)


def _shape_of(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    dtype = _dtype(operation.outputs[0].dtype, operation)
    return lambda x: np.array(x.shape, dtype)


def _size_of(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    dtype = _dtype(operation.outputs[0].dtype, operation)
    return lambda x: np.array(x.size, dtype)


def _fill(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    return lambda shape, value: np.full(_shape(shape), value)


# Numbers --------------------------------------------------------------------------------------


def _check_product(operation: Any) -> None:
    """See that what it takes grows with the rows, and is as quick as a product can be."""
    if not operation.inputs[1].shape.is_fully_defined():
        raise Unsupported(f"{operation.type} with matrices of unknown size")
    if operation.outputs[0].dtype not in (tf.float32, tf.float64):
        # NumPy has no BLAS for them.
        raise Unsupported(f"{operation.type} of {operation.outputs[0].dtype.name}")


def _matmul(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    _check_product(operation)
    across = [operation.get_attr(name) for name in ("transpose_a", "transpose_b")]
    # Of two matrices, `np.dot` is the same, and begins sooner.
    if across == [False, False]:
        return np.dot
    return lambda a, b: np.dot(a.T if across[0] else a, b.T if across[1] else b)


def _batch_matmul(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    if operation.get_attr("adj_x") or operation.get_attr("adj_y"):
        raise Unsupported("BatchMatMulV2 of an adjoint")
    _check_product(operation)
    return np.matmul


def _argmax(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    axis, dtype = int(_constant(constants, 1, operation)), _dtype(operation.outputs[0].dtype, operation)
    return lambda x, _: x.argmax(axis).astype(dtype)


def _reduced(
    reduce: Callable[..., Any], of_nothing: Callable[[np.dtype], Any] | None = None
) -> Callable[..., Function]:
    def build(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
        axes, keep = _axes(constants, 1, operation), operation.get_attr("keep_dims")
        # Of its own dtype, where NumPy would widen integers.
        dtype = _dtype(operation.outputs[0].dtype, operation)
        initial = (of_nothing(dtype),) if of_nothing else ()
        return lambda x, _: reduce(x, axes, dtype, None, keep, *initial)

    return build


def _least(dtype: np.dtype) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _greatest(dtype: np.dtype) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def _mean(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    if not operation.outputs[0].dtype.is_floating:
        raise Unsupported(f"Mean of {operation.outputs[0].dtype.name}")
    axes = _axes(constants, 1, operation)
    number = _dtype(operation.outputs[0].dtype, operation).type
    total = _reduced(np.add.reduce)(operation, constants)
    return lambda x, _: total(x, _) / number(math.prod(x.shape[axis] for axis in axes))


def _relu(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    zero = _zero(operation)
    return lambda x: np.maximum(x, zero)


def _relu6(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    zero, six = _zero(operation), _dtype(operation.outputs[0].dtype, operation).type(6)
    return lambda x: np.minimum(np.maximum(x, zero), six)


def _softplus(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    zero = _zero(operation)
    return lambda x: np.logaddexp(x, zero)


def _sigmoid(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    # By the hyperbolic tangent, as quick, what is near 0 would have no digits left. In float16 the
    # exponential would be infinite where there is still a result.
    dtype = _dtype(operation.outputs[0].dtype, operation)
    one, wide = dtype.type(1), np.promote_types(dtype, np.float32)
    return lambda x: (one / (one + np.exp(-x, dtype=wide))).astype(dtype, copy=False)


def _rsqrt(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    one = _dtype(operation.outputs[0].dtype, operation).type(1)
    return lambda x: one / np.sqrt(x)


def _zero(operation: Any) -> Any:
    return _dtype(operation.outputs[0].dtype, operation).type(0)


def _log_softmax(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    def log_softmax(logits: np.ndarray) -> np.ndarray:
        z: np.ndarray = logits - np.maximum.reduce(logits, -1, keepdims=True)
        return z - np.log(np.add.reduce(np.exp(z), -1, keepdims=True))

    return log_softmax


def _softmax(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    def softmax(logits: np.ndarray) -> np.ndarray:
        e: np.ndarray = np.exp(logits - np.maximum.reduce(logits, -1, keepdims=True))
        return e / np.add.reduce(e, -1, keepdims=True)

    return softmax


def _cross_entropy(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    if operation.outputs[1].consumers():
        raise Unsupported(f"{operation.type} with its gradient")

    def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, None]:
        # With the classes first: NumPy reduces few long rows faster than many short ones.
        z = logits.T.copy()
        z -= np.maximum.reduce(z, 0)
        rows = z.shape[1]
        chosen = z.take(labels * rows + _numbers(rows))
        return np.log(np.add.reduce(np.exp(z, z), 0)) - chosen, None

    return cross_entropy


@functools.lru_cache(maxsize=256)
def _numbers(count: int) -> np.ndarray:
    """0 to count - 1, to be read alone."""
    numbers = np.arange(count)
    numbers.flags.writeable = False
    return numbers


def _key_and_counter(operation: Any, constants: Sequence[np.ndarray | None]) -> Function:
    consumers = {each.type for output in operation.outputs for each in output.consumers()}
    if not consumers <= _DRAWING:
        raise Unsupported(f"{operation.type} for {', '.join(sorted(consumers - _DRAWING))}")
    # What draws needs nothing but the seed.
    return lambda seed: (seed, None)


def _drawn(operation: Any, random: Random) -> Function:
    if operation.outputs[0].dtype != tf.float32:
        raise Unsupported(f"{operation.type} of {operation.outputs[0].dtype.name}")
    if operation.inputs[1].op.type != "StatelessRandomGetKeyCounter":
        raise Unsupported(f"{operation.type} without a seed")

    def uniform(shape: np.ndarray, seed: np.ndarray, *_: Any) -> np.ndarray:
        return random.generator(seed).random(_shape(shape), np.float32)

    def normal(shape: np.ndarray, seed: np.ndarray, *_: Any) -> np.ndarray:
        return random.generator(seed).standard_normal(_shape(shape), np.float32)

    return uniform if operation.type == "StatelessRandomUniformV2" else normal


_FUNCTIONS: Mapping[str, Callable[[Any, Sequence[np.ndarray | None]], Function]] = {
    "ArgMax": _argmax,
    "BatchMatMulV2": _batch_matmul,
    "Bitcast": _bitcast,
    "BroadcastTo": _broadcast_to,
    "Cast": _cast,
    "ConcatV2": _concat,
    "ExpandDims": _expand_dims,
    "Fill": _fill,
    "GatherV2": _gather,
    "LogSoftmax": _log_softmax,
    "MatMul": _matmul,
    "Max": _reduced(np.maximum.reduce, of_nothing=_least),
    "Mean": _mean,
    "Min": _reduced(np.minimum.reduce, of_nothing=_greatest),
    "OneHot": _one_hot,
    "Pack": _pack,
    "Prod": _reduced(np.multiply.reduce),
    "ReadVariableOp": lambda operation, constants: np.copy,
    "Relu": _relu,
    "Relu6": _relu6,
    "Reshape": _reshape,
    "ResourceGather": _resource_gather,
    "ResourceScatterUpdate": _resource_scatter_update,
    "Rsqrt": _rsqrt,
    "Select": _select,
    "SelectV2": lambda operation, constants: np.where,
    "Shape": _shape_of,
    "Sigmoid": _sigmoid,
    "Size": _size_of,
    "Softmax": _softmax,
    "Softplus": _softplus,
    "SparseSoftmaxCrossEntropyWithLogits": _cross_entropy,
    "Split": _split,
    "StatelessRandomGetKeyCounter": _key_and_counter,
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "Sum": _reduced(np.add.reduce),
    "Transpose": _transpose,
    "Unpack": _unpack,
    "ZerosLike": lambda operation, constants: np.zeros_like,
}

"""A traced function, computed by NumPy in the caller's thread.

TensorFlow takes 100 us and more for the smallest function, whatever is in it. For small networks NumPy
takes a third of that. docs/decisions/0026-numpy.md says where it is used.
"""

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from learner.graph import Graph
from learner.numpy_operations import (
    FRESH,
    IDENTITIES,
    PRODUCTS,
    READING,
    UFUNCS,
    VIEWS,
    WRITING,
    Function,
    Unsupported,
    check_dtypes,
    function_of,
    terms_of,
    value_of,
)


class UnsupportedGraph(Exception):
    """The function has operations that NumPy is not used for. Its text names them."""


class Work(NamedTuple):
    """What a call computes."""

    multiply_adds: int
    """of its matrix products"""
    elements: int
    """of its other operations' results, but of none that only arranges what there is"""


class NumpyGraph:
    """The function of a `Graph`, from arrays to arrays. One caller at a time.

    It holds copies of the function's variables. Of those that the function only reads, `present_weights`
    has the values that they hold later, and `use` takes such over; those that it writes are its own from
    now on.

    Random numbers have the distributions of TensorFlow's, and other values. Like those, they depend on
    the seeds in the graph alone.

    Raises:
        UnsupportedGraph: some of its operations are not in `learner.numpy_operations`.
    """

    def __init__(self, graph: Graph) -> None:
        builder = _Builder(graph)
        if builder.unsupported:
            raise UnsupportedGraph(", ".join(sorted(builder.unsupported)))
        weights = dict(builder.weights)
        # One call for all: by themselves a dozen take four times as long.
        self._read = Graph(lambda: {name: variable.read() for name, variable in weights.items()})
        self._scope = builder.scope
        self._inputs = builder.inputs
        self._operations = builder.operations
        self._call = builder.compiled(sorted(graph.outputs))

    def present_weights(self) -> Mapping[str, np.ndarray]:
        """Copies of what the variables hold now, for `use`. Any thread may ask."""
        return {name: np.asarray(value.numpy()) for name, value in self._read().items()}

    def use(self, weights: Mapping[str, np.ndarray]) -> None:
        """Compute with these from the next call on. For the caller's thread."""
        self._scope.update(weights)

    def work(self, rows: int) -> Work:
        """What a call takes whose inputs are zeros, and as many as `rows` where that is open.

        It is counted in such a call, which changes no variable: how many entities a row has on its way,
        no shape in the graph tells.
        """
        done: list[Work] = []
        scope = dict(self._scope)
        for name, operation in self._operations.items():
            scope[name] = _counted(operation, scope[name], done)
        # As in TensorFlow, infinities are results like others.
        with np.errstate(all="ignore"):
            FunctionType(self._call.__code__, scope)(*(_zeros(each, rows) for each in self._inputs))
        return Work(sum(each.multiply_adds for each in done), sum(each.elements for each in done))

    def __call__(self, *inputs: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for these inputs, by name. They may share memory with the inputs."""
        with np.errstate(all="ignore"):
            outputs: dict[str, np.ndarray] = self._call(*inputs)
        return outputs


class _Variable(NamedTuple):
    handle: Any
    dtype: tf.DType

    def read(self) -> tf.Tensor:
        """What it holds now."""
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)


class _Builder:
    """The source of a function of Python, one line for each operation, and the scope that it runs in.

    As a list of steps it would take 20 us more, which is a third: looking up arguments and keeping
    results costs as much as small operations do.
    """

    def __init__(self, graph: Graph) -> None:
        self.scope: dict[str, Any] = {}
        """by name, what the source refers to: functions, constants and variables' values"""
        self.weights: dict[str, _Variable] = {}
        """those that are only read, by their names in the scope"""
        self.operations: dict[str, Any] = {}
        """by the names of the functions in the scope that compute them"""
        self.unsupported: set[str] = set()
        self._lines: list[str] = []
        self._names: dict[str, str] = {}
        """in the source, of the graph's tensors"""
        self._constant_names: set[str] = set()
        """names of what no call changes"""
        self._unchanged: set[str] = set()
        """the graph's tensors that are another's memory, since their operation changes nothing"""
        self._random = _Random()
        traced = graph.concrete.graph
        captured = {inner.name for _, inner in traced.captures}
        self.inputs = [each for each in traced.inputs if each.name not in captured]
        """the graph's tensors that a call is handed"""
        self._parameters = [self._name(each) for each in self.inputs]
        operations = _needed(traced)
        self._take_captured(traced, operations)
        self._outputs = {tensor.name for tensor in traced.outputs}
        for operation in operations:
            try:
                self._add(operation)
            except Unsupported as error:
                self.unsupported.add(str(error))
                for tensor in operation.outputs:
                    self._name(tensor)
        self._results = [self._names[tensor.name] for tensor in traced.outputs]

    def compiled(self, outputs: Sequence[str]) -> Function:
        """The function, from the graph's inputs to a dict of its outputs by these names."""
        results = ", ".join(f"{key!r}: {name}" for key, name in zip(outputs, self._results, strict=True))
        body = "".join(f"    {line}\n" for line in [*self._lines, f"return {{{results}}}"])
        source = f"def call({', '.join(self._parameters)}):\n{body}"
        # All that comes from outside in it are the outputs' names, as literals.
        exec(compile(source, "<operations of a graph>", "exec"), self.scope)
        function: Function = self.scope["call"]
        return function

    def _take_captured(self, traced: Any, operations: Sequence[Any]) -> None:
        """Variables, and what else the function has from outside."""
        written = {each.inputs[0].name for each in operations if each.type in WRITING}
        dtypes = {
            each.inputs[0].name: each.get_attr("dtype")
            for each in operations
            if each.type in READING | WRITING
        }
        for outer, inner in traced.captures:
            name = self._name(inner)
            if inner.dtype != tf.resource:
                self._add_constant(name, np.array(outer.numpy()))
            elif inner.name in dtypes:
                variable = _Variable(outer, dtypes[inner.name])
                self.scope[name] = np.array(variable.read().numpy())
                if inner.name not in written:
                    self.weights[name] = variable

    def _name(self, tensor: Any) -> str:
        return self._names.setdefault(tensor.name, f"v{len(self._names)}")

    def _add_constant(self, name: str, value: np.ndarray) -> None:
        self.scope[name] = value
        self._constant_names.add(name)

    def _add(self, operation: Any) -> None:
        """A line for the operation; or none, where its result is known or is its input.

        Raises:
            Unsupported: NumPy is not used for it.
        """
        arguments = [self._names[tensor.name] for tensor in operation.inputs]
        if operation.type == "Placeholder":
            return
        check_dtypes(operation)
        if operation.type == "Const":
            self._add_constant(self._name(operation.outputs[0]), value_of(operation))
        elif operation.type in IDENTITIES or self._only_reads(operation, arguments):
            self._names[operation.outputs[0].name] = arguments[0]
        else:
            self._add_line(operation, arguments)

    def _only_reads(self, operation: Any, arguments: Sequence[str]) -> bool:
        return operation.type == "ReadVariableOp" and arguments[0] in self.weights

    def _add_line(self, operation: Any, arguments: list[str]) -> None:
        constants = [self.scope[name] if name in self._constant_names else None for name in arguments]
        function = function_of(operation, constants, self._random)
        results = [self._name(tensor) for tensor in operation.outputs]
        if len(results) == 1 and arguments and self._constant_names.issuperset(arguments):
            with np.errstate(all="ignore"):
                self._add_constant(results[0], function(*constants))
            return
        if _changes_nothing(operation, constants):
            self._names[operation.outputs[0].name] = arguments[0]
            self._unchanged.add(operation.outputs[0].name)
            return
        if self._overwrites(operation, arguments[0]):
            arguments = [*arguments, f"out={arguments[0]}"]
        called = f"f{len(self._lines)}"
        self.scope[called], self.operations[called] = function, operation
        assigned = f"{', '.join(results)} = " if results else ""
        self._lines.append(f"{assigned}{called}({', '.join(arguments)})")

    def _overwrites(self, operation: Any, name: str) -> bool:
        """Whether the result can take the first input's place in memory: nobody else reads that, and it
        has the same shape and dtype."""
        if operation.type not in UFUNCS:
            return False
        first, *others = operation.inputs
        result = operation.outputs[0]
        if not first.shape.rank or not result.shape.rank:
            # Of rank 0, results are no arrays.
            return False
        return (
            first.op.type in FRESH
            and first.name not in self._unchanged
            and name not in self._constant_names
            and first.name not in self._outputs
            and len(first.consumers()) == 1
            and first.dtype == result.dtype
            and first.shape.as_list() == result.shape.as_list()
            # Of unknown dimensions, either one could be 1; and of no rows, nothing has the same shape.
            and all(other.shape.is_fully_defined() and 0 not in other.shape for other in others)
        )


class _Random:
    """A generator whose numbers begin anew for each seed: Philox (Salmon et al. 2011), whose state is
    little more than that."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._philox)
        self._beginning: Any = self._philox.state
        self._key: np.ndarray = self._beginning["state"]["key"]

    def generator(self, seed: np.ndarray) -> np.random.Generator:
        self._key[:] = seed.astype(np.uint64)
        self._philox.state = self._beginning
        return self._generator


def _needed(traced: Any) -> list[Any]:
    """The operations that outputs depend on, and those with side effects and what they depend on, in an
    order in which they can be done."""
    operations = traced.get_operations()
    waiting = [tensor.op for tensor in traced.outputs]
    waiting += [each for each in operations if each.op_def.is_stateful and each.type not in READING]
    needed = set()
    while waiting:
        operation = waiting.pop()
        if operation.name not in needed:
            needed.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs]
    return [operation for operation in operations if operation.name in needed]


def _changes_nothing(operation: Any, constants: Sequence[np.ndarray | None]) -> bool:
    """Whether it adds 0 or multiplies by 1, as sampling and conversions do that are for any range."""
    neutral = {"AddV2": 0, "Mul": 1, "Sub": 0}.get(operation.type)
    if neutral is None or constants[1] is None or constants[1].shape:
        return False
    return bool(constants[1] == neutral)


def _zeros(tensor: Any, rows: int) -> np.ndarray:
    shape = tensor.shape.as_list() if tensor.shape.rank else []
    return np.zeros([rows if size is None else size for size in shape], tensor.dtype.as_numpy_dtype)


def _counted(operation: Any, function: Function, done: list[Work]) -> Function:
    """The operation's function, which also says what it has done; or nothing, where that is to write."""

    def call(*arguments: Any, **options: Any) -> Any:
        if operation.type in WRITING:
            return None
        results = function(*arguments, **options)
        several = results if len(operation.outputs) > 1 else [results] * len(operation.outputs)
        done.append(_work(operation, arguments, several))
        return results

    return call


def _work(operation: Any, arguments: Sequence[Any], results: Sequence[Any]) -> Work:
    if operation.type in VIEWS:
        return Work(0, 0)
    # A result that is left out, since nobody reads it, would have the first input's shape.
    elements = sum(np.size(arguments[0] if each is None else each) for each in results)
    if operation.type in PRODUCTS:
        return Work(elements * terms_of(operation, arguments[1]), 0)
    return Work(0, elements)

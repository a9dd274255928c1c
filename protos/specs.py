"""Array and environment specs: what travels once per session, so that steps can be raw bytes."""

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from protos import inference_pb2 as pb
from protos.errors import InvalidRequest, UnsupportedSpace

DTYPES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
)
"""NumPy names of the dtypes that the wire carries."""

MAX_ELEMENTS = 1 << 26
"""Most elements of one leaf of one environment: what is larger is a mistake, or an attack."""

MAX_LEAVES = 256
MAX_NAME = 200
MAX_CATEGORIES = 1 << 20


@dataclass(frozen=True, eq=False)
class ArraySpec:
    """One array of an observation, or the action, without the leading row dimension.

    `name` is the leaf's path in the space, parts joined by "/" ("" if the space is one array).
    `minimum` and `maximum` are inclusive, of the array's own shape and dtype, or both None.
    A categorical array holds, for each element, one of `num_categories` unordered categories.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    categorical: bool = False
    minimum: np.ndarray | None = None
    maximum: np.ndarray | None = None

    @cached_property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of one row."""
        return self.num_elements * self.dtype.itemsize

    @property
    def num_categories(self) -> np.ndarray:
        """int64 of the array's shape: categories of each element. For categorical arrays only."""
        if self.minimum is None or self.maximum is None:
            raise ValueError(f"{self} has no bounds, so it has no categories")
        return self.maximum.astype(np.int64) - self.minimum.astype(np.int64) + 1

    def zeros(self, *leading: int) -> np.ndarray:
        """Zeros of shape [*leading, *shape]."""
        return np.zeros((*leading, *self.shape), self.dtype)

    def _key(self) -> tuple[object, ...]:
        bounds = tuple(None if b is None else b.tobytes() for b in (self.minimum, self.maximum))
        return (self.name, self.shape, self.dtype, self.categorical, bounds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArraySpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        text = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        if self.minimum is not None and self.maximum is not None:
            text += f" in {_range_text(self.minimum, self.maximum)}"
        if self.categorical:
            text = f"categorical {text}"
        return f"{self.name}: {text}" if self.name else text


@dataclass(frozen=True)
class EnvironmentSpec:
    """Leaves of the observation in their documented order, and the action."""

    observation: tuple[ArraySpec, ...]
    action: ArraySpec

    def __str__(self) -> str:
        return f"observation ({'; '.join(map(str, self.observation))}), action ({self.action})"


def _range_text(minimum: np.ndarray, maximum: np.ndarray) -> str:
    low, high = minimum.min(), maximum.max()
    same = bool((minimum == low).all() and (maximum == high).all())
    return f"[{low}, {high}]" if same else f"[{low}, {high}] (differing by element)"


# To and from the wire ---------------------------------------------------------------------------


def to_proto(spec: EnvironmentSpec) -> pb.EnvironmentSpec:
    """`spec` as a message."""
    return pb.EnvironmentSpec(
        observation=[_array_to_proto(leaf) for leaf in spec.observation],
        action=_array_to_proto(spec.action),
    )


def from_proto(message: pb.EnvironmentSpec) -> EnvironmentSpec:
    """The spec in `message`.

    Raises:
        InvalidRequest: anything in it is missing, malformed or out of bounds.
    """
    if not 1 <= len(message.observation) <= MAX_LEAVES:
        found = len(message.observation)
        raise InvalidRequest(f"observation spec: expected 1 to {MAX_LEAVES} leaves, found {found}")
    if not message.HasField("action"):
        raise InvalidRequest("action spec: expected one, found none")
    observation = tuple(_array_from_proto(leaf, "observation") for leaf in message.observation)
    names = [leaf.name for leaf in observation]
    if len(set(names)) != len(names):
        raise InvalidRequest(f"observation spec: expected distinct names, found {names}")
    action = _array_from_proto(message.action, "action")
    is_float = action.dtype.kind == "f"
    if not action.categorical and not (is_float and action.minimum is not None):
        raise InvalidRequest(
            f"action spec: expected a categorical array or a bounded float array, found {action}"
        )
    return EnvironmentSpec(observation, action)


def _array_to_proto(spec: ArraySpec) -> pb.ArraySpec:
    return pb.ArraySpec(
        name=spec.name,
        shape=spec.shape,
        dtype=spec.dtype.name,
        kind=pb.CATEGORICAL if spec.categorical else pb.NUMERIC,
        minimum=b"" if spec.minimum is None else spec.minimum.tobytes(),
        maximum=b"" if spec.maximum is None else spec.maximum.tobytes(),
    )


def _array_from_proto(message: pb.ArraySpec, role: str) -> ArraySpec:
    where = f"{role} spec {message.name[:MAX_NAME]!r}"
    if len(message.name) > MAX_NAME:
        raise InvalidRequest(f"{where}: expected a name of at most {MAX_NAME} characters")
    if not message.name.isprintable():
        raise InvalidRequest(f"{where}: expected a name of printable characters")
    if message.dtype not in DTYPES:
        raise InvalidRequest(
            f"{where}: expected a dtype of {', '.join(DTYPES)}, found {message.dtype[:MAX_NAME]!r}"
        )
    if message.kind not in (pb.NUMERIC, pb.CATEGORICAL):
        raise InvalidRequest(f"{where}: expected NUMERIC or CATEGORICAL, found {message.kind}")
    shape = tuple(message.shape)
    if len(shape) > 16 or 0 in shape or math.prod(shape) > MAX_ELEMENTS:
        raise InvalidRequest(
            f"{where}: expected at most 16 dimensions of at least 1 and {MAX_ELEMENTS} elements, "
            f"found shape {list(shape[:17])}"
        )
    spec = ArraySpec(message.name, shape, np.dtype(message.dtype), message.kind == pb.CATEGORICAL)
    if message.minimum or message.maximum:
        minimum = _bound(message.minimum, spec, f"{where}: minimum")
        maximum = _bound(message.maximum, spec, f"{where}: maximum")
        if not (minimum <= maximum).all():  # also refuses NaN
            raise InvalidRequest(f"{where}: expected minimum <= maximum, found {minimum} and {maximum}")
        spec = ArraySpec(spec.name, shape, spec.dtype, spec.categorical, minimum, maximum)
    if spec.categorical:
        _check_categorical(spec, where)
    return spec


def _bound(data: bytes, spec: ArraySpec, where: str) -> np.ndarray:
    if len(data) != spec.num_bytes:
        raise InvalidRequest(f"{where}: expected {spec.num_bytes} bytes, found {len(data)}")
    return np.frombuffer(data, spec.dtype).reshape(spec.shape)


def _check_categorical(spec: ArraySpec, where: str) -> None:
    if spec.dtype.kind not in "iu" or spec.minimum is None or spec.maximum is None:
        raise InvalidRequest(
            f"{where}: expected bounds and an integer dtype for categories, found {spec}"
        )
    # Python integers: the difference of two int64 bounds may not fit an int64.
    lows, highs = spec.minimum.ravel().tolist(), spec.maximum.ravel().tolist()
    most = max(high - low + 1 for low, high in zip(lows, highs, strict=True))
    if most > MAX_CATEGORIES:
        raise InvalidRequest(f"{where}: expected at most {MAX_CATEGORIES} categories, found {most}")


# From Gymnasium spaces --------------------------------------------------------------------------


def from_spaces(observation_space: Any, action_space: Any) -> EnvironmentSpec:
    """The spec of one environment with these Gymnasium spaces.

    Observation: Box of any dtype and rank, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple
    of these, nested as deep as you like. Action: Discrete, MultiDiscrete, or Box of a float dtype.

    Raises:
        UnsupportedSpace: naming the space that the wire cannot carry, and where it was found.
    """
    leaves = tuple(_observation_leaves(observation_space, ()))
    if not leaves:
        raise UnsupportedSpace(f"observation space {observation_space} has no arrays in it")
    spec = EnvironmentSpec(leaves, _action_leaf(action_space))
    try:
        # What the learner would refuse (sizes, names, bounds) is refused here, where the space is known.
        return from_proto(to_proto(spec))
    except InvalidRequest as error:
        raise UnsupportedSpace(str(error)) from None


def _observation_leaves(space: Any, path: tuple[str, ...]) -> list[ArraySpec]:
    # Imported here: only processes that hold environments need Gymnasium.
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        items: Sequence[tuple[Any, Any]] = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        items = list(enumerate(space.spaces))
    else:
        return [_leaf(space, "/".join(path), "observation")]
    for key, _ in items:
        if isinstance(space, spaces.Dict) and not _is_part(key):
            raise UnsupportedSpace(
                f"observation space key {reprlib.repr(key)}: expected 1 to {MAX_NAME} printable "
                "characters without '/', which separates the parts of a path"
            )
    return [leaf for key, child in items for leaf in _observation_leaves(child, (*path, str(key)))]


def _is_part(key: Any) -> bool:
    """Whether the wire, a log and `flattener` can hold it. Lone surrogates are not printable either."""
    return isinstance(key, str) and 0 < len(key) <= MAX_NAME and key.isprintable() and "/" not in key


def _action_leaf(space: Any) -> ArraySpec:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _leaf(space, "", "action")
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f":
        return _leaf(space, "", "action")
    raise UnsupportedSpace(
        f"action space {space} is not supported: expected Discrete, MultiDiscrete or a Box of floats"
    )


def _leaf(space: Any, name: str, role: str) -> ArraySpec:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        low, high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
        return _bounded(name, np.dtype(np.int64), low, high, categorical=True)
    if isinstance(space, spaces.MultiDiscrete):
        return _bounded(name, space.dtype, space.start, space.start + space.nvec - 1, categorical=True)
    if isinstance(space, spaces.MultiBinary):
        zeros = np.zeros(space.shape, np.int8)
        return _bounded(name, zeros.dtype, zeros, zeros + 1)
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).name in DTYPES:
        return _bounded(name, space.dtype, space.low, space.high)
    where = f" at {name!r}" if name else ""
    raise UnsupportedSpace(
        f"{role} space {space}{where} is not supported: expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, or Dict and Tuple of these"
    )


def _bounded(
    name: str, dtype: Any, low: np.ndarray, high: np.ndarray, categorical: bool = False
) -> ArraySpec:
    dtype = np.dtype(dtype)
    return ArraySpec(name, low.shape, dtype, categorical, low.astype(dtype), high.astype(dtype))


# Observations as structures ---------------------------------------------------------------------


def flattener(specs: Sequence[ArraySpec]) -> Callable[[Any], list[Any]]:
    """A function from an observation (nested mappings and sequences) to its leaves in spec order."""
    paths = [spec.name.split("/") if spec.name else [] for spec in specs]

    def flatten(observation: Any) -> list[Any]:
        return [_descend(observation, path) for path in paths]

    return flatten


def _descend(observation: Any, path: Sequence[str]) -> Any:
    node = observation
    for part in path:
        try:
            node = node[part] if isinstance(node, Mapping) else node[int(part)]
        except (KeyError, IndexError, TypeError, ValueError):
            raise InvalidRequest(
                f"observation: expected an entry {'/'.join(path)!r}, found {type(node).__name__} "
                f"without {part!r}"
            ) from None
    return node

"""Specs: from spaces, over the wire, and everything that is refused."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from protos import inference_pb2 as pb
from protos.errors import InvalidRequest, UnsupportedSpace
from protos.specs import (
    MAX_CATEGORIES,
    MAX_ELEMENTS,
    MAX_LEAVES,
    MAX_NAME,
    ArraySpec,
    EnvironmentSpec,
    flattener,
    from_proto,
    from_spaces,
    to_proto,
)

BOX = spaces.Box(0, 1, (2,), np.float32)
TWO = spaces.Discrete(2)


def observation(space: Any) -> tuple[ArraySpec, ...]:
    return from_spaces(space, TWO).observation


def only(space: Any) -> ArraySpec:
    (leaf,) = observation(space)
    return leaf


# From spaces ------------------------------------------------------------------------------------


def test_box() -> None:
    leaf = only(spaces.Box(np.float32([0, -np.inf]), np.float32([1, np.inf])))
    assert (leaf.name, leaf.shape, leaf.dtype, leaf.categorical) == ("", (2,), np.float32, False)
    np.testing.assert_array_equal(leaf.minimum, [0, -np.inf])  # type: ignore[arg-type]
    np.testing.assert_array_equal(leaf.maximum, [1, np.inf])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64", "float16", "float64"])
def test_box_dtypes(dtype: str) -> None:
    assert only(spaces.Box(0, 1, (2, 3), np.dtype(dtype))).dtype == np.dtype(dtype)


def test_scalar_box() -> None:
    leaf = only(spaces.Box(0, 1, (), np.float32))
    assert leaf.shape == ()
    assert leaf.num_elements == 1
    assert leaf.num_bytes == 4


def test_discrete_with_a_start() -> None:
    leaf = only(spaces.Discrete(3, start=-1))
    assert leaf.categorical
    assert leaf.dtype == np.int64
    assert (leaf.minimum, leaf.maximum) == (-1, 1)
    assert leaf.num_categories == 3


def test_multi_discrete_with_starts() -> None:
    leaf = only(spaces.MultiDiscrete([3, 5], start=[0, 2]))
    assert leaf.categorical
    np.testing.assert_array_equal(leaf.num_categories, [3, 5])
    np.testing.assert_array_equal(leaf.minimum, [0, 2])  # type: ignore[arg-type]


def test_multi_binary_is_a_quantity() -> None:
    leaf = only(spaces.MultiBinary((2, 3)))
    assert not leaf.categorical
    assert (leaf.shape, leaf.dtype) == ((2, 3), np.int8)
    assert leaf.maximum is not None
    assert leaf.maximum.all()


def test_dict_and_tuple_depth_first_in_the_spaces_own_order() -> None:
    space = spaces.Dict(
        {
            "b": spaces.Tuple([BOX, spaces.Dict({"deep": BOX})]),
            "a": TWO,
        }
    )
    names = [leaf.name for leaf in observation(space)]
    assert names == [
        name for key in space.spaces for name in (["b/0", "b/1/deep"] if key == "b" else ["a"])
    ]


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (TWO, "categorical int64[] in [0, 1]"),
        (spaces.MultiDiscrete([2, 3]), "categorical int64[2] in [0, 2] (differing by element)"),
        (spaces.Box(-1, 1, (3,), np.float32), "float32[3] in [-1.0, 1.0]"),
    ],
)
def test_actions(space: Any, text: str) -> None:
    assert str(from_spaces(BOX, space).action) == text


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            spaces.Text(4),
            "observation space Text.* is not supported: expected Box, Discrete, MultiDiscrete, ",
        ),
        (spaces.Dict({"a": spaces.Text(4)}), "observation space Text.* at 'a' is not supported"),
        (spaces.Sequence(BOX), "observation space Sequence.* is not supported"),
        (spaces.Tuple([]), "has no arrays in it"),
        (
            spaces.Dict({"a/b": BOX}),
            "observation space key 'a/b': expected 1 to 200 printable characters without '/'",
        ),
        (spaces.Dict({"": BOX}), "observation space key '': expected 1 to 200 printable characters"),
        (spaces.Dict({3: BOX}), "observation space key 3: expected 1 to 200 printable characters"),
        (spaces.Dict({"\ud800": BOX}), r"observation space key '\\ud800': expected 1 to 200 printable"),
        (spaces.Dict({"a\nb": BOX}), r"observation space key 'a\\nb': expected 1 to 200 printable"),
        (
            spaces.Tuple([spaces.Dict({"a" * 10**6: BOX})]),
            "observation space key 'aaaaaaaaaaaa...aaaaaaaaaaaaa': expected 1 to 200 printable",
        ),
        (spaces.Box(0, 1, (0,), np.float32), r"expected at most 16 dimensions of at least 1"),
        (
            spaces.Dict({"a" * MAX_NAME: spaces.Dict({"b": BOX})}),
            "expected a name of at most 200 characters",
        ),
        (spaces.Tuple([TWO] * (MAX_LEAVES + 1)), "expected 1 to 256 leaves, found 257"),
        (spaces.Discrete(MAX_CATEGORIES + 1), "expected at most 1048576 categories, found 1048577"),
        (None, "observation space None is not supported"),
    ],
)
def test_observation_spaces_that_are_refused(space: Any, message: str) -> None:
    with pytest.raises(UnsupportedSpace, match=message):
        from_spaces(space, TWO)


@pytest.mark.parametrize(
    "space",
    [spaces.MultiBinary(2), spaces.Box(0, 9, (2,), np.int64), spaces.Dict({"a": TWO}), spaces.Text(3)],
)
def test_action_spaces_that_are_refused(space: Any) -> None:
    with pytest.raises(UnsupportedSpace, match=r"action space .* is not supported: expected Discrete"):
        from_spaces(BOX, space)


# Over the wire ----------------------------------------------------------------------------------


def valid() -> pb.EnvironmentSpec:
    return to_proto(from_spaces(spaces.Dict({"a": BOX, "b": TWO}), spaces.Discrete(4)))


@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (BOX, TWO),
        (spaces.Dict({"a": BOX, "b": spaces.Tuple([TWO, spaces.MultiBinary(3)])}), BOX),
        (spaces.Box(-np.inf, np.inf, (3, 4), np.float64), spaces.MultiDiscrete([2, 3], start=[1, 1])),
        (spaces.Box(0, 255, (84, 84, 1), np.uint8), spaces.Discrete(18)),
    ],
)
def test_round_trip(observation_space: Any, action_space: Any) -> None:
    spec = from_spaces(observation_space, action_space)
    data = to_proto(spec).SerializeToString()
    back = from_proto(pb.EnvironmentSpec.FromString(data))
    assert back == spec
    assert hash(back) == hash(spec)


def test_bounds_are_optional_for_quantities() -> None:
    message = valid()
    message.observation[0].minimum = message.observation[0].maximum = b""
    leaf = from_proto(message).observation[0]
    assert leaf.minimum is None
    assert str(leaf) == "a: float32[2]"
    with pytest.raises(ValueError, match="has no bounds"):
        _ = leaf.num_categories


def change(path: str, **fields: Any) -> pb.EnvironmentSpec:
    message = valid()
    target = message.action if path == "action" else message.observation[0]
    for name, value in fields.items():
        if name == "shape":
            del target.shape[:]
            target.shape.extend(value)
        else:
            setattr(target, name, value)
    return message


def without_action() -> pb.EnvironmentSpec:
    message = valid()
    message.ClearField("action")
    return message


def with_leaves(*leaves: pb.ArraySpec) -> pb.EnvironmentSpec:
    return pb.EnvironmentSpec(observation=leaves, action=valid().action)


def int64(value: int) -> bytes:
    return np.int64(value).tobytes()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (pb.EnvironmentSpec(), "observation spec: expected 1 to 256 leaves, found 0"),
        (without_action(), "action spec: expected one, found none"),
        (with_leaves(*[valid().observation[0]] * 2), r"distinct names, found \['a', 'a'\]"),
        (change("a", name="x" * 201), "expected a name of at most 200 characters"),
        (
            change("a", dtype="object"),
            "observation spec 'a': expected a dtype of bool, .*found 'object'",
        ),
        (change("a", dtype="<f4"), "expected a dtype of bool, .* found '<f4'"),
        (change("a", dtype=""), "expected a dtype"),
        (change("a", dtype="x" * 10**6), "found 'x{200}'$"),
        (change("a", name="a\nb"), r"observation spec 'a\\nb': expected a name of printable characters"),
        (change("a", kind=0), "expected NUMERIC or CATEGORICAL, found 0"),
        (change("a", kind=9), "expected NUMERIC or CATEGORICAL, found 9"),
        (change("a", shape=[0]), r"found shape \[0\]"),
        (change("a", shape=[1] * 17), "expected at most 16 dimensions"),
        (change("a", shape=[2**31, 2**31, 2**31]), f"and {MAX_ELEMENTS} elements"),
        (change("a", minimum=b"abc"), "minimum: expected 8 bytes, found 3"),
        (change("a", maximum=b""), "maximum: expected 8 bytes, found 0"),
        (change("a", minimum=np.float32([2, 2]).tobytes()), "expected minimum <= maximum"),
        (change("a", minimum=np.float32([np.nan, 0]).tobytes()), "expected minimum <= maximum"),
        (change("a", kind=pb.CATEGORICAL), "expected bounds and an integer dtype for categories"),
        (change("action", minimum=b"", maximum=b""), "expected bounds and an integer dtype"),
        (change("action", maximum=int64(2**20)), "expected at most 1048576 categories, found 1048577"),
        (
            change("action", minimum=int64(-(2**63)), maximum=int64(2**63 - 1)),
            f"found {2**64}",
        ),
        (
            change("action", kind=pb.NUMERIC),
            "action spec: expected a categorical array or a bounded float array, found int64",
        ),
        (
            change("action", kind=pb.NUMERIC, dtype="float64", minimum=b"", maximum=b""),
            "action spec: expected a categorical array or a bounded float array, found float64",
        ),
    ],
)
def test_messages_that_are_refused(message: pb.EnvironmentSpec, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        from_proto(message)


# Specs themselves -------------------------------------------------------------------------------


def test_specs_differ_in_every_part() -> None:
    bounds = {"minimum": np.zeros(2, np.float32), "maximum": np.ones(2, np.float32)}
    base = ArraySpec("a", (2,), np.dtype("float32"), **bounds)  # type: ignore[arg-type]
    others = [
        ArraySpec("b", (2,), np.dtype("float32"), **bounds),  # type: ignore[arg-type]
        ArraySpec("a", (2, 1), np.dtype("float32"), **bounds),  # type: ignore[arg-type]
        ArraySpec("a", (2,), np.dtype("int32"), **bounds),  # type: ignore[arg-type]
        ArraySpec("a", (2,), np.dtype("float32"), True, **bounds),  # type: ignore[arg-type]
        ArraySpec("a", (2,), np.dtype("float32"), False, -bounds["maximum"], bounds["maximum"]),
        ArraySpec("a", (2,), np.dtype("float32"), False, bounds["minimum"], bounds["maximum"] * 2),
        ArraySpec("a", (2,), np.dtype("float32")),
    ]
    assert base not in others
    assert base == ArraySpec("a", (2,), np.dtype("float32"), **bounds)  # type: ignore[arg-type]
    assert base != "a"


def test_zeros() -> None:
    zeros = only(BOX).zeros(3, 4)
    assert zeros.shape == (3, 4, 2)
    assert zeros.dtype == np.float32
    assert not zeros.any()


def test_text_of_an_environment() -> None:
    spec: EnvironmentSpec = from_spaces(spaces.Dict({"a": BOX, "b": TWO}), spaces.Discrete(4))
    assert str(spec) == (
        "observation (a: float32[2] in [0.0, 1.0]; b: categorical int64[] in [0, 1]), "
        "action (categorical int64[] in [0, 3])"
    )


# Flattening -------------------------------------------------------------------------------------


def test_flatten_follows_the_specs_order() -> None:
    specs = observation(spaces.Dict({"a": TWO, "b": spaces.Tuple([BOX, spaces.Dict({"c": BOX})])}))
    flatten = flattener(specs)
    assert [leaf.name for leaf in specs] == ["a", "b/0", "b/1/c"]
    assert flatten({"b": ("second", {"c": "third"}), "a": "first"}) == ["first", "second", "third"]


def test_a_single_array_is_its_own_leaf() -> None:
    assert flattener(observation(BOX))("array") == ["array"]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, "observation: expected an entry 'a/0', found dict without 'a'"),
        ({"a": ()}, "observation: expected an entry 'a/0', found tuple without '0'"),
        ({"a": {"x": 1}}, "observation: expected an entry 'a/0', found dict without '0'"),
        (None, "observation: expected an entry 'a/0', found NoneType without 'a'"),
    ],
)
def test_flatten_names_what_is_missing(found: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        flattener(observation(spaces.Dict({"a": spaces.Tuple([BOX])})))(found)
    assert str(caught.value) == message

"""Arrays to bytes and back, and everything that is refused on the way."""

from typing import Any

import numpy as np
import pytest

from protos.errors import InvalidRequest
from protos.specs import DTYPES, ArraySpec
from protos.tensors import decode, decode_rows, encode


def spec(dtype: str, *shape: int, **more: Any) -> ArraySpec:
    return ArraySpec("x", shape, np.dtype(dtype), **more)


def categories(low: int, high: int) -> ArraySpec:
    return spec("int64", categorical=True, minimum=np.int64(low), maximum=np.int64(high))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 4)])
def test_round_trip(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.random.default_rng(0).random((5, *shape)) * 2).astype(dtype)
    leaf = spec(dtype, *shape)
    data = encode(array, leaf, 5, "x")
    assert len(data) == 5 * leaf.num_bytes
    back = decode(data, leaf, 5, "x")
    assert back.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(back, array)


def test_no_rows_are_no_bytes() -> None:
    assert encode(np.zeros((0, 3), np.float32), spec("float32", 3), 0, "x") == b""


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(6, dtype=np.float32).reshape(2, 3).astype(">f4"),
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
        np.arange(6, dtype=np.float64).reshape(2, 3),
        np.arange(6, dtype=np.int8).reshape(2, 3),
    ],
    ids=["Fortran order", "big endian", "strided", "float64", "int8"],
)
def test_layouts_and_dtypes_that_cast_are_accepted(array: np.ndarray) -> None:
    leaf = spec("float32", 3)
    np.testing.assert_array_equal(decode(encode(array, leaf, 2, "x"), leaf, 2, "x"), array)


def test_lists_are_accepted() -> None:
    assert encode([1, 2], spec("int64"), 2, "x") == np.array([1, 2], np.int64).tobytes()


@pytest.mark.parametrize(
    ("array", "dtype", "found"),
    [
        (np.zeros((2, 4), np.float32), "float32", "found float32[2, 4]"),
        (np.zeros((3, 3), np.float32), "float32", "found float32[3, 3]"),
        (np.zeros(6, np.float32), "float32", "found float32[6]"),
        (np.zeros((2, 3), np.float32), "uint8", "found float32[2, 3]"),
        (np.zeros((2, 3), np.int64), "uint8", "found int64[2, 3]"),
        (np.zeros((2, 3), object), "float32", "found object[2, 3]"),
        (np.zeros((2, 3), np.int64), "bool", "found int64[2, 3]"),
    ],
)
def test_encode_refuses_other_shapes_and_dtypes(array: np.ndarray, dtype: str, found: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode(array, spec(dtype, 3), 2, "observation 'x'")
    assert str(caught.value) == f"observation 'x': expected {dtype}[2, 3], {found}"


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        (np.array([[1, 2, 300]]), "int8", "found int64[1, 3] of 1 to 300"),
        (np.array([[-129, 0, 127]]), "int8", "found int64[1, 3] of -129 to 127"),
        (np.array([[0, 2**31, 5]]), "int32", "found int64[1, 3] of 0 to 2147483648"),
        (np.array([[200, 1, 2]], np.uint8), "int8", "found uint8[1, 3] of 1 to 200"),
        (
            np.array([[2**63, 1, 2]], np.uint64),
            "int64",
            "found uint64[1, 3] of 1 to 9223372036854775808",
        ),
        (np.array([[256, 0, 0]], np.uint16), "uint8", "found uint16[1, 3] of 0 to 256"),
    ],
)
def test_encode_refuses_integers_that_would_wrap(values: np.ndarray, dtype: str, found: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode(values, spec(dtype, 3), 1, "observation 'x'")
    assert str(caught.value) == f"observation 'x': expected {dtype}[1, 3], {found}"


@pytest.mark.parametrize("source", ["bool", "int16", "int64", "uint8", "uint64"])
def test_integers_that_fit_are_accepted(source: str) -> None:
    values, leaf = np.array([[0, 1, 1]]).astype(source), spec("int8", 3)
    np.testing.assert_array_equal(decode(encode(values, leaf, 1, "x"), leaf, 1, "x"), values)
    assert encode(values[:0], leaf, 0, "x") == b""


def test_floats_are_rounded_and_beyond_the_range_infinite_which_decode_refuses() -> None:
    leaf = spec("float32", 2)
    back = decode(encode(np.array([[0.1, -1e-60]]), leaf, 1, "x"), leaf, 1, "x")
    np.testing.assert_array_equal(back, np.float32([[0.1, 0]]))
    with pytest.raises(InvalidRequest, match="expected finite numbers, found NaN or infinity"):
        decode(encode(np.array([[0.1, 1e300]]), leaf, 1, "x"), leaf, 1, "x")


def test_decoded_arrays_are_views_and_read_only() -> None:
    data = np.arange(4, dtype=np.float32).tobytes()
    array = decode(data, spec("float32", 2), 2, "x")
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    assert not array.flags.writeable


@pytest.mark.parametrize("size", [0, 15, 17, 32])
def test_decode_refuses_other_numbers_of_bytes(size: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(bytes(size), spec("float32", 2), 2, "x")
    assert str(caught.value) == f"x: expected 16 bytes (2 rows of x: float32[2]), found {size}"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_decode_refuses_floats_that_are_not_finite(dtype: str, value: float) -> None:
    data = np.array([0, value], dtype).tobytes()
    with pytest.raises(
        InvalidRequest, match=r"^x: expected finite numbers, found NaN or infinity in row 1$"
    ):
        decode(data, spec(dtype), 2, "x")


def test_decode_clips_floats_where_it_is_asked_to() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 7, -7, 0.5], np.float32)
    clipped = decode(values.tobytes(), spec("float32", 6), 1, "x", clip=5.0)
    np.testing.assert_array_equal(clipped, [[0, 5, -5, 5, -5, 0.5]])
    assert clipped.dtype == np.float32


@pytest.mark.parametrize("value", [1e39, -1e300])
def test_decode_refuses_what_would_be_infinite_to_the_policy(value: float) -> None:
    data = np.array([[0, 0], [3e38, value]]).tobytes()
    with pytest.raises(InvalidRequest) as caught:
        decode(data, spec("float64", 2), 2, "x")
    assert str(caught.value) == f"x: expected numbers that a float32 can hold, found {value} in row 1"
    single = np.array(value).tobytes()
    with pytest.raises(InvalidRequest, match=r"in row 0$"):
        decode(single, spec("float64"), 1, "x")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_limit_beyond_the_dtype_still_clips(dtype: str) -> None:
    values = np.array([np.inf, -np.inf, np.nan, 1], dtype)
    clipped = decode(values.tobytes(), spec(dtype, 4), 1, "x", clip=1e300)
    assert clipped.dtype == dtype
    assert np.isfinite(clipped.astype(np.float32)).all()


def test_decode_clips_no_integers() -> None:
    values = np.array([200], np.uint8)
    assert decode(values.tobytes(), spec("uint8", 1), 1, "x", clip=5.0) == 200


def test_the_row_that_is_not_finite_is_named() -> None:
    values = np.zeros((4, 2, 3), np.float32)
    values[2, 1, 0] = values[3, 0, 0] = np.nan
    with pytest.raises(InvalidRequest, match=r"in row 2$"):
        decode(values.tobytes(), spec("float32", 2, 3), 4, "x")


def test_decode_refuses_bools_of_other_bytes() -> None:
    with pytest.raises(InvalidRequest, match="x: expected bools of 0 or 1, found other bytes"):
        decode(b"\x01\x02", spec("bool"), 2, "x")


@pytest.mark.parametrize("value", [-3, 3])
def test_decode_refuses_categories_out_of_range(value: int) -> None:
    leaf = categories(-2, 2)
    inside = np.array([-2, 2], np.int64)
    np.testing.assert_array_equal(decode(inside.tobytes(), leaf, 2, "x"), inside)
    with pytest.raises(InvalidRequest, match=r"x: expected categories of .*in \[-2, 2\], found"):
        decode(np.array([0, value], np.int64).tobytes(), leaf, 2, "x")


def test_decode_compares_each_category_with_its_own_bounds() -> None:
    leaf = spec("int64", 2, categorical=True, minimum=np.array([0, 5]), maximum=np.array([1, 9]))
    decode(np.array([1, 5]).tobytes(), leaf, 1, "x")
    with pytest.raises(InvalidRequest):
        decode(np.array([5, 1]).tobytes(), leaf, 1, "x")


def test_decode_rows() -> None:
    rows = np.array([1, -2], "<i4")
    np.testing.assert_array_equal(decode_rows(rows.tobytes(), rows.dtype, 2, "environment"), rows)
    with pytest.raises(InvalidRequest) as caught:
        decode_rows(rows.tobytes(), rows.dtype, 3, "environment")
    assert str(caught.value) == "environment: expected 12 bytes (3 rows of int32), found 8"

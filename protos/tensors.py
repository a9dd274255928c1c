"""Arrays to raw bytes and back, without copies where NumPy allows."""

from typing import Any

import numpy as np

from protos.errors import InvalidRequest
from protos.specs import ArraySpec

INDEX = np.dtype("<i4")
REWARD = np.dtype("<f4")
FLAGS = np.dtype("u1")

LARGEST = float(np.finfo(np.float32).max)
"""What a float64 may be at most: policies compute in float32, where more is infinity."""


def encode(value: Any, spec: ArraySpec, rows: int, what: str) -> bytes:
    """`value` as the bytes of [rows, *spec.shape] of the spec's dtype.

    Raises:
        InvalidRequest: another shape, or a dtype or values that do not fit (see `fits`).
    """
    array = np.asarray(value)
    expected = (rows, *spec.shape)
    if array.shape != expected or not fits(array, spec.dtype):
        raise InvalidRequest(
            f"{what}: expected {spec.dtype}{list(expected)}, found {describe(array, spec.dtype)}"
        )
    if array.dtype == spec.dtype:
        return np.ascontiguousarray(array).tobytes()
    # A float that becomes infinite is refused by whoever decodes it, as one that already was.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, spec.dtype).tobytes()


def fits(array: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Whether `array` may be sent as `dtype`: by NumPy's "same_kind" casting (never float to integer or
    signed to unsigned), where integers must keep their values and floats may be rounded."""
    if array.dtype == dtype:
        return True
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        return False
    return dtype.kind not in "iu" or np.array_equal(array, array.astype(dtype))


def describe(array: np.ndarray, dtype: np.dtype[Any]) -> str:
    """What an `array` is that does not fit `dtype`: its dtype and shape, and its values where they
    alone are wrong."""
    text = f"{array.dtype}{list(array.shape)}"
    if np.can_cast(array.dtype, dtype, "same_kind") and not fits(array, dtype):
        return f"{text} of {array.min()} to {array.max()}"
    return text


def decode_rows(data: bytes, dtype: np.dtype[Any], rows: int, what: str) -> np.ndarray:
    """A read-only view of `data` as `dtype` [rows].

    Raises:
        InvalidRequest: another number of bytes.
    """
    expected = rows * dtype.itemsize
    if len(data) != expected:
        raise InvalidRequest(
            f"{what}: expected {expected} bytes ({rows} rows of {dtype.name}), found {len(data)}"
        )
    return np.frombuffer(data, dtype)


def decode(data: bytes, spec: ArraySpec, rows: int, what: str, *, clip: float = 0.0) -> np.ndarray:
    """A read-only view of `data` as [rows, *spec.shape] of the spec's dtype.

    Args:
        clip: if not 0, floats are clipped to [-clip, clip] in a copy, and NaN becomes 0.

    Raises:
        InvalidRequest: another number of bytes, a float that is not finite as a float32 (where none is
            clipped), or a category out of range.
    """
    expected = rows * spec.num_bytes
    if len(data) != expected:
        raise InvalidRequest(
            f"{what}: expected {expected} bytes ({rows} rows of {spec}), found {len(data)}"
        )
    array = np.frombuffer(data, spec.dtype).reshape(rows, *spec.shape)
    if spec.dtype.kind == "f" and clip:
        # A limit that the dtype cannot hold would be infinity, and clip nothing.
        limit = min(clip, LARGEST, float(np.finfo(spec.dtype).max))
        array = np.clip(array, -limit, limit)
        array[np.isnan(array)] = 0
    elif spec.dtype.kind == "f":
        _check_finite(array, what)
    if spec.dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise InvalidRequest(f"{what}: expected bools of 0 or 1, found other bytes")
    if spec.categorical and np.count_nonzero((array < spec.minimum) | (array > spec.maximum)):
        raise InvalidRequest(
            f"{what}: expected categories of {spec}, found {array.min()} to {array.max()}"
        )
    return array


def _check_finite(array: np.ndarray, what: str) -> None:
    finite = np.isfinite(array)
    fit = finite if array.itemsize <= 4 else np.abs(array) <= LARGEST
    if np.count_nonzero(fit) == fit.size:
        return
    row = np.flatnonzero(~fit.reshape(len(array), -1).all(1))[0]
    if not finite[row].all():
        raise InvalidRequest(f"{what}: expected finite numbers, found NaN or infinity in row {row}")
    raise InvalidRequest(
        f"{what}: expected numbers that a float32 can hold, found {array[row][~fit[row]].flat[0]} "
        f"in row {row}"
    )

"""Arrays to raw bytes and back, without copies where NumPy allows."""

from typing import Any

import numpy as np

from protos.errors import InvalidRequest
from protos.specs import ArraySpec

INDEX = np.dtype("<i4")
REWARD = np.dtype("<f4")
FLAGS = np.dtype("u1")


def encode(value: Any, spec: ArraySpec, rows: int, what: str) -> bytes:
    """`value` as the bytes of [rows, *spec.shape] of the spec's dtype.

    Raises:
        InvalidRequest: another shape, or a dtype that does not cast safely.
    """
    array = np.asarray(value)
    expected = (rows, *spec.shape)
    if array.shape != expected or not (
        array.dtype == spec.dtype or np.can_cast(array.dtype, spec.dtype, "same_kind")
    ):
        raise InvalidRequest(
            f"{what}: expected {spec.dtype}{list(expected)}, found {array.dtype}{list(array.shape)}"
        )
    return np.ascontiguousarray(array, spec.dtype).tobytes()


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


def decode(data: bytes, spec: ArraySpec, rows: int, what: str) -> np.ndarray:
    """A read-only view of `data` as [rows, *spec.shape] of the spec's dtype.

    Raises:
        InvalidRequest: another number of bytes, a float that is not finite, or a category out of
            range.
    """
    expected = rows * spec.num_bytes
    if len(data) != expected:
        raise InvalidRequest(
            f"{what}: expected {expected} bytes ({rows} rows of {spec}), found {len(data)}"
        )
    array = np.frombuffer(data, spec.dtype).reshape(rows, *spec.shape)
    if spec.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidRequest(f"{what}: expected finite numbers, found NaN or infinity")
    if spec.dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise InvalidRequest(f"{what}: expected bools of 0 or 1, found other bytes")
    if spec.categorical and ((array < spec.minimum) | (array > spec.maximum)).any():
        raise InvalidRequest(
            f"{what}: expected categories of {spec}, found {array.min()} to {array.max()}"
        )
    return array

"""Memory of torch and numpy, as the native library takes it. Both are imported when they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ._errors import UnsupportedError

if TYPE_CHECKING:
    import numpy
    import torch


class Strided(NamedTuple):
    """Elements in memory. `start` and `strides` count elements, and `owner` keeps the memory alive."""

    address: int
    bytes: int
    start: int
    shape: Sequence[int]
    strides: Sequence[int]
    dtype: str
    owner: Any


class Want(NamedTuple):
    """A region of a tensor, in elements, and the memory to read it into."""

    key: str
    offsets: Sequence[int]
    lengths: Sequence[int]
    into: Strided


# Names of numpy that differ from PyTorch's, which reshard uses.
_NUMPY_NAMES = {"bool_": "bool"}


def numpy_dtype(name: str) -> numpy.dtype[Any]:
    """The element type of numpy, or of ml_dtypes, by PyTorch's name."""
    import numpy

    try:
        found: numpy.dtype[Any] = numpy.dtype(name)
        return found
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError(
            f"numpy has no type {name}; install ml_dtypes, or read it with `.torch()`"
        ) from None
    made = getattr(ml_dtypes, name, None)
    if made is None:
        raise UnsupportedError(f"neither numpy nor ml_dtypes has a type {name}; read it with `.torch()`")
    found = numpy.dtype(made)
    return found


def is_numpy_dtype(name: str) -> bool:
    """Whether there is one."""
    try:
        numpy_dtype(name)
    except UnsupportedError:
        return False
    return True


def empty_numpy(shape: Sequence[int], dtype: str) -> numpy.ndarray[Any, Any]:
    """An array without contents."""
    import numpy

    return numpy.empty(tuple(shape), numpy_dtype(dtype))


def of_numpy(array: numpy.ndarray[Any, Any]) -> Strided:
    """The memory of an array that may be written to."""
    if not array.flags.writeable:
        raise UnsupportedError("the array is read-only; give one that may be written to")
    if not array.dtype.isnative:
        raise UnsupportedError(f"the array has elements of the other byte order ({array.dtype}); convert it first")
    size = array.itemsize
    if any(stride < 0 or stride % size for stride in array.strides):
        raise UnsupportedError("the array runs backwards, or between elements; give a copy of it")
    last = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides))
    length = 0 if array.size == 0 else last + size
    name = array.dtype.name
    return Strided(
        array.__array_interface__["data"][0] if length else 0,
        length,
        0,
        array.shape,
        [stride // size for stride in array.strides],
        _NUMPY_NAMES.get(name, name),
        array,
    )


def torch_dtype(name: str) -> torch.dtype:
    """The element type of torch, by its name."""
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UnsupportedError(f"torch {torch.__version__} has no type {name}")
    return found


def dtype_name(dtype: Any) -> str:
    """PyTorch's name of an element type, which may be of torch, of numpy, or a name already."""
    if isinstance(dtype, str):
        return dtype.removeprefix("torch.")
    text = str(dtype)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or text
    return _NUMPY_NAMES.get(name, name)


def empty_torch(shape: Sequence[int], dtype: str) -> torch.Tensor:
    """A tensor without contents, in host memory."""
    import torch

    return torch.empty(tuple(shape), dtype=torch_dtype(dtype))


def of_torch(tensor: torch.Tensor) -> Strided:
    """The memory of a tensor in host memory."""
    storage = tensor.untyped_storage()
    return Strided(
        storage.data_ptr(),
        storage.nbytes(),
        int(tensor.storage_offset()),
        tensor.shape,
        tensor.stride(),
        dtype_name(tensor.dtype),
        tensor,
    )

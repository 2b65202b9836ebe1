"""Stored tensors, which are read when they are asked for."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from . import _memory
from ._errors import MismatchError

if TYPE_CHECKING:
    import numpy as np
    import torch as pt

    from ._reshard import Source


class Tensor:
    """A tensor of a checkpoint, or a part of one. Nothing is read before one of its methods asks for elements.

    Index it as you index an array: ``t[0:128, ::]``, ``t[3]``, ``t[..., -1]``. The result is a part of it, of which only the bytes are read.
    Steps other than 1 are refused: read the range, then take every n-th element.

    Attributes
    ----------
    key : str
        The key of the tensor.
    dtype : str
        PyTorch's name of the stored element type, such as ``"bfloat16"``.
    shape : tuple of int
        Elements along each axis.
    """

    __slots__ = ("_axes", "_lengths", "_offsets", "_source", "dtype", "key", "shape")

    def __init__(
        self,
        source: Source,
        key: str,
        dtype: str,
        offsets: tuple[int, ...],
        lengths: tuple[int, ...],
        axes: tuple[int, ...],
    ) -> None:
        self._source = source
        self._offsets = offsets
        self._lengths = lengths
        # An index takes an axis of the stored tensor away.
        self._axes = axes
        self.key = key
        self.dtype = dtype
        self.shape = tuple(lengths[axis] for axis in axes)

    def __repr__(self) -> str:
        return f"<reshard.Tensor {self.key!r} {self.dtype} {list(self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.key} has no axes")
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def chunks(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Offsets and lengths, in elements, of the chunks in which the whole tensor is stored."""
        return [(tuple(offsets), tuple(lengths)) for offsets, lengths in self._source.chunks(self.key)]

    def __getitem__(self, index: Any) -> Tensor:
        parts = index if isinstance(index, tuple) else (index,)
        given = sum(part is not Ellipsis for part in parts)
        if given > self.ndim or len(parts) - given > 1:
            raise IndexError(f"{self.key}: the index {index!r} does not fit {self.ndim} axes")
        if given == len(parts):
            parts += (Ellipsis,)
        at = parts.index(Ellipsis)
        parts = parts[:at] + (slice(None),) * (self.ndim - given) + parts[at + 1 :]

        offsets, lengths, axes = list(self._offsets), list(self._lengths), []
        for axis, part in zip(self._axes, parts):
            start, length = self._range(part, lengths[axis])
            offsets[axis] += start
            lengths[axis] = 1 if length is None else length
            if length is not None:
                axes.append(axis)
        return Tensor(self._source, self.key, self.dtype, tuple(offsets), tuple(lengths), tuple(axes))

    def _range(self, part: Any, length: int) -> tuple[int, int | None]:
        """First element and number of elements; None if the axis goes away."""
        if isinstance(part, slice):
            start, stop, step = part.indices(length)
            if step != 1:
                raise IndexError(f"{self.key}: steps of {step} are not supported; read the range, then take every n-th element")
            return start, max(stop - start, 0)
        try:
            at = operator.index(part)
        except TypeError:
            raise IndexError(f"{self.key}: {part!r} is no index; ints, slices and ... are") from None
        if not -length <= at < length:
            raise IndexError(f"{self.key}: index {at} is out of range for an axis of {length}")
        return at % length, None

    def _want(self, into: _memory.Strided) -> _memory.Want:
        return _memory.Want(self.key, self._offsets, self._lengths, self._unsqueezed(into))

    def _unsqueezed(self, into: _memory.Strided) -> _memory.Strided:
        """The same memory with the axes that an index took away, which have one element."""
        if tuple(into.shape) != self.shape:
            raise MismatchError(f"{self.key}: memory of shape {list(into.shape)} can't take {list(self.shape)}", key=self.key)
        strides = [1] * len(self._lengths)
        for axis, stride in zip(self._axes, into.strides):
            strides[axis] = stride
        return into._replace(shape=self._lengths, strides=strides)

    def numpy(self, dtype: Any = None, *, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Read it as an array of numpy.

        Parameters
        ----------
        dtype : numpy dtype, torch dtype or str, optional
            The element type. By default the stored one; bfloat16 and float8 are types of ml_dtypes.
        out : numpy.ndarray, optional
            Memory to read into, of the same shape. Its type counts then.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array.

        Raises
        ------
        DamagedError
            A checksum is wrong, or bytes are missing.
        MismatchError
            `out` has another shape; a number does not fit the type.
        UnsupportedError
            Numpy has no such type.
        """
        if out is None:
            name = self.dtype if dtype is None else _memory.dtype_name(dtype)
            out = _memory.empty_numpy(self.shape, name)
        self._source.read([self._want(_memory.of_numpy(out))])
        return out

    def torch(
        self, dtype: Any = None, *, device: Any = "cpu", out: pt.Tensor | None = None
    ) -> pt.Tensor:
        """Read it as a tensor of torch.

        Parameters
        ----------
        dtype : torch dtype, numpy dtype or str, optional
            The element type. By default the stored one.
        device : torch.device or str, optional
            Where the result lies. Elements for other devices than the CPU pass through host memory.
        out : torch.Tensor, optional
            A tensor in host memory to read into, of the same shape. Its type counts then.

        Returns
        -------
        torch.Tensor
            `out`, or a new tensor.

        Raises
        ------
        DamagedError
            A checksum is wrong, or bytes are missing.
        MismatchError
            `out` has another shape; a number does not fit the type.
        """
        if out is not None:
            if out.device.type != "cpu":
                raise MismatchError(f"{self.key}: `out` lies on {out.device}; give a tensor in host memory", key=self.key)
            self._source.read([self._want(_memory.of_torch(out.detach()))])
            return out
        name = self.dtype if dtype is None else _memory.dtype_name(dtype)
        made = _memory.empty_torch(self.shape, name)
        self._source.read([self._want(_memory.of_torch(made))])
        return made.to(device)

    def tobytes(self) -> bytes:
        """Read its elements in row-major order, as they are stored. This needs neither numpy nor torch."""
        return self._source.region(self.key, self._offsets, self._lengths).tobytes()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(f"{self.key} has to be read, so it can't be had without a copy")
        return self.numpy(dtype)

"""Host memory for tensors of other devices, and which tensors have plain memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from .._errors import UnsupportedError

T = TypeVar("T")
U = TypeVar("U")

# Bytes of host memory for a group of tensors of a device. While one group is written, the next one is copied.
GROUP = 256 << 20

_PLAIN = [torch.Tensor, torch.nn.Parameter]
if hasattr(torch.nn, "Buffer"):  # since torch 2.5
    _PLAIN.append(torch.nn.Buffer)


def plain(tensor: torch.Tensor, key: str, doing: str) -> torch.Tensor:
    """The same tensor without gradients, if its elements lie in memory as its shape and strides say.

    Raises
    ------
    UnsupportedError
        It is sparse, quantised, without data, or of a class of its own.
    """
    kind = type(tensor)
    why = None
    if kind not in _PLAIN:
        why = f"of the class {kind.__module__}.{kind.__qualname__}, whose elements only that class knows"
    elif tensor.layout is not torch.strided:
        why = f"of the layout {tensor.layout}"
    elif tensor.is_quantized:
        why = "quantised by torch.quantize_*"
    elif tensor.is_meta:
        why = "on the device meta, so that it has no elements"
    if why is not None:
        raise UnsupportedError(f"{key}: {doing} a tensor {why} is not supported; use a dense tensor, or leave the key out", key=key)
    return tensor.detach()


def is_in_host_memory(tensor: torch.Tensor) -> bool:
    """Whether the native library can reach its elements."""
    return tensor.device.type == "cpu"


def host_for(tensor: torch.Tensor) -> torch.Tensor:
    """Host memory for the elements of a tensor of a device, without contents. Pinned memory makes copies from and to CUDA fast."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in host memory. A lazy conjugation or negation is carried out. Others share the memory of the tensor."""
    if is_in_host_memory(tensor):
        return tensor.resolve_conj().resolve_neg()
    # Waits for the end of the copy.
    return host_for(tensor).copy_(tensor)


def groups(items: Iterable[tuple[T, int]]) -> Iterator[list[T]]:
    """Items in groups of at most `GROUP` bytes, but of at least one item each."""
    group: list[T] = []
    size = 0
    for item, nbytes in items:
        if group and size + nbytes > GROUP:
            yield group
            group, size = [], 0
        group.append(item)
        size += nbytes
    if group:
        yield group


def ahead(make: Callable[[list[T]], list[U]], each: Iterable[list[T]]) -> Iterator[list[U]]:
    """`make` of each group, of which one is made while the one before is used."""
    with ThreadPoolExecutor(1, "reshard-staging") as pool:
        waiting = None
        for group in each:
            next_one = pool.submit(make, group)
            if waiting is not None:
                yield waiting.result()
            waiting = next_one
        if waiting is not None:
            yield waiting.result()

"""State dicts of PyTorch as the native library takes them."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from .. import _memory
from .._errors import UnsupportedError
from . import _staging

# DTensor had another place before torch 2.5.
_DTENSOR = "torch.distributed.tensor" if importlib.util.find_spec("torch.distributed.tensor._utils") else "torch.distributed._tensor"
DTensor: Any = importlib.import_module(_DTENSOR).DTensor
compute_local_shape_and_global_offset: Any = importlib.import_module(f"{_DTENSOR}._utils").compute_local_shape_and_global_offset

_SIMPLE = (type(None), bool, int, float, str, bytes)


class Declared:
    """A state dict as nodes for the native library.

    Attributes
    ----------
    node : dict
        The nodes.
    values : list of tuple
        For each leaf that is no tensor, in order: the container and the key where it lies.
    staged : list of tuple
        Tensors of other devices, with the host memory into which a load reads their elements.
    nbytes : int
        Bytes of all tensors of this rank.
    """

    def __init__(self, state: Mapping[str, Any], *, load: bool) -> None:
        self._load = load
        self.values: list[tuple[Any, Any]] = []
        self.staged: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.nbytes = 0
        self.node = self._dict(state, ())

    def _dict(self, state: Mapping[Any, Any], path: tuple[Any, ...]) -> dict[str, Any]:
        nodes = []
        for key, value in state.items():
            if type(key) not in (str, int) or (isinstance(key, int) and key < 0):
                name = ".".join(map(str, path)) or "the state"
                raise UnsupportedError(f"{name}: the key {key!r} is neither a string nor an int from 0 on", key=name)
            node = self._node(value, (*path, key), (state, key))
            if node is not None:
                nodes.append((key, node))
        return {"dict": nodes}

    def _node(self, value: Any, path: tuple[Any, ...], at: tuple[Any, Any]) -> dict[str, Any] | None:
        name = ".".join(map(str, path))
        if isinstance(value, DTensor):
            return self._dtensor(name, value)
        if isinstance(value, ShardedTensor):
            return self._sharded(name, value)
        if isinstance(value, torch.Tensor):
            return self._plain(name, value)
        if isinstance(value, Mapping):
            return self._dict(value, path)
        if isinstance(value, list):
            nodes = [self._node(one, (*path, n), (value, n)) for n, one in enumerate(value)]
            if any(node is None for node in nodes):
                raise UnsupportedError(f"{name}: a list can't have tensors of which this rank has no part", key=name)
            return {"list": nodes}
        self.values.append(at)
        if self._load:
            return {"value": None}
        if _is_simple(value):
            return {"value": value}
        pickled = io.BytesIO()
        torch.save(value, pickled)
        return {"pickle": pickled.getvalue()}

    def _plain(self, name: str, value: torch.Tensor) -> dict[str, Any]:
        if self._load:
            return self._piece(name, value, value.shape, [0] * value.ndim, [])
        tensor = _staging.plain(value, name, "saving")
        self.nbytes += tensor.nbytes
        # Ranks compare it.
        return {"plain": _memory.of_torch(_staging.to_host(tensor))}

    def _dtensor(self, name: str, value: Any) -> dict[str, Any] | None:
        coordinate = value.device_mesh.get_coordinate()
        if coordinate is None:
            return None
        if any(placement.is_partial() for placement in value.placements):
            raise UnsupportedError(
                f"{name}: the DTensor has a Partial placement, so that no rank has its elements; redistribute it first", key=name
            )
        local = value.to_local()
        shape, offsets = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        if tuple(local.shape) != tuple(shape):
            raise UnsupportedError(
                f"{name}: its local tensor has the shape {list(local.shape)}, and its placements make {list(shape)}", key=name
            )
        if local.numel() == 0 and value.numel() > 0:
            return None
        replica = [at for at, placement in zip(coordinate, value.placements) if placement.is_replicate()]
        return self._piece(name, local, value.shape, offsets, replica)

    def _sharded(self, name: str, value: ShardedTensor) -> dict[str, Any] | None:
        pieces = []
        for shard in value.local_shards():
            if shard.tensor.numel() > 0:
                pieces.append(self._piece(name, shard.tensor, value.size(), shard.metadata.shard_offsets, []))
        return {"list": pieces} if pieces else None

    def _piece(self, name: str, value: torch.Tensor, shape: Any, offsets: Any, replica: list[int]) -> dict[str, Any]:
        tensor = _staging.plain(value, name, "loading into" if self._load else "saving")
        self.nbytes += tensor.nbytes
        piece: dict[str, Any] = {
            "key": name,
            "global_shape": list(shape),
            "offsets": list(offsets),
            "lengths": list(tensor.shape),
            "dtype": _memory.dtype_name(tensor.dtype),
            "replica": replica,
            "memory": None,
            "copy": None,
        }
        if _staging.is_in_host_memory(tensor):
            host = tensor if self._load else _staging.to_host(tensor)
            piece["memory"] = _memory.of_torch(host)
        elif self._load:
            host = _staging.host_for(tensor)
            self.staged.append((tensor, host))
            piece["memory"] = _memory.of_torch(host)
        else:
            piece["copy"] = _copy_of(tensor)
        return piece


def _copy_of(tensor: torch.Tensor) -> Any:
    """Copies regions of a tensor of a device to host memory that the native library has."""

    def copy(offsets: list[int], lengths: list[int], address: int, nbytes: int) -> None:
        part = tensor
        for axis, (offset, length) in enumerate(zip(offsets, lengths)):
            part = part.narrow(axis, offset, length)
        # The library waits for the end of the call, so the memory is there.
        into = (ctypes.c_char * nbytes).from_address(address)
        host = torch.frombuffer(into, dtype=torch.uint8).view(tensor.dtype).view(part.shape)
        host.copy_(part)

    return copy


def _is_simple(value: Any) -> bool:
    kind = type(value)
    if kind in _SIMPLE:
        return True
    if kind in (tuple, set):
        return all(_is_simple(one) for one in value)
    return False

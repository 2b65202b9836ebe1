"""A storage reader of `torch.distributed.checkpoint` for every format."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from .. import _memory
from .._checkpoint import Checkpoint, open
from .._errors import MismatchError
from . import _staging

_log = logging.getLogger("reshard")


class StorageReader(storage.StorageReader):
    """Reads checkpoints of any format for `dcp.load`, onto any mesh.

    Tensors are read into the memory of the state dict, without the interpreter's lock. Checksums are verified. Each rank reads only what it needs.

    DCP's planners unpickle objects. So an object is decoded without executing anything and handed over as plain values; if it refers to a class that is not
    known to be harmless, that is an error.

    Parameters
    ----------
    place : str, path or Checkpoint
        A folder, a file or a URL; or a checkpoint that is already open, also under a map (`Checkpoint.map`).
    allow_pickle : bool, optional
        Whether objects are handed over as they are stored, for planners to unpickle, whatever they refer to. Only for checkpoints that you trust.
    verify : bool, optional
        Whether the checksum of everything that is read as a whole is checked.
    format, item, open_modules, progress
        As for `reshard.open`.

    Notes
    -----
    If ranks saved different values under one key with ``use_collectives=False``, all ranks read the value of the lowest rank.

    Not run on CUDA. Tensors of other devices than the CPU are read through host memory in groups of 256 MiB.
    """

    def __init__(
        self,
        place: str | os.PathLike[str] | Checkpoint,
        *,
        allow_pickle: bool = False,
        verify: bool = True,
        format: str | None = None,
        item: str | None = None,
        open_modules: bool = False,
        progress: Callable[[int, int], object] | bool | None = None,
    ) -> None:
        super().__init__()
        self._place = place
        self._allow_pickle = allow_pickle
        self._how: dict[str, Any] = {
            "verify": verify,
            "format": format,
            "item": item,
            "open_modules": open_modules,
            "progress": progress,
        }
        self._open: Checkpoint | None = None
        # The exception of the last `read_metadata`.
        self._failed: Exception | None = None

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """Where the checkpoint lies."""
        return self._place.url if isinstance(self._place, Checkpoint) else self._place

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint, opened when it is first needed."""
        if self._open is None:
            self._open = self._place if isinstance(self._place, Checkpoint) else open(self._place, **self._how)
        return self._open

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a load."""
        if checkpoint_id:
            self._place = checkpoint_id
        self._open = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it can be a place. Only opening it tells more."""
        return bool(os.fspath(checkpoint_id))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What is stored, as DCP describes it: each tensor is one chunk, however it is cut, because any part of it can be read."""
        # After a failure, DCP asks for the metadata of this rank alone. A success would take the rank out of the collectives, in which the others wait for it.
        if self._failed is not None and kwargs.get("rank") is not None:
            raise self._failed
        try:
            return self._describe()
        except Exception as e:
            self._failed = e
            raise

    def _describe(self) -> Metadata:
        # A load begins with this call, and DCP calls `reset` only with a `checkpoint_id`. The checkpoint may have been saved anew since the last load.
        self._open, self._failed = None, None
        source = self.checkpoint._source
        described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for key, dtype, shape in source.tensors():
            size = torch.Size(shape)
            chunk = ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=size)
            properties = TensorProperties(dtype=_memory.torch_dtype(dtype))
            described[key] = TensorStorageMetadata(properties, size, [chunk])
        for key in source.objects():
            described[key] = BytesStorageMetadata()
        paths = source.paths()
        return Metadata(
            state_dict_metadata=described,
            planner_data={key: tuple(paths.get(key, (key,))) for key in described},
            storage_data={},
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing needs to be set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what a plan wants.

        Raises
        ------
        DamagedError
            A checksum is wrong, or bytes are missing.
        PickleError
            An object refers to a class or function that could do anything.
        """
        source = self.checkpoint._source
        tensors: list[tuple[ReadItem, torch.Tensor]] = []
        for item in plan.items:
            key = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(source.pickled(key, self._allow_pickle)))
                continue
            target = planner.resolve_tensor(item)
            if target.shape != item.lengths:
                raise MismatchError(
                    f"{key}: the planner gave memory of shape {list(target.shape)} for {list(item.lengths)}", key=key
                )
            tensors.append((item, target))

        here = [(i, t) for i, t in tensors if _staging.is_in_host_memory(t)]
        source.read([_want(i, _staging.plain(t, i.storage_index.fqn, "reading into")) for i, t in here])
        for item, target in here:
            planner.commit_tensor(item, target)

        elsewhere = [((i, t), t.nbytes) for i, t in tensors if not _staging.is_in_host_memory(t)]
        for group in _staging.groups(elsewhere):
            self._read_through_host(group, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_through_host(self, group: list[tuple[ReadItem, torch.Tensor]], planner: LoadPlanner) -> None:
        staged = []
        for item, target in group:
            key = item.storage_index.fqn
            detached = _staging.plain(target, key, "reading into")
            staged.append((item, target, detached, _staging.host_for(detached)))
        self.checkpoint._source.read([_want(item, host) for item, _, _, host in staged])
        for item, target, detached, host in staged:
            detached.copy_(host)
            planner.commit_tensor(item, target)


def _want(item: ReadItem, target: torch.Tensor) -> _memory.Want:
    return _memory.Want(item.storage_index.fqn, item.storage_offsets, item.lengths, _memory.of_torch(target))

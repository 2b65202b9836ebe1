"""A storage writer of `torch.distributed.checkpoint` that commits in one step."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import pickle
import shutil
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .. import _memory, _reshard
from .._errors import Error, ExistsError, MismatchError, UnsupportedError
from . import _staging

_log = logging.getLogger("reshard")

_METADATA = ".metadata"


class _Begun(NamedTuple):
    """What a rank needs to write into the version that the coordinator has begun."""

    attempt: str
    at_place: str | None


# Storage data of the save that the current thread takes part in. A planner with cached plans returns an old plan with the storage data of an old save, so each
# thread notes the storage data that it receives.
_received = threading.local()


class _Told:
    """The storage data of a plan."""

    def __init__(self, prefix: int, begun: _Begun) -> None:
        self.prefix, self.begun = prefix, begun
        _received.told = self

    def __reduce__(self) -> Any:
        return _Told, (self.prefix, self.begun)


class StorageWriter(storage.StorageWriter):
    """Writes checkpoints for `dcp.save` and `dcp.async_save`, which `FileSystemReader` and any other reader of DCP's format can load.

    A save becomes visible in one step: a process that is killed leaves the old checkpoint or the new one. Tensors are written from their own memory, without the
    interpreter's lock, and with a CRC-32 of each.

    Parameters
    ----------
    place : str or path
        A folder, or a URL such as ``s3://bucket/step-1000``.
    overwrite : bool, optional
        Whether a checkpoint that lies there is replaced. It stays whole until the new one is complete. Other files stay.
    durable : bool, optional
        Whether everything is synced to the disk before the save returns, so that it survives a crash of the machine.
    progress : callable, optional
        Called with the bytes of this rank that have been written, and with all of them.

    Notes
    -----
    With ``use_collectives=False`` each rank commits its own part, and only local folders are supported. A folder with a checkpoint that was saved with
    collectives, or by more ranks, is refused.

    The files of a save that failed are removed by the next save with the same writer, by `reset`, or when Python frees the writer.

    Don't change tensors of the CPU during a save; `dcp.async_save` copies them first.

    Not run on CUDA. Tensors of other devices than the CPU are copied to host memory in groups of 256 MiB; each group is written while the next one is copied.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        durable: bool = True,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        super().__init__()
        self._place = os.fspath(place)
        self._overwrite = overwrite
        self._durable = durable
        self._progress = progress
        self._save_id = str(uuid.uuid4())
        self._rank: int | None = None
        self._use_collectives = True
        self._version: _reshard.Version | None = None
        self._rollback: weakref.finalize[..., Any] | None = None
        self._alone: _RankAlone | None = None
        # Whether no other rank writes into the version.
        self._is_only_writer = False

    # An executor with a process of its own gets a copy.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_version": None, "_rollback": None, "_alone": None}

    @property
    def checkpoint_id(self) -> str:
        """Where the checkpoint will lie."""
        return self._place

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it can be a place. Only a save tells more."""
        return bool(os.fspath(checkpoint_id))

    def storage_meta(self) -> StorageMeta:
        """Identifies the save."""
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self._save_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a save. What a failed one of this writer has left is removed."""
        self._abandon()
        if checkpoint_id:
            self._place = os.fspath(checkpoint_id)
        self._save_id = str(uuid.uuid4())

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take note of the rank. What a failed save of this writer has left is removed: DCP calls `reset` only with a `checkpoint_id`."""
        self._abandon()
        self._rank = kwargs.get("rank")
        self._use_collectives = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        _received.told = None
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Begin a new version of the place, and tell all ranks its name."""
        if not self._use_collectives and self._rank is not None:
            self._alone = _RankAlone(self._place, self._rank, self._overwrite, self._durable)
            self._begin(self._alone.version, 1)
            return plans
        version = _reshard.begin(self._place, self._overwrite, self._durable)
        self._begin(version, len(plans))
        begun = _Begun(*version.name)
        return [dataclasses.replace(plan, storage_data=_Told(n, begun)) for n, plan in enumerate(plans)]

    def _begin(self, version: _reshard.Version, writers: int) -> None:
        self._version = version
        self._rollback = weakref.finalize(self, _roll_back, version)
        self._is_only_writer = writers == 1

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the items of this rank.

        Raises
        ------
        UnsupportedError
            A tensor is sparse, quantised, without data, or of a class of its own.
        UnavailableError
            Writing failed.
        """
        results: list[WriteResult] = []
        version, prefix = self._joined(plan)
        total = sum(_size(item) for item in plan.items)
        done = 0

        def told(new: int) -> None:
            nonlocal done
            done = min(done + new, total)
            if self._progress is not None:
                self._progress(done, total)

        try:
            for number, group in enumerate(_groups(plan.items, planner)):
                told_of = told if self._progress is not None else None
                places = version.write(prefix, number, [data for _, data in group], told_of)
                results += _results(group, places)
        except BaseException:
            # Other ranks may still be writing. They get an error that hides the cause if their files are removed meanwhile, so `reset` or the end of the writer
            # removes them.
            if self._is_only_writer:
                self._abandon()
            raise
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _joined(self, plan: SavePlan) -> tuple[_reshard.Version, int]:
        if self._alone is not None:
            return self._alone.version, 0
        told = plan.storage_data
        if not isinstance(told, _Told):
            raise MismatchError("the plan was not prepared by this writer; a planner must keep `storage_data`")
        # Nothing is received if another thread took part in the planning.
        told, _received.told = getattr(_received, "told", None) or told, None
        if self._version is not None:
            return self._version, told.prefix
        return _reshard.join(self._place, told.begun.attempt, told.begun.at_place, self._durable), told.prefix

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Make the new version the checkpoint, in one step.

        Raises
        ------
        ExistsError
            Something came to the place meanwhile.
        """
        metadata.version = _version_of_dcp()
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}
        metadata.storage_meta = self.storage_meta()
        files: dict[str, int] = {}
        for info in metadata.storage_data.values():
            end = info.offset + info.length
            files[info.relative_path] = max(files.get(info.relative_path, 0), end)
        if self._alone is not None:
            self._alone.finish(metadata, files)
            self._forget()
            return
        if self._version is None:
            raise Error("finish was called on a rank that has not begun the save")
        self._version.commit((_METADATA, pickle.dumps(metadata)), files)
        self._forget()

    def _forget(self) -> None:
        if self._rollback is not None:
            self._rollback.detach()
        self._version, self._rollback, self._alone = None, None, None

    def _abandon(self) -> None:
        if self._rollback is not None:
            self._rollback()
        self._version, self._rollback, self._alone = None, None, None


def _roll_back(version: _reshard.Version) -> None:
    try:
        version.rollback()
    except Error as e:
        _log.warning("what a failed save has left could not be removed: %s", e)


def _version_of_dcp() -> str | None:
    try:
        from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION
    except ImportError:  # before 2.8
        return None
    return CURRENT_DCP_VERSION


def _size(item: WriteItem) -> int:
    size = item.tensor_storage_size()
    return 0 if size is None else size


class _Data(NamedTuple):
    """An item with the tensor or the bytes that a planner has for it."""

    item: WriteItem
    data: dict[str, Any]


def _groups(items: list[WriteItem], planner: SavePlanner) -> Iterator[list[_Data]]:
    """The items of each file. All that lies in host memory goes into the first one."""
    here: list[_Data] = []
    elsewhere: list[tuple[tuple[WriteItem, torch.Tensor], int]] = []
    for item in items:
        key = item.index.fqn
        data = planner.resolve_data(item)
        if isinstance(data, io.BytesIO):
            here.append(_Data(item, {"key": key, "object": data.getvalue()}))
            continue
        if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
            raise MismatchError(f"{key}: the planner gave a tensor for an object", key=key)
        tensor = _staging.plain(data, key, "saving")
        if _staging.is_in_host_memory(tensor):
            here.append(_Data(item, _described(item, _staging.to_host(tensor))))
        else:
            elsewhere.append(((item, tensor), tensor.nbytes))
    if here:
        yield here

    def stage(group: list[tuple[WriteItem, torch.Tensor]]) -> list[_Data]:
        return [_Data(item, _described(item, _staging.to_host(tensor))) for item, tensor in group]

    yield from _staging.ahead(stage, _staging.groups(elsewhere))


def _described(item: WriteItem, tensor: torch.Tensor) -> dict[str, Any]:
    key, data = item.index.fqn, item.tensor_data
    assert data is not None
    if tensor.shape != data.chunk.sizes:
        raise MismatchError(f"{key}: the planner gave a tensor of shape {list(tensor.shape)} for {list(data.chunk.sizes)}", key=key)
    return {
        "key": key,
        "offsets": data.chunk.offsets,
        "global_shape": data.size,
        "memory": _memory.of_torch(tensor),
    }


def _results(group: list[_Data], places: list[tuple[int, str, int, int]]) -> list[WriteResult]:
    results = []
    for number, file, offset, length in places:
        info = _StorageInfo(file, offset, length)
        results.append(WriteResult(index=group[number].item.index, size_in_bytes=length, storage_data=info))
    return results


class _RankAlone:
    """A save without collectives. Each rank commits its own metadata, which names its own files."""

    def __init__(self, place: str, rank: int, overwrite: bool, durable: bool) -> None:
        if "://" in place and not place.startswith("file://"):
            raise UnsupportedError(f"{place}: use_collectives=False needs a local folder; save with collectives", path=place)
        self._folder = Path(place.removeprefix("file://"))
        self._rank = rank
        self._record = self._folder / f"__{rank}{_METADATA}"
        # Readers would go on to read it, and a rank alone can't replace it: it names files of all ranks.
        together = self._folder / _METADATA
        if together.exists():
            raise ExistsError(
                f"{together} belongs to a checkpoint that was saved with collectives, which use_collectives=False can't replace; remove the checkpoint first",
                path=str(together),
            )
        world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        for other in self._folder.glob(f"__*{_METADATA}"):
            number = other.name.removeprefix("__").removesuffix(_METADATA)
            if number.isdecimal() and int(number) >= world:
                raise ExistsError(
                    f"{other} belongs to a checkpoint of more ranks than the {world} of this save, which would stay in part; remove the checkpoint first",
                    path=str(other),
                )
        if self._record.exists() and not overwrite:
            raise ExistsError(f"{self._record} exists already; pass overwrite=True to replace it", path=str(self._record))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._built = self._folder / f".__{rank}.reshard-{uuid.uuid4().hex}"
        self.version = _reshard.begin(str(self._built), False, durable)

    def finish(self, metadata: Metadata, files: dict[str, int]) -> None:
        """Put the files of the rank into the folder, under free names, and then its metadata in their place."""
        new_names = dict(zip(files, self._free_names()))
        metadata.storage_data = {
            index: _StorageInfo(new_names[info.relative_path], info.offset, info.length)
            for index, info in metadata.storage_data.items()
        }
        self.version.commit((_METADATA, pickle.dumps(metadata)), files)
        for old, new in new_names.items():
            os.rename(self._built / old, self._folder / new)
        os.replace(self._built / _METADATA, self._record)
        self._sync()
        for file in self._folder.glob(f"__{self._rank}_*.distcp"):
            if file.name not in new_names.values():
                file.unlink()
        # Also the folders of saves that were killed: before and after the commit of their files.
        for pattern in (f".__{self._rank}.reshard-*", f"..__{self._rank}.reshard-*"):
            for folder in self._folder.glob(pattern):
                shutil.rmtree(folder, ignore_errors=True)

    def _free_names(self) -> Iterator[str]:
        number = 0
        while True:
            name = f"__{self._rank}_{number}.distcp"
            if not (self._folder / name).exists():
                yield name
            number += 1

    def _sync(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

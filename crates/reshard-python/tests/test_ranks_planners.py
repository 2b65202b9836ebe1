"""Plans that are cached, and planners that users write."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import READERS, check, mesh_of, run, same, state_of
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem

import reshard
from reshard.torch import StorageReader, StorageWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

# Cached plans


def save_cached(rank: int, scratch: str) -> None:
    mesh = mesh_of(3)
    places = [f"{scratch}/{name}" for name in ("a", "b", "c")]
    for add, place in enumerate(places):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state_of(mesh, add), storage_writer=StorageWriter(place), planner=planner)
    for add, place in enumerate(places):
        check(mesh, place, add)
    # The same place twice, and with one writer for several saves.
    writer = StorageWriter(places[0], overwrite=True)
    for add in (3, 4):
        dcp.save(state_of(mesh, add), storage_writer=writer, planner=DefaultSavePlanner(enable_plan_caching=True))
        check(mesh, places[0], add)
    dist.barrier()
    # Ranks may name the place differently.
    for add in (5, 6):
        name = places[1] if rank else os.path.relpath(places[1])
        writer = StorageWriter(name, overwrite=True)
        dcp.save(state_of(mesh, add), storage_writer=writer, planner=DefaultSavePlanner(enable_plan_caching=True))
        check(mesh, places[1], add)


def test_cached_plans(tmp_path: Path) -> None:
    run(3, save_cached, str(tmp_path), scratch=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]
    for place in "abc":
        reshard.open(tmp_path / place).verify()


# Planners of users


class RenameSave(DefaultSavePlanner):
    """Adds a prefix to all keys, as PyTorch's documentation does."""

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        super().set_up_planner({"prefix": state_dict}, storage_meta, is_coordinator)


class RenameLoad(DefaultLoadPlanner):
    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        self.renamed = {"prefix": state_dict}
        super().set_up_planner(self.renamed, metadata, is_coordinator)


class CastSave(DefaultSavePlanner):
    """Stores float32 as bfloat16."""

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        return dataclasses.replace(plan, items=[self.cast(item) for item in plan.items])

    def cast(self, item: WriteItem) -> WriteItem:
        if item.tensor_data is None:
            return item
        properties = TensorProperties(dtype=torch.bfloat16)
        return dataclasses.replace(item, tensor_data=dataclasses.replace(item.tensor_data, properties=properties))

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        found = super().transform_object(write_item, object)
        return found.to(torch.bfloat16) if isinstance(found, torch.Tensor) else found


class CastLoad(DefaultLoadPlanner):
    """Reads into memory of the type of the file, and converts when a tensor is complete."""

    committed = 0

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        target = super().resolve_tensor(read_item)
        return torch.empty(target.shape, dtype=torch.bfloat16)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self.committed += 1
        super().resolve_tensor(read_item).copy_(tensor)


class GlobalLoad(DefaultLoadPlanner):
    """Counts the plans that the coordinator gets."""

    plans = 0

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        self.plans = len(global_plan)
        return super().create_global_plan(global_plan)


def plan_as_users(rank: int, scratch: str) -> None:
    mesh = mesh_of(2)
    renamed, cast, stock = f"{scratch}/renamed", f"{scratch}/cast", f"{scratch}/stock"
    dcp.save(state_of(mesh, 1), storage_writer=StorageWriter(renamed), planner=RenameSave())
    assert "prefix.model.rows" in reshard.open(renamed)
    for reader in READERS.values():
        state = state_of(mesh, 0)
        dcp.load(state, storage_reader=reader(renamed), planner=RenameLoad())
        assert same(state, state_of(mesh, 1))

    dcp.save(state_of(mesh, 2), storage_writer=StorageWriter(cast), planner=CastSave())
    dcp.save(state_of(mesh, 2), storage_writer=FileSystemWriter(stock), planner=CastSave())
    assert reshard.open(cast)["model.rows"].dtype == "bfloat16"
    for place, reader in [(cast, StorageReader), (stock, StorageReader), (cast, FileSystemReader)]:
        state = state_of(mesh, 0)
        planner = CastLoad()
        dcp.load(state, storage_reader=reader(place), planner=planner)
        assert same(state, state_of(mesh, 2))
        assert planner.committed >= 3
        # Without a planner that converts, the values are converted while they are read.
        state = state_of(mesh, 0)
        dcp.load(state, storage_reader=reader(place))
        assert same(state, state_of(mesh, 2))

    planner = GlobalLoad()
    dcp.load(state_of(mesh, 0), storage_reader=StorageReader(cast), planner=planner)
    assert planner.plans == (2 if rank == 0 else 0)


def test_planners_of_users(tmp_path: Path) -> None:
    run(2, plan_as_users, str(tmp_path), scratch=tmp_path)


class LosesStorageData(DefaultSavePlanner):
    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return SavePlan(new_plan.items, planner_data=new_plan.planner_data)


class WrongShape(DefaultSavePlanner):
    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        found = super().transform_object(write_item, object)
        return found[:1] if isinstance(found, torch.Tensor) else found


class WrongType(DefaultSavePlanner):
    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        # In place of the bytes of an object.
        return torch.ones(1)


def test_planners_that_are_wrong(tmp_path: Path) -> None:
    state = {"step": 5, "weight": torch.zeros(3, 2)}
    for planner, words in [
        (LosesStorageData(), "storage_data"),
        (WrongShape(), r"weight: .*\[1, 2\].*\[3, 2\]"),
        (WrongType(), "step: the planner gave a tensor"),
    ]:
        writer = StorageWriter(tmp_path / "place", overwrite=True)
        with_error = None
        try:
            dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)
        except CheckpointException as e:
            with_error = e
        assert with_error is not None, words
        (failure,) = with_error.failures.values()
        assert isinstance(failure[0], reshard.Error), failure
        assert re.search(words, str(failure[0])), failure[0]
        writer.reset()
        assert os.listdir(tmp_path) == []

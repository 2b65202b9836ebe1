"""Kinds of saves: asynchronous, without collectives, with cached plans, and with planners that users write."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import bits, mesh_of, run, whole
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import reshard
from reshard.torch import StorageReader, StorageWriter, _writer

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

WRITERS = {"ours": StorageWriter, "stock": FileSystemWriter}
READERS = {"ours": StorageReader, "stock": FileSystemReader}


def state_of(mesh: Any, add: float) -> dict[str, Any]:
    """The same structure for each `add`, with other values."""
    return {
        "model": {
            "rows": distribute_tensor(whole("rows", (7, 3)) + add, mesh, [Shard(0)]),
            "copy": distribute_tensor(whole("copy", (4,)) + add, mesh, [Replicate()]),
        },
        "plain": whole("plain", (2, 2)) + add,
        "step": int(add),
    }


def same(state: dict[str, Any], expected: dict[str, Any]) -> bool:
    return (
        bits(state["model"]["rows"].to_local()) == bits(expected["model"]["rows"].to_local())
        and bits(state["model"]["copy"].to_local()) == bits(expected["model"]["copy"].to_local())
        and bits(state["plain"]) == bits(expected["plain"])
        and state["step"] == expected["step"]
    )


def check(mesh: Any, place: str, add: float, readers: tuple[str, ...] = ("ours", "stock")) -> None:
    for name in readers:
        state = state_of(mesh, -1000)
        dcp.load(state, storage_reader=READERS[name](place))
        assert same(state, state_of(mesh, add)), (name, place, state)


# Asynchronous saves


def save_in_threads(rank: int, place: str) -> None:
    mesh = mesh_of(2)
    writer = StorageWriter(place, overwrite=True)
    for add in (1.0, 2.0):
        state = state_of(mesh, add)
        future = dcp.async_save(state, storage_writer=writer)
        # The save has its own copy by now.
        state["model"]["rows"].to_local().zero_()
        future.result()
        check(mesh, place, add)


def save_in_processes(rank: int, places: list[str]) -> None:
    mesh = mesh_of(2)
    writer = StorageWriter(places[0], overwrite=True)
    for add, place in enumerate([*places, places[0]]):
        future = dcp.async_save(
            state_of(mesh, add),
            storage_writer=writer,
            checkpoint_id=place,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            planner=DefaultSavePlanner(enable_plan_caching=True),
        )
        future.result()
        check(mesh, place, add)


def test_async_save_in_threads(tmp_path: Path) -> None:
    run(2, save_in_threads, str(tmp_path / "place"), scratch=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["place"]


def test_async_save_in_processes(tmp_path: Path) -> None:
    places = [str(tmp_path / "a"), str(tmp_path / "b")]
    run(2, save_in_processes, places, scratch=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("collectives", [True, False])
def test_a_writer_is_copied_without_the_save_it_has_begun(tmp_path: Path, collectives: bool) -> None:
    place = tmp_path / "place"
    writer = StorageWriter(place, overwrite=True, durable=False)
    writer.set_up_storage_writer(True, rank=0, use_collectives=collectives)
    writer.prepare_global_plan([SavePlan([])])
    begun = os.listdir(tmp_path), [*place.iterdir()] if place.exists() else []
    copied = pickle.loads(pickle.dumps(writer))
    assert copied.checkpoint_id == writer.checkpoint_id
    copied.reset()
    del copied
    assert begun == (os.listdir(tmp_path), [*place.iterdir()] if place.exists() else [])
    writer.reset()
    assert [name for _, _, files in os.walk(tmp_path) for name in files] == []


def test_planning_in_another_thread(tmp_path: Path) -> None:
    """The storage data of an old save, which this thread received, does not replace that of the plan."""
    coordinator, writer = (StorageWriter(tmp_path / "place", durable=False) for _ in range(2))
    _writer._Told(5, _writer._Begun("old", None))
    plan = writer.prepare_local_plan(SavePlan([]))
    with ThreadPoolExecutor(1) as pool:
        (plan,) = pool.submit(coordinator.prepare_global_plan, [plan]).result()
    version, prefix = writer._joined(plan)
    assert prefix == 0
    assert version.name == coordinator._version.name


# Without collectives


def save_alone(rank: int, places: dict[str, str], add: float) -> None:
    for name, place in places.items():
        dcp.save(state_of(mesh_of(dist.get_world_size()), add), storage_writer=WRITERS[name](place, overwrite=True), use_collectives=False)


def alone(rank: int, ours: str, stock: str) -> None:
    mesh = mesh_of(2)
    for add in (1.0, 2.0, 3.0):
        save_alone(rank, {"ours": ours, "stock": stock}, add)
        check(mesh, ours, add)
        check(mesh, stock, add)
        dist.barrier()
    writer = StorageWriter(ours)
    try:
        dcp.save(state_of(mesh, 4), storage_writer=writer, use_collectives=False)
    except reshard.ExistsError as e:
        assert f"__{rank}.metadata" in str(e)
    else:
        raise AssertionError("it was overwritten")
    dist.barrier()
    check(mesh, ours, 3.0)
    # From one form to the other and back.
    dist.barrier()
    dcp.save(state_of(mesh, 5), storage_writer=StorageWriter(ours, overwrite=True))
    check(mesh, ours, 5)
    dist.barrier()


def test_saves_without_collectives(tmp_path: Path) -> None:
    ours, stock = tmp_path / "ours", tmp_path / "stock"
    run(2, alone, str(ours), str(stock), scratch=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["ours", "stock"]
    assert sorted(os.listdir(ours)) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    reshard.open(ours).verify()


def alone_over_together(rank: int, place: str) -> None:
    mesh = mesh_of(2)
    dcp.save(state_of(mesh, 1), storage_writer=StorageWriter(place))
    dist.barrier()
    try:
        save_alone(rank, {"ours": place}, 2.0)
    except reshard.ExistsError as e:
        assert "with collectives" in str(e)
    else:
        raise AssertionError("it was overwritten in part")
    dist.barrier()
    check(mesh, place, 1)


def test_a_save_without_collectives_over_one_with_them(tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(2, alone_over_together, str(place), scratch=tmp_path)
    reshard.open(place).verify()


def save_alone_refused(rank: int, place: str) -> None:
    try:
        save_alone(rank, {"ours": place}, 2.0)
    except reshard.ExistsError as e:
        assert "__2.metadata" in str(e)
    else:
        raise AssertionError("a part of the old checkpoint stays")


def test_a_save_without_collectives_over_one_of_more_ranks(tmp_path: Path) -> None:
    place = str(tmp_path / "place")
    run(3, save_alone, {"ours": place}, 1.0, scratch=tmp_path)
    before = reshard.open(place).load()
    run(2, save_alone_refused, place, scratch=tmp_path)
    after = reshard.open(place).load()
    assert bits(before["model.rows"]) == bits(after["model.rows"])
    run(3, save_alone, {"ours": place}, 3.0, scratch=tmp_path)
    assert bits(reshard.open(place)["model.rows"].torch()) == bits(whole("rows", (7, 3)) + 3)


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

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        super().load_bytes(read_item, value)


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
        except dcp.api.CheckpointException as e:
            with_error = e
        assert with_error is not None, words
        (failure,) = with_error.failures.values()
        assert isinstance(failure[0], reshard.Error), failure
        assert re.search(words, str(failure[0])), failure[0]
        writer.reset()
        assert os.listdir(tmp_path) == []

"""Sharded state on several ranks, saved with one library and loaded with the other on another mesh."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import READERS, WRITERS, bits, mesh_of, run, whole
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import reshard
from reshard.torch import StorageReader



def stored(place: str, key: str) -> torch.Tensor:
    """A tensor of a checkpoint, read by `reshard.open`."""
    return reshard.open(place)[key].torch()


# FSDP2 with an optimizer


def small_model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    # 13 and 7 divide by no number of ranks.
    return torch.nn.Sequential(torch.nn.Linear(13, 16), torch.nn.ReLU(), torch.nn.Linear(16, 7))


def trained(seed: int, mesh: Any = None) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model under FSDP2 and its optimizer after two steps."""
    model = small_model(seed)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    for n in range(2):
        torch.manual_seed(seed * 10 + n)
        model(torch.randn(4, 13)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def full_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Everything, as plain tensors on rank 0, with their bytes."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    of_model, of_optimizer = get_state_dict(model, optimizer, options=options)
    flat: dict[str, Any] = {f"model.{key}": bits(value) for key, value in of_model.items()}
    for parameter, state in of_optimizer.get("state", {}).items():
        flat |= {f"state.{parameter}.{key}": bits(value) for key, value in state.items()}
    flat["groups"] = [{k: v for k, v in group.items() if k != "params"} for group in of_optimizer.get("param_groups", [])]
    return flat


def save_model(rank: int, shape: tuple[int, ...], places: dict[str, str]) -> dict[str, Any]:
    mesh = mesh_of(*shape)
    model, optimizer = trained(1, mesh)
    for name, place in places.items():
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.save({"model": of_model, "optimizer": of_optimizer}, storage_writer=WRITERS[name](place))
    return full_state(model, optimizer)


def load_model(rank: int, shape: tuple[int, ...], readers: dict[str, str]) -> list[dict[str, Any]]:
    mesh = mesh_of(*shape)
    loaded = []
    for name, place in readers.items():
        model, optimizer = trained(2, mesh)
        of_model, of_optimizer = get_state_dict(model, optimizer)
        state = {"model": of_model, "optimizer": of_optimizer}
        dcp.load(state, storage_reader=READERS[name](place))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        loaded.append(full_state(model, optimizer))
    return loaded


def test_fsdp_moves_between_libraries_and_numbers_of_ranks(tmp_path: Path) -> None:
    ours, stock = str(tmp_path / "ours"), str(tmp_path / "stock")
    saved = run(2, save_model, (2,), {"ours": ours, "stock": stock}, scratch=tmp_path)[0]
    assert len(saved) == 4 + 4 * 3 + 1
    loaded = run(3, load_model, (3,), {"stock": ours, "ours": stock}, scratch=tmp_path)[0]
    assert loaded[0] == saved
    assert loaded[1] == saved
    reshard.open(ours).verify()


def test_hsdp_saves_each_replica_once(tmp_path: Path) -> None:
    ours, stock = str(tmp_path / "ours"), str(tmp_path / "stock")
    saved = run(4, save_model, (2, 2), {"ours": ours, "stock": stock}, scratch=tmp_path)[0]
    loaded = run(2, load_model, (2,), {"stock": ours, "ours": stock}, scratch=tmp_path)[0]
    assert loaded == [saved, saved]
    reshard.open(ours).verify()
    chunks = reshard.open(ours)["model.0.weight"].chunks
    assert len(chunks) == 2


# Tensors that are cut in other ways

SHAPES = {
    "rows": (10, 6),
    "columns": (5, 7),
    "uneven": (5, 3),
    "few rows": (2, 4),
    "both": (7, 9),
    "replicated": (4, 3),
}


def cut(mesh: Any, value: Any = whole) -> dict[str, torch.Tensor]:
    """Tensors of `SHAPES` on a mesh of one or two dimensions."""
    row, column, copy = Shard(0), Shard(1), Replicate()
    flat = mesh.ndim == 1
    placements = {
        "rows": [row] if flat else [row, copy],
        "columns": [column] if flat else [copy, column],
        "uneven": [row] if flat else [row, row],
        # Some ranks have nothing.
        "few rows": [row] if flat else [row, row],
        "both": [column] if flat else [row, column],
        "replicated": [copy] if flat else [copy, copy],
    }
    return {key: distribute_tensor(value(key, SHAPES[key]), mesh, placements[key]) for key in SHAPES}


def parallel(mesh: Any, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Linear(10, 5))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})


def sharded(rank: int, world: int, fill: Any = whole) -> Any:
    """A ShardedTensor of rows, which each rank has in two pieces, the lower piece first in one of them."""
    rows = 2 * world + 1
    value = fill("sharded", (rows, 3))
    starts = [(2 * rank, 1), (2 * rank + 1, 2 if rank == world - 1 else 1)]
    shards = []
    for start, length in reversed(starts):
        metadata = ShardMetadata(shard_offsets=[start, 0], shard_sizes=[length, 3], placement=f"rank:{rank}/cpu")
        shards.append(LocalShard(value[start : start + length].clone(), metadata))
    return sharded_tensor.init_from_local_shards(shards, rows, 3)


def save_cut(rank: int, shape: tuple[int, ...], places: dict[str, str]) -> dict[str, bytes]:
    mesh = mesh_of(*shape)
    model = parallel(mesh if mesh.ndim == 1 else mesh_of(mesh.size()), 1)
    state = {
        "cut": cut(mesh),
        "tp": model.state_dict(),
        "sharded": sharded(rank, mesh.size()),
        "plain": whole("plain", (3, 3)),
        "step": 7,
    }
    for name, place in places.items():
        dcp.save(state, storage_writer=WRITERS[name](place))
    return {key: bits(value.full_tensor()) for key, value in model.state_dict().items()}


def load_cut(rank: int, shape: tuple[int, ...], saver_world: int, tp: dict[str, bytes], readers: dict[str, str]) -> None:
    mesh = mesh_of(*shape)
    for name, place in readers.items():
        model = parallel(mesh if mesh.ndim == 1 else mesh_of(mesh.size()), 2)
        state: dict[str, Any] = {
            "cut": cut(mesh, lambda _, shape: torch.full(shape, 99.0)),
            "tp": model.state_dict(),
            "plain": torch.zeros(3, 3),
            "step": 0,
        }
        if dist.get_world_size() == saver_world:
            state["sharded"] = sharded(rank, saver_world, lambda _, shape: torch.full(shape, 99.0))
        else:
            state["sharded"] = torch.zeros(2 * saver_world + 1, 3)
        dcp.load(state, storage_reader=READERS[name](place))
        for key, tensor in state["cut"].items():
            expected = cut(mesh)[key]
            assert bits(tensor.to_local()) == bits(expected.to_local()), (name, key)
        assert {key: bits(value.full_tensor()) for key, value in state["tp"].items()} == tp, name
        assert bits(state["plain"]) == bits(whole("plain", (3, 3)))
        assert state["step"] == 7
        expected = whole("sharded", (2 * saver_world + 1, 3))
        if not isinstance(state["sharded"], sharded_tensor.ShardedTensor):
            assert bits(state["sharded"]) == bits(expected)
        else:
            for shard in state["sharded"].local_shards():
                start, length = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
                assert bits(shard.tensor) == bits(expected[start : start + length])


def test_all_ways_to_cut_a_tensor(tmp_path: Path) -> None:
    ours, stock = str(tmp_path / "ours"), str(tmp_path / "stock")
    tp = run(4, save_cut, (2, 2), {"ours": ours, "stock": stock}, scratch=tmp_path)[0]
    for world, shape in [(2, (2,)), (4, (2, 2))]:
        run(world, load_cut, shape, 4, tp, {"stock": ours, "ours": stock}, scratch=tmp_path)
    for key, shape in SHAPES.items():
        assert bits(stored(ours, f"cut.{key}")) == bits(whole(key, shape)), key
    reshard.open(ours).verify()


def test_replicated_tensors_are_written_once(tmp_path: Path) -> None:
    place = str(tmp_path / "ours")
    run(3, save_cut, (3,), {"ours": place}, scratch=tmp_path)
    with open(Path(place, ".metadata"), "rb") as file:
        metadata = pickle.load(file)
    pieces = [index for index in metadata.storage_data if index.fqn in ("cut.replicated", "plain", "step")]
    assert len(pieces) == 3
    assert len(reshard.open(place)["cut.replicated"].chunks) == 1
    files = {info.relative_path for info in metadata.storage_data.values()}
    assert files == {f"__{rank}_0.distcp" for rank in range(3)}


def read_regions(rank: int, place: str) -> None:
    mesh = mesh_of(2)
    target = DTensor.from_local(torch.zeros(5, 6), mesh, [Shard(0)])
    state = {"cut": {"rows": target}}
    dcp.load(state, storage_reader=StorageReader(reshard.open(place)), planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
    assert bits(target.to_local()) == bits(whole("rows", (10, 6))[5 * rank : 5 * rank + 5])


def test_an_open_checkpoint_is_a_place_to_read(tmp_path: Path) -> None:
    place = str(tmp_path / "ours")
    run(1, save_cut, (1,), {"ours": place}, scratch=tmp_path)
    run(2, read_regions, place, scratch=tmp_path)

"""Checkpoints of other formats, loaded onto a mesh by `dcp.load`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import bits, mesh_of, run
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard

import reshard
from reshard.torch import StorageReader, StorageWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def model_of(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(13, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 7, dtype=torch.bfloat16))


def sharded(seed: int, *shape: int) -> torch.nn.Module:
    model = model_of(seed)
    mesh = mesh_of(*shape)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def load(rank: int, shape: tuple[int, ...], places: list[str], options: dict[str, Any]) -> None:
    expected = {key: bits(value) for key, value in model_of(1).state_dict().items()}
    for place in places:
        model = sharded(2, *shape)
        state = get_model_state_dict(model)
        dcp.load(state, storage_reader=StorageReader(place, **options))
        set_model_state_dict(model, state)
        loaded = {key: bits(value.full_tensor()) for key, value in model.state_dict().items()}
        assert loaded == expected, place


def save_by_rank(rank: int, folder: str) -> None:
    model = sharded(1, 4)
    torch.save(model.state_dict(), Path(folder, f"model_world_size_4_rank_{rank}.pt"))
    torch.save({"step": 3, "rank": rank}, Path(folder, f"extra_state_world_size_4_rank_{rank}.pt"))


def test_single_files(tmp_path: Path) -> None:
    state = model_of(1).state_dict()
    save_file(state, tmp_path / "model.safetensors")
    torch.save(state, tmp_path / "model.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "folder").mkdir()
    save_file(state, tmp_path / "folder" / "model.safetensors")
    places = [str(tmp_path / name) for name in ("model.safetensors", "model.pt", "old.pt", "folder")]
    run(2, load, (2,), places, {}, scratch=tmp_path)
    run(4, load, (2, 2), places[:2], {}, scratch=tmp_path)


def test_files_of_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    run(4, save_by_rank, str(folder), scratch=tmp_path)
    for world, shape in [(3, (3,)), (4, (2, 2))]:
        run(world, load, shape, [str(folder)], {"item": "model"}, scratch=tmp_path)


def test_dcp_of_plain_tensors_under_a_map_of_names(tmp_path: Path) -> None:
    """Keys that the template lacks are left out, and keys that the file lacks are an error."""
    save_file({"weight": torch.ones(2, 3), "other": torch.ones(1)}, tmp_path / "model.safetensors")
    state = {"weight": torch.zeros(2, 3)}
    dcp.load(state, storage_reader=StorageReader(tmp_path / "model.safetensors"), no_dist=True)
    assert torch.equal(state["weight"], torch.ones(2, 3))
    with pytest.raises(CheckpointException, match="bias"):
        dcp.load({"bias": torch.zeros(3)}, storage_reader=StorageReader(tmp_path / "model.safetensors"), no_dist=True)
    with pytest.raises(CheckpointException, match="weight"):
        dcp.load({"weight": torch.zeros(3, 3)}, storage_reader=StorageReader(tmp_path / "model.safetensors"), no_dist=True)


@pytest.mark.parametrize("options", [{"single_file_per_rank": False}, {"thread_count": 3}], ids=["file per item", "threads"])
def test_files_of_the_stock_writer(tmp_path: Path, options: dict[str, Any]) -> None:
    place = tmp_path / "place"
    state = model_of(1).state_dict()
    dcp.save(state, storage_writer=FileSystemWriter(place, **options), no_dist=True)
    (place / "README").touch()
    found = {key: torch.zeros_like(value) for key, value in state.items()}
    dcp.load(found, storage_reader=StorageReader(place), no_dist=True)
    assert {key: bits(value) for key, value in found.items()} == {key: bits(value) for key, value in state.items()}
    # All of its files are replaced, and no other file.
    dcp.save(state, storage_writer=StorageWriter(place, overwrite=True), no_dist=True)
    assert sorted(os.listdir(place)) == [".metadata", "README", "__0_0.distcp"]


def test_folders_of_hugging_face(tmp_path: Path) -> None:
    state = model_of(1).state_dict()
    shards = {key: 1 + n % 2 for n, key in enumerate(state)}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(tmp_path), fqn_to_index_mapping=shards), no_dist=True)
    assert "model-00002-of-00002.safetensors" in os.listdir(tmp_path)
    run(2, load, (2,), [str(tmp_path)], {}, scratch=tmp_path)


def test_a_place_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match="nothing"):
        dcp.load({"weight": torch.zeros(3)}, storage_reader=StorageReader(tmp_path / "nothing"), no_dist=True)


def test_a_reader_opens_the_checkpoint_anew_for_each_load(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    reader = StorageReader(file)
    for value in (1.0, 2.0):
        save_file({"weight": torch.full((2,), value)}, file)
        state = {"weight": torch.zeros(2)}
        dcp.load(state, storage_reader=reader, no_dist=True)
        assert state["weight"][0] == value
    other = tmp_path / "other.safetensors"
    save_file({"weight": torch.full((2,), 3.0)}, other)
    dcp.load(state, storage_reader=reader, checkpoint_id=str(other), no_dist=True)
    assert state["weight"][0] == 3.0
    assert reader.checkpoint_id == str(other)
    opened = StorageReader(reshard.open(file))
    dcp.load(state, storage_reader=opened, no_dist=True)
    assert state["weight"][0] == 2.0

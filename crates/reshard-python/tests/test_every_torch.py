"""What must hold with every torch from 2.4 on: saves and loads of two ranks, between reshard and PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

import reshard
import reshard.torch as rt
from reshard.torch import _declare

try:
    from torch.distributed.tensor import Shard, distribute_tensor
except ImportError:  # before 2.5
    from torch.distributed._tensor import Shard, distribute_tensor


def state(value: float) -> dict[str, Any]:
    full = torch.arange(21.0).reshape(7, 3) * value
    made: dict[str, Any] = {
        "sharded": full,
        "plain": torch.full((4,), value, dtype=torch.bfloat16),
        "nested": {"list": [torch.full((2,), value), 1], "lr": value},
    }
    if dist.is_initialized():
        made["sharded"] = distribute_tensor(full, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])
    return made


def check(loaded: dict[str, Any]) -> None:
    want = torch.arange(21.0).reshape(7, 3) * 2
    sharded = loaded["sharded"]
    found = sharded.full_tensor() if isinstance(sharded, _declare.DTensor) else sharded
    assert torch.equal(found, want)
    assert torch.equal(loaded["plain"], torch.full((4,), 2, dtype=torch.bfloat16))
    assert torch.equal(loaded["nested"]["list"][0], torch.full((2,), 2.0)) and loaded["nested"]["lr"] == 2.0


def save_all(folder: str) -> None:
    dcp.save(state(2.0), storage_writer=rt.StorageWriter(f"{folder}/writer"))
    dcp.save(state(2.0), checkpoint_id=f"{folder}/stock")
    rt.save(state(2.0), f"{folder}/whole")
    dcp.async_save(state(2.0), storage_writer=rt.StorageWriter(f"{folder}/behind")).result()


def load_all(folder: str) -> None:
    for name in ("writer", "stock", "whole", "behind"):
        place = f"{folder}/{name}"
        for load in (
            lambda into: dcp.load(into, storage_reader=rt.StorageReader(place)),
            lambda into: dcp.load(into, checkpoint_id=place),
            lambda into: rt.load(into, place),
        ):
            loaded = state(0.0)
            load(loaded)
            check(loaded)


def rank_main(rank: int, world: int, folder: str, step: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{step}-{world}", rank=rank, world_size=world)
    {"save": save_all, "load": load_all}[step](folder)
    # In torch 2.4 `destroy_process_group` may wait forever for a rank that has ended.
    dist.barrier()


@pytest.mark.filterwarnings("ignore")
def test_ranks_save_and_others_load(tmp_path: Path) -> None:
    mp.spawn(rank_main, (2, str(tmp_path), "save"), nprocs=2)
    load_all(str(tmp_path))
    assert reshard.open(tmp_path / "writer").verify()["status"] == "sound"
    mp.spawn(rank_main, (3, str(tmp_path), "load"), nprocs=3)

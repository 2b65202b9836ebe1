"""`reshard.torch.save`, `load` and `async_save`, on one rank and on several."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import bits, mesh_of, run, start, whole
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import reshard
import reshard.torch as rt
from reshard.torch import _staging


class Counter:
    """A value with a state of its own."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "log": torch.full((3,), float(self.count))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def one_state(zero: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {
        "w": whole("w", (5, 7)).t(),
        "b": whole("b", (4,), torch.bfloat16),
        "scalar": torch.tensor(4),
        "empty": torch.empty(0, 2),
        "optim": {"state": {0: {"step": torch.tensor(2.0)}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
        "step": 3,
        "none": None,
        "size": torch.Size([1, 2]),
        "big": 1 << 80,
    }
    if zero:
        for key in ("w", "b", "scalar"):
            made[key] = torch.zeros_like(made[key])
        made["optim"]["state"][0]["step"] = torch.tensor(0.0)
        made["optim"]["groups"][0] = {"lr": 0, "betas": 0}
        made.update(step=0, none=1, size=0, big=0)
    return made


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bits(a) == bits(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def test_one_process(tmp_path: Path) -> None:
    counter = Counter()
    counter.count = 9
    state = {**one_state(), "counter": counter}
    assert rt.save(state, tmp_path / "a").startswith("saved")
    loaded: dict[str, Any] = {**one_state(zero=True), "counter": Counter()}
    weight, inner = loaded["w"], loaded["optim"]
    assert rt.load(loaded, tmp_path / "a") is loaded
    assert loaded.pop("counter").count == 9 and same(loaded, one_state())
    # In place.
    assert loaded["w"] is weight and loaded["optim"] is inner

    stock: dict[str, Any] = one_state(zero=True)
    dcp.load(stock, checkpoint_id=tmp_path / "a", no_dist=True)
    assert same(stock, one_state())
    assert reshard.open(tmp_path / "a").verify()["status"] == "sound"


def test_what_lies_there_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    rt.save({"a": torch.ones(2)}, tmp_path / "a")
    with pytest.raises(reshard.ExistsError):
        rt.save({"a": torch.zeros(2)}, tmp_path / "a")
    assert reshard.open(tmp_path / "a")["a"].torch().tolist() == [1, 1]
    rt.save({"a": torch.zeros(2)}, tmp_path / "a", overwrite=True, durable=False)
    assert reshard.open(tmp_path / "a")["a"].torch().tolist() == [0, 0]


def test_formats_dialects_and_policies(tmp_path: Path) -> None:
    tensors = {"a": whole("a", (64, 8)), "b": whole("b", (3,))}
    rt.save(tensors, tmp_path / "hf", format="safetensors", dialect="tensors")
    rt.save(tensors, tmp_path / "one.safetensors", format="safetensors", dialect="tensors")
    rt.save(tensors, tmp_path / "two", format={"format": "torch_dist", "files_per_rank": 2})
    rt.save(tensors, tmp_path / "mcore", dialect="megatron")
    rt.save(tensors, tmp_path / "cut", policy={"type": "max_shard_size", "max_shard_size": "1KiB"})
    for name in ("hf", "one.safetensors", "two", "cut"):
        loaded = {key: torch.zeros_like(value) for key, value in tensors.items()}
        assert same(rt.load(loaded, tmp_path / name), tensors)
    assert len(list((tmp_path / "two").glob("*.distcp"))) == 2 < len(list((tmp_path / "cut").glob("*.distcp")))
    assert (tmp_path / "mcore" / "metadata.json").exists()
    for wrong in ({"format": "nonsense"}, {"dialect": "nonsense"}, {"policy": {"type": "nonsense"}}):
        with pytest.raises(reshard.Error, match="nonsense"):
            rt.save(tensors, tmp_path / "wrong", **wrong)


def test_steps_of_a_run(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        rt.save({"a": torch.full((2,), float(step))}, tmp_path, step=step, keep=2)
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(reshard.ExistsError, match="3"):
        rt.save({"a": torch.ones(2)}, tmp_path, step=2)


def test_a_background_save_has_the_state_of_its_start(tmp_path: Path) -> None:
    state = {"a": torch.ones(1 << 16)}
    pending = rt.async_save(state, tmp_path / "a")
    state["a"].zero_()
    assert pending.result() == pending.result() and pending.done()
    assert reshard.open(tmp_path / "a")["a"].torch().equal(torch.ones(1 << 16))


def test_what_is_missing_or_does_not_fit(tmp_path: Path) -> None:
    rt.save({"a": torch.full((2,), 1.5), "n": 1}, tmp_path / "a")
    with pytest.raises(reshard.NotFoundError, match="nope"):
        rt.load({"nope": torch.ones(2)}, tmp_path / "a")
    kept = rt.load({"a": torch.zeros(2), "nope": torch.ones(2)}, tmp_path / "a", strict=False)
    assert kept["a"].tolist() == [1.5, 1.5] and kept["nope"].tolist() == [1, 1]
    with pytest.raises(reshard.MismatchError, match=r"\[3\]"):
        rt.load({"a": torch.ones(3)}, tmp_path / "a")
    with pytest.raises(reshard.Error, match="float32"):
        rt.load({"a": torch.ones(2, dtype=torch.float64)}, tmp_path / "a", cast="never")
    assert rt.load({"a": torch.ones(2, dtype=torch.float64)}, tmp_path / "a")["a"].tolist() == [1.5, 1.5]


@pytest.mark.parametrize("kind", ["meta", "sparse", "key"])
def test_other_tensors_and_keys_are_refused(tmp_path: Path, kind: str) -> None:
    made: dict[str, Any] = {
        "meta": {"here": torch.ones(2, device="meta")},
        "sparse": {"here": torch.eye(2).to_sparse()},
        "key": {"here": {1.5: torch.ones(2)}},
    }
    with pytest.raises(reshard.UnsupportedError, match="here") as caught:
        rt.save(made[kind], tmp_path / "a")
    assert caught.value.key == "here" and not (tmp_path / "a").exists()


def test_tensors_of_devices_pass_through_host_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_staging, "is_in_host_memory", lambda tensor: False)
    state = {"a": whole("a", (6, 5)).t(), "b": whole("b", (3,), torch.bfloat16), "c": torch.tensor(2.0)}
    rt.save(state, tmp_path / "a")
    loaded = {key: torch.zeros_like(value) for key, value in state.items()}
    assert same(rt.load(loaded, tmp_path / "a"), state)


# Several ranks


def sharded_state(zero: bool, shape: tuple[int, ...], placements: list[Any]) -> dict[str, Any]:
    mesh = mesh_of(*shape)
    full = {"w": whole("w", (7, 10)), "v": whole("v", (3,))}
    if zero:
        full = {key: torch.zeros_like(value) for key, value in full.items()}
    tensors: dict[str, Any] = {key: distribute_tensor(value, mesh, placements) for key, value in full.items()}
    return {"model": tensors, "plain": torch.zeros(4) if zero else whole("plain", (4,)), "step": 0 if zero else 5}


def check_state(state: dict[str, Any]) -> None:
    assert state["step"] == 5 and same(state["plain"], whole("plain", (4,)))
    for key, shape in (("w", (7, 10)), ("v", (3,))):
        assert same(state["model"][key].full_tensor(), whole(key, shape)), key


SPLITS: list[tuple[tuple[int, ...], list[Any]]] = [
    ((4,), [Shard(0)]),
    ((2, 2), [Replicate(), Shard(0)]),
    ((2, 2), [Shard(0), Shard(0)]),
]


def saves(rank: int, places: list[str]) -> None:
    for n, (shape, placements) in enumerate(SPLITS):
        state = sharded_state(False, shape, placements)
        rt.save(state, f"{places[0]}-{n}", check_replicas=True)
        dcp.save(state, checkpoint_id=f"{places[1]}-{n}")
    pending = rt.async_save(sharded_state(False, *SPLITS[0]), places[2])
    # The job goes on with collectives of its own.
    numbers = torch.ones(1)
    for _ in range(10):
        dist.all_reduce(numbers)
    pending.result()
    with pytest.raises(reshard.UnsupportedError, match="Partial"):
        rt.save({"p": DTensor.from_local(torch.ones(2), mesh_of(4), [Partial()])}, places[2] + "-partial", deadline=20)


def loads(rank: int, places: list[str]) -> None:
    for n in range(len(SPLITS)):
        for place in places[:2]:
            state = sharded_state(True, (2,), [Shard(0)])
            rt.load(state, f"{place}-{n}")
            check_state(state)
    for place in (f"{places[0]}-1", places[2]):
        state = sharded_state(True, (2,), [Shard(0)])
        dcp.load(state, checkpoint_id=place)
        check_state(state)


def test_meshes(tmp_path: Path) -> None:
    places = [str(tmp_path / name) for name in ("ours", "stock", "behind")]
    run(4, saves, places, scratch=tmp_path)
    run(2, loads, places, scratch=tmp_path)


def fails(rank: int, place: str) -> str:
    state = {"a": torch.ones(2), "b": torch.ones(2)}
    if rank == 1:
        state["b"] = torch.eye(2).to_sparse()
    try:
        # The others don't wait for that.
        rt.save(state, place, deadline=1800)
    except reshard.Error as e:
        failed = type(e).__name__
    # The next one meets anew.
    rt.save({"a": torch.ones(2)}, place + "-after")
    # Tensors that are not sharded must be equal.
    try:
        rt.save({"differs": torch.full((2,), float(rank))}, place + "-differs")
    except reshard.MismatchError as e:
        assert "differs" in str(e)
        return failed
    raise AssertionError("tensors that differ were saved")


def test_a_rank_that_fails_is_an_error_on_all(tmp_path: Path) -> None:
    place = tmp_path / "a"
    assert run(3, fails, str(place), scratch=tmp_path) == ["RankFailedError", "UnsupportedError", "RankFailedError"]
    assert not place.exists() and (tmp_path / "a-after").exists()


def dies(rank: int, place: str) -> str:
    rt.save({"a": torch.ones(2)}, place)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        rt.save({"a": torch.zeros(2)}, place, overwrite=True, deadline=1800)
    except reshard.RankFailedError as e:
        return str(e)
    raise AssertionError("a save without a rank has succeeded")


@pytest.mark.slow
def test_a_rank_that_dies_is_an_error_on_the_others(tmp_path: Path) -> None:
    outcomes = start(3, dies, str(tmp_path / "a"), scratch=tmp_path, deadline=80)
    for rank in (0, 2):
        # The group of torch is broken, too.
        assert outcomes[rank].value is not None and "rank 1" in outcomes[rank].value, outcomes[rank]
    assert reshard.open(tmp_path / "a")["a"].torch().tolist() == [1, 1]

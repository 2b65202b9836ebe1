"""Saves that fail or are killed: the place has the old checkpoint or the new one, whole."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import Outcome, mesh_of, run, start
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import Shard, distribute_tensor

import reshard
from reshard.torch import StorageReader, StorageWriter, _reader, _writer

# They wait for timeouts of groups, and so for clocks.
pytestmark = pytest.mark.slow

KEYS = 4
ROWS = 64


def state_of(value: float) -> dict[str, Any]:
    mesh = mesh_of(torch.distributed.get_world_size())
    full = torch.full((ROWS, 256), value)
    return {f"key{n}": distribute_tensor(full, mesh, [Shard(0)]) for n in range(KEYS)} | {"step": int(value)}


def value_at(place: Path) -> int:
    """The step that a place has, after a check of everything in it."""
    ckpt = reshard.open(place)
    ckpt.verify()
    step = ckpt["step"]
    for n in range(KEYS):
        assert torch.equal(ckpt[f"key{n}"].torch(), torch.full((ROWS, 256), float(step)))
    return step


def save(rank: int, place: str, value: float) -> None:
    dcp.save(state_of(value), storage_writer=StorageWriter(place, overwrite=True))


# Exceptions


class Tagged(torch.Tensor):
    """A class of its own."""


def unsupported(kind: str) -> torch.Tensor:
    if kind == "sparse":
        return torch.eye(3).to_sparse()
    return torch.ones(3).as_subclass(Tagged)


def fail(rank: int, place: str, failing: int, collectives: bool) -> list[str]:
    """Saves with a tensor that one rank can't save; returns the exceptions of this rank."""
    said = []
    for kind in ("sparse", "class"):
        state = state_of(2)
        if rank == failing:
            # In front, so that others are still writing.
            state = {f"bad {kind}": unsupported(kind), **state}
        writer = StorageWriter(place, overwrite=True)
        try:
            dcp.save(state, storage_writer=writer, use_collectives=collectives)
        except CheckpointException as e:
            (failed,) = e.failures
            assert failed == failing
            said.append(repr(e.failures[failed][0]))
        if kind == "sparse":
            # A second save with the same writer removes what the first has left.
            with pytest.raises(CheckpointException):
                dcp.save(state, storage_writer=writer, use_collectives=collectives)
            writer.reset()
        else:
            del writer
        del state
        gc.collect()
        torch.distributed.barrier()
        if rank == 0:
            assert os.listdir(Path(place).parent) == ([Path(place).name] if Path(place).exists() else [])
        torch.distributed.barrier()
    return said


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails(tmp_path: Path, failing: int) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    place = tmp_path / "places" / "place"
    place.parent.mkdir()
    for old in (None, 1):
        if old is not None:
            run(3, save, str(place), old, scratch=scratch)
        for said in run(3, fail, str(place), failing, True, scratch=scratch):
            assert len(said) == 2
            assert "UnsupportedError" in said[0] and "bad sparse" in said[0], said
            assert "UnsupportedError" in said[1] and "bad class" in said[1] and "Tagged" in said[1], said
        if old is None:
            assert not place.exists()
        else:
            assert value_at(place) == 1
            assert sorted(os.listdir(place)) == [".metadata", *(f"__{rank}_0.distcp" for rank in range(3))]
    run(3, save, str(place), 3, scratch=scratch)
    assert value_at(place) == 3


def fail_alone(rank: int, place: str) -> None:
    state: dict[str, Any] = {"step": 2, "bad": unsupported("sparse")}
    for drop in ("reset", "garbage"):
        writer = StorageWriter(place, overwrite=True)
        with pytest.raises(reshard.UnsupportedError, match="bad"):
            dcp.save(state, storage_writer=writer, use_collectives=False)
        if drop == "reset":
            writer.reset()
        del writer
        gc.collect()
        assert not [name for name in os.listdir(place) if name.startswith(f".__{rank}")]


def fail_and_go_on(rank: int, place: str) -> None:
    """One writer, for a save that fails without collectives and for one that succeeds with them."""
    writer = StorageWriter(place, overwrite=True)
    with pytest.raises(reshard.UnsupportedError, match="bad"):
        dcp.save({"bad": unsupported("sparse")}, storage_writer=writer, use_collectives=False)
    torch.distributed.barrier()
    with pytest.raises(CheckpointException):
        state = state_of(1)
        dcp.save({"bad": unsupported("sparse")} if rank == 0 else state, storage_writer=writer)
    dcp.save(state_of(2), storage_writer=writer)


def test_a_writer_goes_on_after_failures(tmp_path: Path) -> None:
    place = tmp_path / "places" / "place"
    run(2, fail_and_go_on, str(place), scratch=tmp_path)
    assert value_at(place) == 2
    assert os.listdir(tmp_path / "places") == ["place"]
    assert sorted(os.listdir(place)) == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_a_rank_that_fails_without_collectives(tmp_path: Path) -> None:
    run(2, fail_alone, str(tmp_path / "place"), scratch=tmp_path)
    assert os.listdir(tmp_path / "place") == []


def begin_alone(rank: int, place: str) -> None:
    writer = StorageWriter(place)
    writer.set_up_storage_writer(True, rank=rank, use_collectives=False)
    writer.prepare_global_plan([dcp.planner.SavePlan([])])
    assert len(os.listdir(place)) == 1
    del writer
    gc.collect()


def test_a_writer_without_collectives_is_dropped(tmp_path: Path) -> None:
    run(1, begin_alone, str(tmp_path / "place"), scratch=tmp_path)
    assert os.listdir(tmp_path / "place") == []


def exists(rank: int, place: str) -> None:
    with pytest.raises(CheckpointException) as caught:
        dcp.save(state_of(2), storage_writer=StorageWriter(place))
    assert isinstance(caught.value.failures[0][0], reshard.ExistsError)


def test_without_overwrite_a_checkpoint_stays(tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(2, save, str(place), 1, scratch=tmp_path)
    run(2, exists, str(place), scratch=tmp_path)
    assert value_at(place) == 1
    assert os.listdir(tmp_path) == ["place"]


def load_with_one_failure(rank: int, place: str) -> float:
    """The first attempt of one rank to open the checkpoint fails."""
    real = _reader.open

    def fails_once(*args: Any, **kwargs: Any) -> Any:
        _reader.open = real
        raise reshard.UnavailableError("the network is down")

    if rank == 1:
        _reader.open = fails_once
    state = state_of(0)
    torch.distributed.barrier()
    began = time.monotonic()
    with pytest.raises(CheckpointException, match="the network is down"):
        dcp.load(state, storage_reader=StorageReader(place))
    took = time.monotonic() - began
    dcp.load(state, storage_reader=StorageReader(place))
    assert state["step"] == 1
    return took


def test_a_rank_that_fails_to_open_a_checkpoint(tmp_path: Path) -> None:
    place = str(tmp_path / "place")
    run(2, save, place, 1, scratch=tmp_path)
    assert max(run(2, load_with_one_failure, place, scratch=tmp_path)) < 15


# Kills

# The moments of a save: a function of the writer, and whether the kill comes before or after it.
MOMENTS = {
    "before planning": ("prepare_local_plan", "before"),
    "begun": ("prepare_global_plan", "after"),
    "before writing": ("write_data", "before"),
    "written": ("write_data", "after"),
    "before the commit": ("finish", "before"),
    "committed": ("finish", "after"),
}


def killed(rank: int, place: str, value: float, victims: tuple[int, ...], moment: str) -> str:
    """Saves, and is killed at a moment. Survivors return the exception that they got."""
    name, when = MOMENTS[moment]
    real = getattr(StorageWriter, name)

    def wrapped(self: StorageWriter, *args: Any, **kwargs: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(self, *args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        return done

    if rank in victims:
        setattr(StorageWriter, name, wrapped)
    try:
        dcp.save(state_of(value), storage_writer=StorageWriter(place, overwrite=True))
    except Exception as e:
        # The group is broken; don't wait for the others.
        return repr(e)
    return "saved"


def check_killed(outcomes: list[Outcome], victims: tuple[int, ...]) -> None:
    for rank, outcome in enumerate(outcomes):
        if rank in victims:
            assert outcome.exit == -signal.SIGKILL, (rank, outcome)
        else:
            assert outcome.ok or outcome.error is not None, (rank, outcome)
            assert outcome.value != "saved", (rank, outcome)


CASES = [
    # Which moments a rank goes through that is not the coordinator.
    *((moment, (1,)) for moment in ("before planning", "before writing", "written")),
    *((moment, (0,)) for moment in ("begun", "written", "before the commit", "committed")),
]


@pytest.mark.parametrize(("moment", "victims"), CASES, ids=[f"{moment}, rank {victims[0]}" for moment, victims in CASES])
def test_one_rank_is_killed(tmp_path: Path, moment: str, victims: tuple[int, ...]) -> None:
    place = tmp_path / "places" / "place"
    run(2, save, str(place), 1, scratch=tmp_path)
    before = time.monotonic()
    outcomes = start(2, killed, str(place), 2, victims, moment, scratch=tmp_path, timeout=8, deadline=40)
    assert time.monotonic() - before < 30
    check_killed(outcomes, victims)
    assert value_at(place) == (2 if moment == "committed" else 1)
    # Nothing of it is in the way of the next save, which also removes what is left.
    run(2, save, str(place), 3, scratch=tmp_path)
    assert value_at(place) == 3
    assert sorted(os.listdir(place)) == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_all_ranks_are_killed(tmp_path: Path) -> None:
    """At moments that are spread over a save."""
    place = tmp_path / "places" / "place"
    run(3, save, str(place), 1, scratch=tmp_path)
    value = 1
    seen = set()
    for delay in (0.0, 0.01, 0.02, 0.04, 0.08, 0.15):
        outcomes = start(3, save_until_killed, str(place), value + 1, str(tmp_path), scratch=tmp_path, watch=killer(tmp_path, delay))
        assert all(outcome.exit == -signal.SIGKILL for outcome in outcomes), outcomes
        found = value_at(place)
        assert found >= value
        seen.add(found > value)
        value = found
    assert seen == {False, True}, "the kills came all too early or all too late"
    run(3, save, str(place), 1000, scratch=tmp_path)
    assert value_at(place) == 1000


def save_until_killed(rank: int, place: str, value: float, scratch: str) -> None:
    state_of(value)
    torch.distributed.barrier()
    Path(scratch, f"ready-{rank}").touch()
    while True:
        save(rank, place, value)
        value += 1


def killer(scratch: Path, delay: float) -> Callable[[list[int]], None]:
    def kill(pids: list[int]) -> None:
        ready = [scratch / f"ready-{rank}" for rank in range(len(pids))]
        end = time.monotonic() + 60
        while not all(file.exists() for file in ready) and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(delay)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for file in ready:
            file.unlink()

    return kill


def kill_alone(rank: int, place: str, value: float) -> None:
    """Is killed between the files of a rank and its metadata."""
    state = {"step": int(value), **{f"key{n}": torch.full((ROWS, 256), float(value)) for n in range(KEYS)}}
    if value == 2:
        real = os.replace

        def replace(source: Any, target: Any) -> None:
            if str(target).endswith(".metadata"):
                os.kill(os.getpid(), signal.SIGKILL)
            real(source, target)

        _writer.os.replace = replace
    dcp.save(state, storage_writer=StorageWriter(place, overwrite=True), use_collectives=False)


def test_a_rank_is_killed_without_collectives(tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(1, kill_alone, str(place), 1, scratch=tmp_path)
    (outcome,) = start(1, kill_alone, str(place), 2, scratch=tmp_path)
    assert outcome.exit == -signal.SIGKILL
    assert len(os.listdir(place)) > 2
    assert value_at(place) == 1
    run(1, kill_alone, str(place), 3, scratch=tmp_path)
    assert value_at(place) == 3
    names = sorted(os.listdir(place))
    assert len(names) == 2 and names[0] == "__0.metadata", names

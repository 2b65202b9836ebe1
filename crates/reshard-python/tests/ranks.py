"""Runs a function on several ranks of a gloo group, each in a process of its own.

The processes are forked from a server that has imported torch, so a rank starts in a fraction of a second. A deadline bounds every run: a rank that hangs is
killed and reported.
"""

from __future__ import annotations

import datetime
import multiprocessing
import multiprocessing.connection
import os
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from reshard.torch import StorageReader, StorageWriter

WRITERS = {"ours": StorageWriter, "stock": FileSystemWriter}
READERS = {"ours": StorageReader, "stock": FileSystemReader}

_PRELOAD = [
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed._shard.sharded_tensor",
]

# Seconds that other ranks get to finish once a rank has failed.
_GRACE = 10.0


@dataclass
class Outcome:
    """The result of one rank.

    Attributes
    ----------
    value
        The return value of the function, if it returned.
    error : str or None
        The traceback, if it raised.
    exit : int or None
        The exit code. It is negative for a signal, and None for a rank that missed the deadline.
    """

    value: Any = None
    error: str | None = None
    exit: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the function returned."""
        return self.error is None and self.exit == 0


def run(world: int, function: Callable[..., Any], *args: Any, scratch: Path, **options: Any) -> list[Any]:
    """Run `function(rank, *args)` on each rank and return the values in the order of ranks.

    Raises
    ------
    AssertionError
        A rank raised, died or missed the deadline. The message has the tracebacks.
    """
    outcomes = start(world, function, *args, scratch=scratch, **options)
    failed = [f"rank {rank} of {world}: {_describe(outcome)}" for rank, outcome in enumerate(outcomes) if not outcome.ok]
    if failed:
        raise AssertionError("\n".join(failed))
    return [outcome.value for outcome in outcomes]


def start(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    scratch: Path,
    deadline: float = 90.0,
    timeout: float = 30.0,
    watch: Callable[[list[int]], object] | None = None,
) -> list[Outcome]:
    """Run `function(rank, *args)` on each rank and return all outcomes, whatever they are.

    Parameters
    ----------
    scratch : Path
        A folder for the rendezvous file.
    deadline : float
        Seconds after which all ranks are killed.
    timeout : float
        Seconds that a collective of the group may take.
    watch : callable, optional
        Called with the process ids once all ranks have started, to kill some of them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    rendezvous = scratch / f"rendezvous-{uuid.uuid4().hex}"
    processes, pipes = [], []
    outcomes = [Outcome() for _ in range(world)]
    try:
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_main, args=(rank, world, str(rendezvous), timeout, theirs, function, args), name=f"rank-{rank}"
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        if watch is not None:
            watch([process.pid for process in processes])
        _collect(processes, pipes, outcomes, time.monotonic() + deadline)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        rendezvous.unlink(missing_ok=True)
    return outcomes


def whole(key: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same values on every rank and in every process, different for each key."""
    generator = torch.Generator().manual_seed(sum(key.encode()))
    return torch.randint(-128, 128, shape, generator=generator).to(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor, for comparisons that NaN and the sign of zero do not blur."""
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.flatten().view(torch.uint8).numpy().tobytes()


def mesh_of(*shape: int) -> DeviceMesh:
    """A mesh of all ranks."""
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])


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


def _collect(processes: list[Any], pipes: list[Any], outcomes: list[Outcome], end: float) -> None:
    waiting = dict(zip(pipes, range(len(pipes))))
    while waiting and (left := end - time.monotonic()) > 0:
        for pipe in multiprocessing.connection.wait(list(waiting), timeout=left):
            rank = waiting.pop(pipe)
            try:
                outcomes[rank].value, outcomes[rank].error = pipe.recv()
            except EOFError:  # killed
                pass
            if outcomes[rank].error is not None:
                end = min(end, time.monotonic() + _GRACE)
    for process, outcome in zip(processes, outcomes):
        process.join(max(0.0, min(end - time.monotonic(), _GRACE)))
        outcome.exit = process.exitcode


def _describe(outcome: Outcome) -> str:
    if outcome.error is not None:
        return outcome.error
    if outcome.exit is None:
        return "still running at the deadline"
    return f"ended with exit code {outcome.exit}"


def _main(
    rank: int, world: int, rendezvous: str, timeout: float, pipe: Any, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    # The process executor of `async_save` makes its own group.
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    value, error = None, None
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=timeout),
        )
        value = function(rank, *args)
        dist.destroy_process_group()
    except BaseException:
        error = traceback.format_exc()
    pipe.send((value, error))
    pipe.close()
    # Threads of a broken group can block the exit.
    if error is not None:
        os._exit(1)

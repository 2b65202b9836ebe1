"""Megatron Core 0.12's side of the benchmarks: one measurement a call, as a line of JSON.

    python mcore_bench.py save|load|reload zarr|torch_dist GB DIR ITERATIONS [SETTING] [--world N]
    python mcore_bench.py save|load|reload zarr|torch_dist GB DIR ITERATIONS SETTING SETTING ... --choose

The state is that of llama.py. `save` and `load` cut it by rows. `reload` loads flattened ranges on another grid: each rank
has saved all elements of its columns, and wants half of the elements of the whole tensor. What it reads is made off the clock if it is not there.

A SETTING is a list like `threads=2,ops=1`, or `plain`. With --choose each of them is tried, and the fastest is named as `{"best": ...}`.

    threads=N   writer threads of each rank (torch_dist)
    ops=N       torch's own threads of each rank
    validate    what is saved or wanted is validated over all ranks; without it it is not
    pure        zarr is read by the zarr package instead of TensorStore
"""

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor

from llama import tensors

if not torch.cuda.is_available():
    # Megatron takes a GPU for granted; on a machine without one there is nothing to wait for.
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.set_device = lambda *_: None


def rows(gb, rank, world):
    out = {}
    for key, shape, dtype in tensors(gb):
        data = torch.empty((shape[0] // world, *shape[1:]), dtype=getattr(torch, dtype)).fill_(1)
        out[key] = ShardedTensor.from_rank_offsets(key, data, (0, rank, world))
    return out


def flattened(gb, rank, world, columns):
    """All elements of this rank's columns, or a part of the elements of the whole tensor."""
    out = {}
    for key, shape, dtype in tensors(gb):
        if columns:
            axis = len(shape) - 1
            local = [n // world if a == axis else n for a, n in enumerate(shape)]
            part, offsets = slice(0, math.prod(local)), [(axis, rank, world)]
        else:
            local, offsets = list(shape), []
            numel = math.prod(shape)
            part = slice(numel * rank // world, numel * (rank + 1) // world)
        data = torch.empty(part.stop - part.start, dtype=getattr(torch, dtype)).fill_(1)
        out[key] = ShardedTensor.from_rank_offsets_flat(key, data, tuple(local), *offsets, flattened_range=part)
    return out


class Setting:
    def __init__(self, text, own_threads):
        parts = dict((part.split("=") + [None])[:2] for part in text.split(",") if part != "plain")
        self.text = text
        self.threads = int(parts.get("threads", 2))
        self.ops = int(parts.get("ops", own_threads))
        self.validate = "validate" in parts
        self.pure = "pure" in parts
        unknown = set(parts) - {"threads", "ops", "validate", "pure"}
        assert not unknown, unknown

    def saver(self, backend):
        if backend == "zarr":
            from megatron.core.dist_checkpointing.strategies.zarr import ZarrSaveShardedStrategy
            return ZarrSaveShardedStrategy("zarr", 1)
        from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
        return TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=self.threads)

    def loader(self, backend):
        if backend == "zarr" and self.pure:
            from megatron.core.dist_checkpointing.strategies.zarr import ZarrLoadShardedStrategy
            return ZarrLoadShardedStrategy()
        if backend == "zarr":
            from megatron.core.dist_checkpointing.strategies.tensorstore import TensorStoreLoadShardedStrategy
            return TensorStoreLoadShardedStrategy()
        from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy
        return TorchDistLoadShardedStrategy()

    def run(self, args, state):
        torch.set_num_threads(self.ops)
        if args.mode == "save":
            dist_checkpointing.save(state, args.dir, self.saver(args.backend), validate_access_integrity=self.validate)
            return None
        return dist_checkpointing.load(state, args.dir, self.loader(args.backend),
                                       validate_access_integrity=self.validate)


def emptied(args, rank):
    if rank == 0:
        shutil.rmtree(args.dir, ignore_errors=True)
        os.makedirs(args.dir)
    dist.barrier()


def timed(setting, runs, rank, state, args):
    """Seconds and CPU seconds of this rank for each run; the first warms up, and is no part of it."""
    seconds, cpu, loaded = [], [], None
    for _ in range(runs + 1):
        if args.mode == "save":
            emptied(args, rank)
        loaded = None
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        loaded = setting.run(args, state)
        dist.barrier()
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    return seconds[1:], cpu[1:], loaded


def run(rank, world, args, own_threads):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    settings = [Setting(text, own_threads) for text in args.settings or ["plain"]]
    if args.mode == "reload":
        if not os.path.exists(os.path.join(args.dir, "metadata.json")):
            emptied(args, rank)
            saver = settings[0].saver(args.backend)
            dist_checkpointing.save(flattened(args.gb, rank, world, True), args.dir, saver)
        state = flattened(args.gb, rank, world, False)
    else:
        state = rows(args.gb, rank, world)
    own = sum(t.data.nbytes for t in state.values())
    if args.choose:
        tried = {s.text: statistics.median(timed(s, args.iterations, rank, state, args)[0]) for s in settings}
        if rank == 0:
            print(json.dumps({"best": min(tried, key=tried.get), "tried": tried}), flush=True)
        dist.destroy_process_group()
        return
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, cpu, loaded = timed(settings[0], args.iterations, rank, state, args)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    cpu = torch.tensor(cpu)
    dist.all_reduce(cpu)
    if loaded is not None:
        assert all(bool((t == 1).all()) for t in loaded.values()), "wrong values"
    if rank == 0:
        out = {"seconds": seconds, "cpu": cpu.tolist(), "bytes": own * world, "grown": grown}
        print(json.dumps(out), file=sys.stdout, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["save", "load", "reload"])
    parser.add_argument("backend", choices=["zarr", "torch_dist"])
    parser.add_argument("gb", type=float)
    parser.add_argument("dir")
    parser.add_argument("iterations", type=int)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--port", type=int, default=29517)
    parser.add_argument("--world", type=int, default=2)
    args = parser.parse_intermixed_args()
    # Not forked: a save of Megatron forks by itself, and TensorStore has threads of its own.
    mp.start_processes(run, args=(args.world, args, torch.get_num_threads()), nprocs=args.world, start_method="spawn")

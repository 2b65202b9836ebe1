"""PyTorch DCP's side of the benchmarks: one measurement a call, as a line of JSON.

    python dcp_bench.py save|load|reshard llama|small|one GB DIR ITERATIONS [--threads N] [--no-crc] [--world N]

Gloo ranks; every buffer is touched before the clock starts; each save goes into a fresh directory.
"""

import argparse
import json
import os
import resource
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

D, F = 2048, 5504
LAYER = [("q", (D, D)), ("k", (D, D)), ("v", (D, D)), ("o", (D, D)), ("gate", (F, D)), ("up", (F, D)),
         ("down", (D, F)), ("n1", (D,)), ("n2", (D,))]
KINDS = [("w", torch.bfloat16), ("exp_avg", torch.float32), ("exp_avg_sq", torch.float32)]


def llama(gb, mesh, axis, rank, world):
    per = sum(torch.Size(s).numel() for _, s in LAYER) * 10
    out = {}
    for layer in range(max(1, int(gb * 1e9 / per))):
        for name, shape in LAYER:
            for kind, dtype in KINDS:
                dim = axis if len(shape) > axis else 0
                local = list(shape)
                local[dim] //= world
                tensor = torch.empty(local, dtype=dtype).fill_(1)
                out[f"layers.{layer}.{name}.{kind}"] = DTensor.from_local(tensor, mesh, [Shard(dim)], run_check=False)
    return out


def small(gb, rank, world):
    count = int(gb * 1e9) // 65536
    return {f"t{i}": torch.empty(128, 128).fill_(1) for i in range(count) if i % world == rank}


def one(gb, rank):
    return {"one": torch.empty(int(gb * 1e9) // (D * 4), D).fill_(1)} if rank == 0 else {}


STATES = {
    "llama": lambda args, mesh, axis, rank, world: llama(args.gb, mesh, axis, rank, world),
    "small": lambda args, mesh, axis, rank, world: small(args.gb, rank, world),
    "one": lambda args, mesh, axis, rank, world: one(args.gb, rank),
}


def run(rank, world, args, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    torch.serialization.set_crc32_options(not args.no_crc)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    axis = 1 if args.mode == "reshard" else 0
    state = STATES[args.state](args, mesh, axis, rank, world)
    own = sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in state.values())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, cpu = [], []
    for _ in range(args.iterations + 1):
        if args.mode == "save" and rank == 0:
            shutil.rmtree(args.dir, ignore_errors=True)
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        if args.mode == "save":
            dcp.save(state, storage_writer=dcp.FileSystemWriter(args.dir, thread_count=args.threads, sync_files=False))
        else:
            dcp.load(state, storage_reader=dcp.FileSystemReader(args.dir))
        dist.barrier()
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    cpu = torch.tensor(cpu)
    dist.all_reduce(cpu)
    if args.mode != "save":
        local = [t.to_local() if isinstance(t, DTensor) else t for t in state.values()]
        assert all(bool((t == 1).all()) for t in local), "wrong values"
    if rank == 0:
        # The first run warms up.
        out = {"seconds": seconds[1:], "cpu": cpu.tolist()[1:], "bytes": own * world, "grown": grown}
        print(json.dumps(out), file=sys.stdout, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["save", "load", "reshard"])
    parser.add_argument("state", choices=list(STATES))
    parser.add_argument("gb", type=float)
    parser.add_argument("dir")
    parser.add_argument("iterations", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-crc", action="store_true")
    parser.add_argument("--port", type=int, default=29513)
    parser.add_argument("--world", type=int, default=2)
    args = parser.parse_args()
    mp.spawn(run, args=(args.world, args, None), nprocs=args.world)

"""PyTorch DCP's side of the benchmarks: one measurement a call, as a line of JSON.

    python dcp_bench.py save|load|reshard|stall llama|small|one|largest GB DIR ITERATIONS [SETTING] [--world N] [--overwrite] [--hf]
    python dcp_bench.py save|load|reshard|stall llama|small|one GB DIR ITERATIONS SETTING SETTING ... --choose

A SETTING is a list like `cached,threads=2,no-crc,ops=2,sync`, or `plain`. With --choose each of them is tried, and the fastest
is named as `{"best": ...}`.

    cached      the planner keeps its plan from one save to the next (enable_plan_caching)
    threads=N   writer threads of each rank; with --hf threads that read
    no-crc      archives without checksums
    ops=N       torch's own threads of each rank; without it as many as torch takes by itself
    sync        files are synced, which is DCP's default; without it they are not
    stager=S    of `stall`, which is the time from the call of async_save until the state may change: `default` is DefaultStager,
                `background` the same with async staging, `cached` BlockingAsyncStager with its cache
    block=N     of places in buckets: s3fs sends and reads ahead N MiB at a time
    cache=NAME  likewise: how s3fs keeps what it reads
    process     async_save in a process of its own instead of a thread

DIR may be a place in a bucket, `s3://...`; then fsspec and s3fs write and read it, and files are not synced.

With --hf a load reads a folder of safetensors, through HuggingFaceStorageReader.

Gloo ranks; every buffer is touched before the clock starts; each save goes into a fresh directory, unless it overwrites.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed._state_dict_utils import _create_cpu_state_dict
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from llama import D, F, tensors


def llama(gb, mesh, axis, rank, world):
    out = {}
    for key, shape, dtype in tensors(gb):
        dim = axis if len(shape) > axis else 0
        local = list(shape)
        local[dim] //= world
        tensor = torch.empty(local, dtype=getattr(torch, dtype)).fill_(1)
        out[key] = DTensor.from_local(tensor, mesh, [Shard(dim)], run_check=False)
    return out


def small(gb, rank, world):
    count = int(gb * 1e9) // 65536
    return {f"t{i}": torch.empty(128, 128).fill_(1) for i in range(count) if i % world == rank}


def one(gb, rank):
    return {"one": torch.empty(int(gb * 1e9) // (D * 4), D).fill_(1)} if rank == 0 else {}


def largest(rank):
    """One of the largest tensors of the layers."""
    return {"layers.0.gate.exp_avg": torch.empty(F, D).fill_(1)} if rank == 0 else {}


def in_bucket(path):
    return "://" in path


STATES = {
    "llama": lambda args, mesh, axis, rank, world: llama(args.gb, mesh, axis, rank, world),
    "small": lambda args, mesh, axis, rank, world: small(args.gb, rank, world),
    "one": lambda args, mesh, axis, rank, world: one(args.gb, rank),
    "largest": lambda args, mesh, axis, rank, world: largest(rank),
}


class Setting:
    def __init__(self, text, own_threads):
        parts = dict((part.split("=") + [None])[:2] for part in text.split(",") if part != "plain")
        self.text = text
        self.cached = "cached" in parts
        self.crc = "no-crc" not in parts
        self.sync = "sync" in parts
        self.threads = int(parts.get("threads", 1))
        self.ops = int(parts.get("ops", own_threads))
        self.process = "process" in parts
        self.stager = parts.get("stager")
        self.block = int(parts.get("block", 0))
        self.cache = parts.get("cache")
        known = {"cached", "no-crc", "sync", "threads", "ops", "process", "stager", "block", "cache"}
        unknown = set(parts) - known
        assert not unknown, unknown

    def writer(self, path):
        if in_bucket(path):
            import bucket
            return bucket.writer(path, self)
        return dcp.FileSystemWriter(path, thread_count=self.threads, sync_files=self.sync)

    def reader(self, path, hf):
        if in_bucket(path):
            import bucket
            return bucket.reader(path, self)
        if not hf:
            return dcp.FileSystemReader(path)
        from torch.distributed.checkpoint import HuggingFaceStorageReader
        return HuggingFaceStorageReader(path, thread_count=self.threads)

    def run(self, mode, state, path, hf=False):
        torch.set_num_threads(self.ops)
        torch.serialization.set_crc32_options(self.crc)
        if mode == "stall":
            writer = dcp.FileSystemWriter(path, thread_count=self.threads, sync_files=self.sync)
            if self.stager and not hasattr(self, "made"):
                self.made = stager(self.stager)
            kind = AsyncCheckpointerType.PROCESS if self.process else AsyncCheckpointerType.THREAD
            planner = DefaultSavePlanner(enable_plan_caching=self.cached)
            saving = dcp.async_save(state, storage_writer=writer, planner=planner, async_checkpointer_type=kind,
                                    **({"async_stager": self.made} if self.stager else {}))
            if not hasattr(saving, "staging_completion"):
                return saving
            saving.staging_completion.result()
            return saving.upload_completion
        if mode == "save":
            dcp.save(state, storage_writer=self.writer(path), planner=DefaultSavePlanner(enable_plan_caching=self.cached))
        else:
            dcp.load(state, storage_reader=self.reader(path, hf))


class KeptMemory(BlockingAsyncStager):
    """DCP's stager with a cache, whose memory is not pinned, because that needs a device of CUDA."""

    def stage(self, state_dict):
        if self.state_dict_cache is None:
            self.state_dict_cache = _create_cpu_state_dict(state_dict)
        return super().stage(state_dict)


def stager(kind):
    if kind == "cached":
        return KeptMemory(cache_staged_state_dict=True)
    options = StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=kind == "background",
                             use_non_blocking_copy=False)
    return DefaultStager(options)


def remove(path):
    if in_bucket(path):
        import bucket
        bucket.remove(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def timed(setting, runs, rank, state, args):
    """Seconds and CPU seconds of this rank for each run; the first warms up, and is no part of it."""
    seconds, cpu = [], []
    for _ in range(runs + 1):
        if args.mode in ("save", "stall") and rank == 0 and not args.overwrite:
            remove(args.dir)
        if args.mode == "save" and rank == 0 and setting.sync:
            # What earlier runs left for the disk is not this one's to wait for.
            os.sync()
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        saving = setting.run(args.mode, state, args.dir, args.hf)
        dist.barrier()
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
        if saving is not None:
            saving.result()
    return seconds[1:], cpu[1:]


def run(rank, world, args, own_threads):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    axis = 1 if args.mode == "reshard" else 0
    state = STATES[args.state](args, mesh, axis, rank, world)
    own = sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in state.values())
    settings = [Setting(text, own_threads) for text in args.settings or ["plain"]]
    if args.choose:
        tried = {s.text: statistics.median(timed(s, args.iterations, rank, state, args)[0]) for s in settings}
        if rank == 0:
            print(json.dumps({"best": min(tried, key=tried.get), "tried": tried}), flush=True)
        dist.destroy_process_group()
        return
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, cpu = timed(settings[0], args.iterations, rank, state, args)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    cpu = torch.tensor(cpu)
    dist.all_reduce(cpu)
    if args.mode not in ("save", "stall"):
        local = [t.to_local() if isinstance(t, DTensor) else t for t in state.values()]
        assert all(bool((t == 1).all()) for t in local), "wrong values"
    if rank == 0:
        out = {"seconds": seconds, "cpu": cpu.tolist(), "bytes": own * world, "grown": grown}
        print(json.dumps(out), file=sys.stdout, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["save", "load", "reshard", "stall"])
    parser.add_argument("state", choices=list(STATES))
    parser.add_argument("gb", type=float)
    parser.add_argument("dir")
    parser.add_argument("iterations", type=int)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--hf", action="store_true")
    parser.add_argument("--port", type=int, default=29513)
    parser.add_argument("--world", type=int, default=2)
    # Settings may stand behind options, too.
    args = parser.parse_intermixed_args()
    # Forked, so that torch is imported once; nothing of it has run yet.
    mp.start_processes(run, args=(args.world, args, torch.get_num_threads()), nprocs=args.world, start_method="fork")

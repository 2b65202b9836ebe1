"""zarr-python 3's side of the benchmarks: one measurement a call, as a line of JSON.

    python zarr_bench.py save|load GB DIR ITERATIONS [SETTING]
    python zarr_bench.py save|load GB DIR ITERATIONS SETTING SETTING ... --choose

The state is that of llama.py, cut by rows over two processes; bfloat16 is written as uint16, which zarr-python knows. Nothing is
compressed. A SETTING is a list like `sharded,workers=1`, or `plain`. With --choose each of them is tried, and the fastest is named.

    sharded     one shard for each process, as reshard writes it; otherwise one chunk
    workers=N   threads of each process
    out         loads into memory that is there; otherwise into new memory
"""

import argparse
import json
import math
import multiprocessing as mp
import os
import resource
import shutil
import statistics
import time

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype

from llama import tensors

# zarr-python knows no bfloat16.
DTYPES = {"bfloat16": np.uint16, "float32": np.float32}
WORLD = 2


class Setting:
    def __init__(self, text):
        parts = dict((part.split("=") + [None])[:2] for part in text.split(",") if part != "plain")
        self.text = text
        self.sharded = "sharded" in parts
        self.workers = int(parts.get("workers", 2))
        self.out = "out" in parts
        assert not set(parts) - {"sharded", "workers", "out"}, parts

    def shape(self, shape):
        rows = (shape[0] // WORLD, *shape[1:])
        if not self.sharded:
            return {"chunks": rows}
        # Inner chunks of 4 MiB at most, as reshard makes them.
        inner = rows[0]
        while inner % 2 == 0 and inner * math.prod(rows[1:]) * 4 > 4 << 20:
            inner //= 2
        return {"chunks": (inner, *rows[1:]), "shards": rows}


def create(args, setting):
    shutil.rmtree(args.dir, ignore_errors=True)
    group = zarr.create_group(store=args.dir, zarr_format=3)
    for key, shape, dtype in tensors(args.gb):
        group.create_array(key, shape=shape, dtype=DTYPES[dtype], compressors=None, fill_value=0, **setting.shape(shape))


def save(args, setting, state, rank, barrier):
    if rank == 0:
        create(args, setting)
    barrier.wait()
    group = zarr.open_group(args.dir, mode="r+")
    for key, data in state.items():
        n = len(data)
        group[key][rank * n:(rank + 1) * n] = data


def load(args, setting, state, rank, _):
    group = zarr.open_group(args.dir, mode="r")
    for key, data in state.items():
        n = len(data)
        if setting.out:
            out = default_buffer_prototype().nd_buffer.from_numpy_array(data)
            group[key].get_basic_selection(slice(rank * n, (rank + 1) * n), out=out)
        else:
            state[key] = group[key][rank * n:(rank + 1) * n]


def timed(setting, args, rank, state, barrier):
    zarr.config.set({"threading.max_workers": setting.workers, "async.concurrency": setting.workers})
    seconds, cpu = [], []
    for _ in range(args.iterations + 1):
        barrier.wait()
        start, used = time.perf_counter(), time.process_time()
        (save if args.mode == "save" else load)(args, setting, state, rank, barrier)
        barrier.wait()
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    return seconds[1:], cpu[1:]


def run(rank, args, barrier, results):
    state = {key: np.ones((shape[0] // WORLD, *shape[1:]), DTYPES[dtype]) for key, shape, dtype in tensors(args.gb)}
    settings = [Setting(text) for text in args.settings or ["plain"]]
    if args.choose:
        tried = {s.text: statistics.median(timed(s, args, rank, state, barrier)[0]) for s in settings}
        results.put((rank, tried))
        return
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, cpu = timed(settings[0], args, rank, state, barrier)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert all(bool((data == 1).all()) for data in state.values()), "wrong values"
    results.put((rank, {"seconds": seconds, "cpu": cpu, "bytes": sum(d.nbytes for d in state.values()) * WORLD, "grown": grown}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["save", "load"])
    parser.add_argument("gb", type=float)
    parser.add_argument("dir")
    parser.add_argument("iterations", type=int)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--choose", action="store_true")
    args = parser.parse_intermixed_args()
    context = mp.get_context("spawn")
    barrier, results = context.Barrier(WORLD), context.Queue()
    ranks = [context.Process(target=run, args=(rank, args, barrier, results)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    answers = dict(results.get(timeout=600) for _ in ranks)
    for process in ranks:
        process.join()
    first = answers[0]
    if args.choose:
        print(json.dumps({"best": min(first, key=first.get), "tried": first}), flush=True)
    else:
        first["cpu"] = [a + b for a, b in zip(first["cpu"], answers[1]["cpu"])]
        print(json.dumps(first), flush=True)

"""TensorFlow's side of the benchmarks of its checkpoints: one measurement a call, as a line of JSON.

    python bundle_bench.py save|load GB DIR ITERATIONS [SETTING]
    python bundle_bench.py save|load GB DIR ITERATIONS SETTING SETTING ... --choose

The state is that of llama.py, as whole tensors of one process. TensorFlow writes and checks the CRC-32C of all bytes. `load` gives new tensors:
TensorFlow has no load into memory of the caller.

A SETTING is a list like `shards,kept`, or `plain`. With --choose each of them is tried, and the fastest is named as `{"best": ...}`.

    shards   two threads, each with every other tensor: of `save` into a file of its own
    rows     the same with a half of the rows of each tensor
    kept     memory that was free goes back to the system at the end only, so results find touched memory
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

import runs
from llama import tensors

# Of malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
POOL = ThreadPoolExecutor(2)


def keep_memory(kept):
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0 if kept else 65536)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1 if kept else 128 << 10)


def parts(gb, setting):
    """For each thread: names, slices and types."""
    every = [(key, shape, tf.as_dtype(dtype)) for key, shape, dtype in tensors(gb)]
    if "rows" in setting:
        def rows(shape, part):
            half = shape[0] // 2
            axes = [f"{half * part},{half}"] + ["-"] * (len(shape) - 1)
            return f"{' '.join(map(str, shape))} {':'.join(axes)}"
        return [[(key, rows(shape, part), dtype) for key, shape, dtype in every] for part in (0, 1)]
    every = [(key, "", dtype) for key, _, dtype in every]
    return [every[part::2] for part in (0, 1)] if "shards" in setting else [every]


def save(args, setting, state):
    def one(number, mine):
        prefix = os.path.join(args.dir, f"part-{number}")
        names, slices, _ = zip(*mine)
        data = [state[key][number * (len(state[key]) // 2):][:len(state[key]) // 2] if by else state[key]
                for key, by, _ in mine]
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=data)
        return prefix
    prefixes = list(POOL.map(one, *zip(*enumerate(parts(args.gb, setting)))))
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=os.path.join(args.dir, "ckpt"))


def load(args, setting):
    keep_memory("kept" in setting)

    def one(mine):
        names, slices, dtypes = zip(*mine)
        return tf.raw_ops.RestoreV2(prefix=os.path.join(args.dir, "ckpt"), tensor_names=names, shape_and_slices=slices,
                                    dtypes=dtypes)
    return [tensor for some in POOL.map(one, parts(args.gb, setting)) for tensor in some]


def check(loaded):
    assert all(bool(tf.reduce_all(tensor == tf.ones_like(tensor))) for tensor in loaded), "wrong values"


def main():
    parser = runs.parser(["save", "load"])
    parser.add_argument("gb", type=float)
    parser.add_argument("dir")
    args = runs.arguments(parser)
    # Other arenas of malloc can't keep so much memory.
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    state = {key: tf.fill(shape, tf.constant(1, dtype)) for key, shape, dtype in tensors(args.gb)}
    nbytes = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in state.values())
    if args.mode == "save":
        runs.measure(args, ["shards", "rows"], lambda s: save(args, s, state), nbytes, lambda _: None,
                     before=lambda: runs.emptied(args.dir))
        if not args.choose:
            check(load(args, runs.Setting("plain", [])))
    else:
        state.clear()
        runs.measure(args, ["shards", "rows", "kept"], lambda s: load(args, s), nbytes, check, results=nbytes)


if __name__ == "__main__":
    main()

"""PyTorch's and TensorFlow's side of the benchmarks of embedding lookups: one measurement a call, as a line of JSON.

    python embedding_bench.py torch lookup|into ITERATIONS
    python embedding_bench.py tensorflow|tensorflow-eager new|lookup|gradients ITERATIONS

`lookup` of TensorFlow takes the memory of the last result, which is free again; for `new` all results are kept, so that there is
none.

A million rows of a table of 10 million x 64 float32, by two threads. PyTorch's table is in one piece, TensorFlow's a ShardedVariable
of eight parts. Ids are those of the Rust side; one run warms up.
"""

import json
import os
import sys
import time

ROWS, WIDTH, PARTS, IDS = 10_000_000, 64, 8, 1_000_000


def timed(iterations, work, check, keep=None):
    check(work())
    out = {"seconds": [], "cpu": [], "bytes": IDS * WIDTH * 4}
    for _ in range(iterations):
        before, start = time.process_time(), time.perf_counter()
        result = work()
        out["seconds"].append(time.perf_counter() - start)
        out["cpu"].append(time.process_time() - before)
        check(result)
        if keep is not None:
            keep.append(result)
        del result
    return out


def numbers():
    import numpy as np
    once = np.arange(IDS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (once ^ (once >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(20)
    return np, (mixed % np.uint64(ROWS)).astype(np.int64)


def in_torch(what, iterations):
    import torch
    torch.set_num_threads(2)
    _, ids = numbers()
    table = torch.empty(ROWS, WIDTH)
    table[:] = torch.arange(ROWS, dtype=torch.float32)[:, None]
    ids = torch.from_numpy(ids)

    def check(rows):
        assert bool((rows == ids[:, None]).all())

    if what == "into":
        out = torch.empty(IDS, WIDTH)
        return timed(iterations, lambda: torch.index_select(table, 0, ids, out=out), check)
    assert what == "lookup"
    return timed(iterations, lambda: torch.nn.functional.embedding(ids, table), check)


def in_tensorflow(what, iterations, eager):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf
    from tensorflow.python.distribute.sharded_variable import ShardedVariable
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    np, ids = numbers()
    part = ROWS // PARTS
    variables = [tf.Variable(np.repeat(np.arange(i * part, (i + 1) * part, dtype=np.float32)[:, None], WIDTH, 1))
                 for i in range(PARTS)]
    table = ShardedVariable(variables)
    upstream = tf.constant(np.repeat(ids.astype(np.float32)[:, None], WIDTH, 1))
    wanted = tf.constant(ids)

    def lookup():
        return tf.nn.embedding_lookup(table, wanted)

    def gradients():
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(table, wanted)
        return [(g.indices, g.values) for g in tape.gradient(rows, variables, output_gradients=upstream)]

    def check(result):
        if what != "gradients":
            assert bool(tf.reduce_all(result == upstream))
        else:
            assert sum(len(indices) for indices, _ in result) == IDS

    work = {"new": lookup, "lookup": lookup, "gradients": gradients}[what]
    return timed(iterations, work if eager else tf.function(work), check, [] if what == "new" else None)


if __name__ == "__main__":
    who, what, iterations = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if who == "torch":
        print(json.dumps(in_torch(what, iterations)))
    else:
        print(json.dumps(in_tensorflow(what, iterations, who == "tensorflow-eager")))

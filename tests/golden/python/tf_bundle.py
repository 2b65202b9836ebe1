"""TensorFlow reads what reshard wrote, and writes what reshard reads.

`tf_bundle.py FOLDER`: `FOLDER/expected.json` says which checkpoints lie there. What TensorFlow writes goes to `FOLDER/theirs`,
with an `expected.json` of its own.
"""

import hashlib
import json
import pathlib
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.checkpoint.sharding import sharding_policies
from tensorflow.python.ops import io_ops

tf1 = tf.compat.v1

# TensorFlow can't join slices of these, nor of float8.
NOT_JOINED = {"float16", "uint16", "uint32", "uint64"}
# What a variable may have.
VARIABLES = {"float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
             "bool", "complex64", "complex128"}


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def check(what, found, expected):
    if found != expected:
        raise SystemExit(f"{what}: {found} is not {expected}")


def readable(tensor):
    return not (tensor["sliced"] and (tensor["dtype"] in NOT_JOINED or tensor["dtype"].startswith("float8")))


def load_checkpoint(prefix, case):
    """tf.train.load_checkpoint and list_variables."""
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    names = {name for name in shapes if name != "_CHECKPOINTABLE_OBJECT_GRAPH"}
    check(f"{prefix}: names", sorted(names), sorted([*case["tensors"], *case["strings"]]))
    for key, tensor in case["tensors"].items():
        check(f"{prefix}: shape of {key}", list(shapes[key]), tensor["shape"])
        dtype = reader.get_variable_to_dtype_map()[key]
        check(f"{prefix}: type of {key}", dtype.name, tensor["dtype"])
        if readable(tensor):
            check(f"{prefix}: {key}", sha256(reader.get_tensor(key)), tensor["sha256"])
        else:
            # Each slice, as it is stored.
            whole = np.zeros(tensor["shape"], dtype.as_numpy_dtype)
            for spec in tensor["specs"]:
                (part,) = io_ops.restore_v2(prefix, [key], [spec], [dtype])
                at = [slice(int(a), int(a) + int(n)) for a, n in (e.split(",") for e in spec.split(" ")[-1].split(":"))]
                whole[tuple(at)] = part.numpy()
            check(f"{prefix}: {key}", sha256(whole), tensor["sha256"])
    for key, values in case["strings"].items():
        found = reader.get_tensor(key)
        found = [found] if isinstance(found, bytes) else list(np.ravel(found))
        check(f"{prefix}: {key}", [v.hex() for v in found], values)
    return names


def tree(case):
    """Objects with variables where the names of tensors say."""
    root, variables = {}, {}
    for key, tensor in case["tensors"].items():
        *path, name = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        node = root
        for part in path:
            node = node.setdefault(part, {})
        node[name] = variables[key] = tf.Variable(tf.zeros(tensor["shape"], tensor["dtype"]))

    def made(node):
        if not isinstance(node, dict):
            return node
        out = tf.Module()
        for name, child in node.items():
            setattr(out, name, made(child))
        return out

    return {name: made(node) for name, node in root.items()}, variables


def restore(prefix, case):
    """tf.train.Checkpoint.restore, or read: of what `write` makes, which has no `save_counter`."""
    counter = "save_counter/.ATTRIBUTES/VARIABLE_VALUE"
    how = "restore" if counter in case["tensors"] else "read"
    root, variables = tree({"tensors": {key: t for key, t in case["tensors"].items() if key != counter}})
    checkpoint = tf.train.Checkpoint(**root)
    getattr(checkpoint, how)(prefix).assert_consumed()
    if how == "restore":
        variables[counter] = checkpoint.save_counter
    for key, variable in variables.items():
        check(f"{prefix}: {how} of {key}", sha256(variable.numpy()), case["tensors"][key]["sha256"])


def saver(prefix, case):
    """The Saver of TensorFlow 1, into whole variables and into parts."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        variables, parts = {}, {}
        for n, (key, tensor) in enumerate(case["tensors"].items()):
            if tensor["dtype"] not in VARIABLES or not readable(tensor):
                continue
            variables[key] = tf1.get_variable(f"v{n}", tensor["shape"], tensor["dtype"], tf1.zeros_initializer(), use_resource=True)
            if tensor["dtype"] == "float32" and tensor["shape"] and tensor["shape"][0] > 1:
                partitioner = tf1.fixed_size_partitioner(2)
                parts[key] = tf1.get_variable(f"p{n}", tensor["shape"], tensor["dtype"], tf1.zeros_initializer(), partitioner=partitioner)
        for wanted in (variables, parts):
            if not wanted:
                continue
            tf1.train.Saver(wanted).restore(session, prefix)
            for key, variable in wanted.items():
                value = session.run(variable if wanted is variables else variable.as_tensor())
                check(f"{prefix}: Saver of {key}", sha256(value), case["tensors"][key]["sha256"])


def described(values):
    return {
        key: {"dtype": tf.as_dtype(v.dtype).name, "shape": list(v.shape), "sha256": sha256(v)} for key, v in values.items()
    }


def write(folder):
    """Checkpoints of each of TensorFlow's ways to save."""
    folder.mkdir()
    rng, out = np.random.default_rng(7), {}
    dtypes = sorted(VARIABLES)
    values = {d: tf.cast(rng.integers(0, 2 if d == "bool" else 60, (7, 5)), d) for d in dtypes}

    root = {f"v_{d}": tf.Variable(v) for d, v in values.items()}
    key = "v_{}/.ATTRIBUTES/VARIABLE_VALUE".format
    expected = described({key(d): v.numpy() for d, v in values.items()})
    for name, policy in {
        "tasks": None,
        "pieces": sharding_policies.MaxShardSizePolicy(max_shard_size=100),
    }.items():
        options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
        tf.train.Checkpoint(**root).write(str(folder / name), options)
        out[name] = expected

    with tf1.Graph().as_default(), tf1.Session() as session:
        table = rng.standard_normal((13, 4)).astype(np.float32)

        def rows(shape, dtype, partition_info):
            at = partition_info.var_offset[0]
            return tf.constant(table[at : at + shape[0]], dtype)

        parts = tf1.get_variable("table", (13, 4), tf.float32, rows, partitioner=tf1.fixed_size_partitioner(5))
        step = tf1.get_variable("step", (), tf.int64, tf1.constant_initializer(3))
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver({"table": parts, "step": step}).save(session, str(folder / "saver"), write_meta_graph=False)
        out["saver"] = described({"table": table, "step": np.asarray(3, np.int64)})

    module = tf.Module()
    module.weight = tf.Variable(values["float32"])
    tf.saved_model.save(module, str(folder / "saved_model"))
    out["saved_model"] = described({"weight/.ATTRIBUTES/VARIABLE_VALUE": values["float32"].numpy()})
    (folder / "expected.json").write_text(json.dumps(out))


def main(folder):
    cases = json.loads((folder / "expected.json").read_text())
    for name, case in cases.items():
        prefix = str(folder / name)
        load_checkpoint(prefix, case)
        if case["of_objects"]:
            restore(prefix, case)
        saver(prefix, case)
    check("latest_checkpoint", tf.train.latest_checkpoint(str(folder / "in_folder")), str(folder / "in_folder" / "ckpt"))
    write(folder / "theirs")
    print(f"TensorFlow {tf.__version__} has read {len(cases)} checkpoints")


main(pathlib.Path(sys.argv[1]))

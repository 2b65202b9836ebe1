"""What all drivers share: specs, the bytes of a tensor, values in JSON, exact comparison, ranks as processes."""

import argparse
import ast
import base64
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings

warnings.filterwarnings("ignore")
# All ranks are on this machine: no look-up of its name.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
# Importing megatron.core would start a pool of compilers.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import numpy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402


class Mismatch(Exception):
    """What was loaded is not what the spec says."""


def tensor_bytes(seed, count):
    """The bytes of the tensor with this seed."""
    index = numpy.arange(1, 1 + count, dtype=numpy.uint64) + numpy.uint64(seed << 32)
    return ((index * numpy.uint64(0x9E3779B97F4A7C15)) >> numpy.uint64(56)).astype(numpy.uint8)


def full_tensor(entry):
    """The whole tensor of a spec's entry; `as` is the type that a planner stored it in."""
    tensor = torch.empty(entry["shape"], dtype=getattr(torch, entry["dtype"]))
    body = raw(tensor)
    data = torch.from_numpy(tensor_bytes(entry["seed"], body.numel()))
    body.copy_(data & 1 if tensor.dtype == torch.bool else data)
    return tensor.to(getattr(torch, entry["as"])) if "as" in entry else tensor


def value(coded):
    """The Python value that a tagged JSON value means."""
    if isinstance(coded, list):
        return [value(item) for item in coded]
    if not isinstance(coded, dict):
        return coded
    if len(coded) == 1:
        (tag, body), = coded.items()
        if tag == "$tuple":
            return tuple(value(item) for item in body)
        if tag == "$bytes":
            return base64.b64decode(body)
        if tag == "$float":
            return float(body)
        if tag == "$int":
            return int(body)
        if tag == "$dict":
            return {value(key): value(item) for key, item in body}
        if tag == "$tensor":
            return full_tensor(body)
        if tag.startswith("$"):
            raise ValueError(f"unknown tag {tag}")
    return {key: value(item) for key, item in coded.items()}


def raw(tensor):
    """The bytes of a tensor in row-major order; of a contiguous one its own, to write into."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def same(where, got, want):
    """Raises unless both are equal in type and value; tensors in dtype, shape and every bit."""
    if isinstance(want, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            raise Mismatch(f"{where}: a {type(got).__name__} instead of a tensor")
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            raise Mismatch(f"{where}: {got.dtype} {tuple(got.shape)} instead of {want.dtype} {tuple(want.shape)}")
        unequal = (raw(got) != raw(want)).nonzero()
        if len(unequal):
            raise Mismatch(f"{where}: {len(unequal)} bytes differ, the first at {int(unequal[0])}")
    elif type(got) is not type(want):
        raise Mismatch(f"{where}: {got!r} ({type(got).__name__}) instead of {want!r} ({type(want).__name__})")
    elif isinstance(want, dict):
        if got.keys() != want.keys():
            raise Mismatch(f"{where}: keys {list(got)} instead of {list(want)}")
        for key in want:
            same(f"{where}[{key!r}]", got[key], want[key])
    elif isinstance(want, (list, tuple)):
        if len(got) != len(want):
            raise Mismatch(f"{where}: {len(got)} elements instead of {len(want)}")
        for index, pair in enumerate(zip(got, want)):
            same(f"{where}[{index}]", *pair)
    elif repr(got) != repr(want):
        raise Mismatch(f"{where}: {got!r} instead of {want!r}")


def path(parts):
    """The parts of a path in Python; what JSON can't say is given as a literal."""
    return [ast.literal_eval(part["python"]) if isinstance(part, dict) else part for part in parts]


def place(tree, path, leaf):
    """Puts a leaf into nested dicts and lists; an int in the path is an index of a list."""
    for part, follower in zip(path, path[1:]):
        if isinstance(part, int):
            tree.extend([None] * (part + 1 - len(tree)))
            if tree[part] is None:
                tree[part] = [] if isinstance(follower, int) else {}
            tree = tree[part]
        else:
            tree = tree.setdefault(part, [] if isinstance(follower, int) else {})
    if isinstance(path[-1], int):
        tree.extend([None] * (path[-1] + 1 - len(tree)))
    tree[path[-1]] = leaf


def key(entry):
    """The key of a leaf of a spec."""
    return entry.get("key") or ".".join(map(str, entry["path"]))


def find(tree, path):
    """The leaf at a path."""
    for part in path:
        tree = tree[part]
    return tree


def arguments(description, ranks):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--spec", required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--cut", choices=["read", "write"], default="read", help="load as `read` or as `write` says")
    parser.add_argument("--backend", help="of Megatron, if it is not its default")
    parser.add_argument("--no-flatten", action="store_true", help="DCP keeps each dict below the top whole: flatten_state_dict=False")
    parser.add_argument("--integrity", action="store_true", help="Megatron writes `integrity.json`, or checks it")
    parser.add_argument("--separation-hint", metavar="PREFIX", help="Megatron saves keys that begin so in files of their own")
    parser.add_argument("--unflattened", action="store_true", help="ask for whole tensors where the spec has flattened ranges")
    parser.add_argument("--without", metavar="PREFIX", help="keys that were removed are neither asked for nor there")
    parser.add_argument("--planner", help="the planner that reshard saved with, or will load with")
    if ranks:
        parser.add_argument("--ranks", type=int, default=ranks)
    parsed = parser.parse_args()
    with open(parsed.spec, encoding="utf-8") as file:
        spec = json.load(file)
    for entry in spec["tensors"] + spec.get("values", []):
        if "path" in entry:
            entry["path"] = path(entry["path"])
    if parsed.without:
        for kind in ("tensors", "values", "objects"):
            spec[kind] = [entry for entry in spec.get(kind, []) if not key(entry).startswith(parsed.without)]
    if parsed.unflattened:
        for entry in spec["tensors"]:
            if isinstance(entry["read"], dict):
                entry["read"] = "replicate"
    return parsed, {**spec, "cut": parsed.cut, "planner": parsed.planner, "backend": parsed.backend, "separation_hint": parsed.separation_hint, "integrity": parsed.integrity, "flatten": not parsed.no_flatten}


def rank_main(rank, work, spec, directory, ranks, meeting):
    # Whatever hangs, ends.
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}/ranks", rank=rank, world_size=ranks)
    try:
        work(spec, directory, rank, ranks)
    except BaseException:
        traceback.print_exc()
        leave(1)
    # Nobody goes while others may still listen to it.
    open(f"{meeting}/done-{rank}", "w").close()
    while not all(os.path.exists(f"{meeting}/done-{other}") for other in range(ranks)):
        time.sleep(0.01)
    leave(0)


def leave(code):
    """Ends this rank. Not by the group's own means: the end of a gloo group may wait for its own thread, for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start(rank_main, args, ranks):
    """Runs `rank_main(rank, *args, meeting)` in as many processes, which meet at a folder. If one fails, this process ends with an error."""
    os.setpgid(0, 0)
    failure = None
    with tempfile.TemporaryDirectory() as meeting:
        try:
            # Forked, so that the imports are paid for once.
            mp.start_processes(rank_main, args=(*args, meeting), nprocs=ranks, start_method="fork")
        except (mp.ProcessExitedException, mp.ProcessRaisedException) as error:
            failure = f"{os.path.basename(sys.argv[0])}: {error}"
    # Ends whatever the ranks started and left behind, which would keep our output open.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    if failure:
        sys.exit(failure)


def run(work, description, ranks):
    """Runs `work(spec, directory, rank, ranks)` as as many gloo ranks as asked for, and says what was done."""
    parsed, spec = arguments(description, ranks)
    start(rank_main, (work, spec, parsed.dir, parsed.ranks), parsed.ranks)
    report(spec, f"{parsed.ranks} rank(s), torch {torch.__version__}")


def report(spec, who):
    leaves = sum(len(spec.get(kind, ())) for kind in ("values", "objects", "common"))
    print(f"{os.path.basename(sys.argv[0])}: {len(spec['tensors'])} tensors, {leaves} other leaves, {who}")

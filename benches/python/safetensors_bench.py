"""The side of torch and safetensors in the benchmarks of safetensors: one measurement a call, as a line of JSON.

    python safetensors_bench.py convert DIR NEW ITERATIONS [SETTING]
    python safetensors_bench.py load DIR KEY ITERATIONS [SETTING]
    python safetensors_bench.py convert|load ... SETTING SETTING ... --choose

`convert` makes the checkpoint DIR of torch_dist a file of safetensors in the new folder NEW: dcp_to_torch_save, torch.load, save_file. `load`
opens the folder DIR by its index, and brings one tensor into memory that is there. All values are 1, and are checked after the clock has stopped.

A SETTING is a list like `mmap,ops=1`, or `plain`. With --choose each of them is tried, and the fastest is named as `{"best": ...}`.

    mmap     of `convert`: torch.load maps the file between; otherwise it reads it
    no-crc   of `convert`: the file between has no checksums
    numpy    of `load`: safe_open gives arrays of NumPy; otherwise tensors of torch
    pread    of `load`: safe_open reads; otherwise it maps the file
    slice    of `load`: by get_slice; otherwise by get_tensor
    ops=N    torch's own threads; without it as many as torch takes by itself
"""

import json
import os
import shutil

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import runs

OWN_THREADS = torch.get_num_threads()


def convert(args, setting):
    torch.set_num_threads(setting.number("ops", OWN_THREADS))
    torch.serialization.set_crc32_options("no-crc" not in setting)
    between = os.path.join(args.to, "between.pt")
    dcp_to_torch_save(args.dir, between)
    state = torch.load(between, mmap="mmap" in setting, weights_only=True)
    save_file(state, os.path.join(args.to, "model.safetensors"))
    del state
    os.remove(between)


def check_converted(args):
    with safe_open(os.path.join(args.to, "model.safetensors"), "pt") as file:
        assert all(bool((file.get_tensor(key) == 1).all()) for key in file.keys()), "wrong values"


def load(args, setting, buffer):
    torch.set_num_threads(setting.number("ops", OWN_THREADS))
    with open(os.path.join(args.dir, "model.safetensors.index.json")) as file:
        name = json.load(file)["weight_map"][args.to]
    framework, backend = "np" if "numpy" in setting else "pt", "pread" if "pread" in setting else "mmap"
    with safe_open(os.path.join(args.dir, name), framework, backend=backend) as file:
        tensor = file.get_slice(args.to)[:] if "slice" in setting else file.get_tensor(args.to)
        if "numpy" in setting:
            np.copyto(buffer.numpy(), tensor)
        else:
            buffer.copy_(tensor)


def size(path):
    return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))


def main():
    parser = runs.parser(["convert", "load"])
    parser.add_argument("dir")
    parser.add_argument("to", help="the new folder, or the key")
    args = runs.arguments(parser)
    if args.mode == "convert":
        runs.measure(args, ["mmap", "no-crc", "ops"], lambda s: convert(args, s), size(args.dir),
                     lambda _: check_converted(args), before=lambda: runs.emptied(args.to))
        shutil.rmtree(args.to)
        return
    shape = (5504, 2048)
    buffer = torch.empty(shape).fill_(1)

    def fresh():
        # What an earlier run brought there is no answer of this one.
        buffer.fill_(0)

    def check(_):
        assert bool((buffer == 1).all()), "wrong values"

    runs.measure(args, ["numpy", "pread", "slice", "ops"], lambda s: load(args, s, buffer), buffer.nbytes, check, before=fresh)


if __name__ == "__main__":
    main()

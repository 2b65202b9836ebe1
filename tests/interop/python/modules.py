"""Modules that torch saved whole, rewritten by reshard, and loaded again by torch and safetensors.

    python modules.py OUT --reshard PROGRAM

Each module is saved by torch.save or torch.jit.save. `reshard convert --open-modules` writes what `state_dict()` returns.
"""

import argparse
import os
import subprocess
import sys
import warnings

import torch

try:
    from safetensors.torch import load_file
except ImportError:
    load_file = None


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.fc = torch.nn.Linear(width, width, bias=False)
        self.register_buffer("kept", torch.arange(width, dtype=torch.int64))
        self.register_buffer("hidden", torch.ones(width), persistent=False)
        self.register_parameter("absent", None)
        self.plain = torch.full((width,), 7.0)

    def forward(self, x):
        return self.fc(self.norm(x)) + self.kept + self.hidden + self.plain


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.blocks = torch.nn.ModuleList([Block(6), Block(6)])
        self.heads = torch.nn.ModuleDict({"one": torch.nn.Linear(6, 2)})
        self.rnn = torch.nn.LSTM(6, 4, num_layers=2)
        self.batch = torch.nn.BatchNorm1d(6)
        self.tied = torch.nn.Linear(6, 11, bias=False)
        self.tied.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16), requires_grad=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.tied(self.batch(x)) + self.rnn(x)[0].sum() + self.heads["one"](x).sum() + self.scale.sum()


def save(net, out):
    """Saves the module in each way. Returns the path, the state dict and a prefix of its keys for each."""
    state, x = net.state_dict(), torch.zeros(2, 6)
    made = []

    def add(name, save, prefix="", loaded=None):
        path = os.path.join(out, name + ".pt")
        save(path)
        made.append((path, loaded(path) if loaded else state, prefix))

    scripted = dict(loaded=lambda path: torch.jit.load(path).state_dict())
    add("module", lambda path: torch.save(net, path))
    add("old_layout", lambda path: torch.save(net, path, _use_new_zipfile_serialization=False))
    add("in_dict", lambda path: torch.save({"model": net, "epoch": 3}, path), prefix="model.")
    add("parallel", lambda path: torch.save(torch.nn.DataParallel(net), path), prefix="module.")
    add("script", lambda path: torch.jit.save(torch.jit.script(net), path), **scripted)
    add("trace", lambda path: torch.jit.save(torch.jit.trace(net, x), path), **scripted)
    return made


def same(found, state, prefix):
    if set(found) != {prefix + key for key in state}:
        return False
    pairs = ((found[prefix + key], value) for key, value in state.items())
    return all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--reshard", required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(0)
    loads = {".copy.pt": lambda path: torch.load(path, weights_only=True)}
    if load_file:
        loads[".safetensors"] = load_file
    failed = []
    for path, state, prefix in save(Net().eval(), args.out):
        for ending, load in loads.items():
            copy = path.removesuffix(".pt") + ending
            command = [args.reshard, "convert", "--open-modules", "--drop-objects", path, copy]
            printed = subprocess.run(command, capture_output=True, text=True)
            found = load(copy) if printed.returncode == 0 else {}
            if "model" in found:
                found = {"model." + key: value for key, value in found["model"].items()}
            if not same({key: v for key, v in found.items() if isinstance(v, torch.Tensor)}, state, prefix):
                print(f"{copy}: other tensors\n{printed.stderr}{sorted(found)}\n{sorted(prefix + key for key in state)}")
                failed.append(copy)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

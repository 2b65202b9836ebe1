"""Stock PyTorch saves to a bucket and loads from it, with fsspec and s3fs.

buckets.py save URL DIRECTORY   saves the same state to both
buckets.py load URL             loads the state, and fails if an element differs

AWS_ENDPOINT_URL names the server.
"""

import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader, FsspecWriter


def state(filled):
    """The state that is saved, or one of zeros to load it into."""

    def tensor(dtype, *shape):
        elements = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
        return elements if filled else torch.zeros_like(elements)

    return {
        "model": {
            "weight": tensor(torch.float32, 640, 513),
            "bias": tensor(torch.bfloat16, 513),
            "scalar": tensor(torch.int64),
            "empty": tensor(torch.float64, 0, 3),
            "große Schicht": tensor(torch.int32, 7, 5),
        },
        "optimizer": {"step": 17 if filled else 0, "betas": [0.9, 0.95] if filled else [0.0, 0.0]},
        "names": {"a": "b" if filled else ""},
    }


def same(a, b, where="state"):
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
    else:
        assert a == b, f"{where}: {a!r} and {b!r}"


def main():
    warnings.simplefilter("ignore")
    command, url, *rest = sys.argv[1:]
    if command == "save":
        dcp.save(state(True), storage_writer=FsspecWriter(url))
        dcp.save(state(True), storage_writer=FileSystemWriter(rest[0]))
    else:
        loaded = state(False)
        dcp.load(loaded, storage_reader=FsspecReader(url))
        same(loaded, state(True))
    print(f"{command} {url}: ok, torch {torch.__version__}")


main()

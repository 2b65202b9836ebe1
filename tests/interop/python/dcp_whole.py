"""Loads every tensor of a checkpoint whole with torch.distributed.checkpoint, by its key, and compares it with the spec."""

import torch
import torch.distributed.checkpoint as dcp

import common


def work(spec, directory, rank, ranks):
    want = {common.key(entry): common.full_tensor(entry) for entry in spec["tensors"]}
    state = {key: torch.zeros_like(tensor) for key, tensor in want.items()}
    dcp.load(state, storage_reader=dcp.FileSystemReader(directory))
    common.same("state", state, want)


if __name__ == "__main__":
    common.run(work, __doc__, ranks=2)

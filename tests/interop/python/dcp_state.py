"""The state dict of a DCP spec, as one rank of a gloo group holds it; for torch 2.1 to 2.15."""

import torch

import common

try:
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard
except ImportError:  # before 2.5
    from torch.distributed._tensor import DeviceMesh, DTensor, Replicate, Shard


def part(full, cut, rank, ranks):
    """This rank's part by torch.chunk's rule."""
    if not isinstance(cut, int):
        return full
    pieces = full.chunk(ranks, dim=cut)
    return pieces[rank] if rank < len(pieces) else full.narrow(cut, 0, 0)


def leaf(full, cut, rank, ranks, mesh):
    """A tensor or DTensor that holds a copy of this rank's part."""
    local = part(full, cut, rank, ranks).clone(memory_format=torch.contiguous_format)
    if cut == "plain":
        return local
    placements = (Shard(cut) if isinstance(cut, int) else Replicate(),)
    if torch.__version__.startswith("2.1."):
        # Its from_local takes every cut for an even one.
        return DTensor(local, mesh, placements, shape=full.shape, dtype=full.dtype, requires_grad=False, stride=full.stride())
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride())


def state_dict(spec, which, rank, ranks, filled):
    """The whole state dict; `which` is "write" or "read". Unfilled, every tensor is zeros and every value a placeholder."""
    mesh = DeviceMesh("cpu", list(range(ranks)))
    tree = {}
    for entry in spec["tensors"]:
        full = common.full_tensor(entry)
        if not filled:
            # Through its bytes, as not every dtype can be filled.
            common.raw(full).zero_()
        common.place(tree, entry["path"], leaf(full, entry[which], rank, ranks, mesh))
    for entry in spec["values"]:
        common.place(tree, entry["path"], common.value(entry["value"]) if filled else "not loaded")
    return tree


def check(spec, tree, rank, ranks):
    """Compares a loaded state dict with the spec."""
    for entry in spec["tensors"]:
        got = common.find(tree, entry["path"])
        got = got.to_local() if isinstance(got, DTensor) else got
        common.same(str(entry["path"]), got, part(common.full_tensor(entry), entry[spec["cut"]], rank, ranks))
    for entry in spec["values"]:
        common.same(str(entry["path"]), common.find(tree, entry["path"]), common.value(entry["value"]))

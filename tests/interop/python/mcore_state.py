"""The sharded state dict of a Megatron spec, as one rank holds it; for megatron-core 0.12 to 0.16."""

import math

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.mapping import ShardedObject

import common

if not torch.cuda.is_available():
    # Megatron takes a GPU for granted; on a machine without one there is nothing to wait for.
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.set_device = lambda *_: None


def pieces(entry, which, rank, ranks):
    """The local shards of one tensor: (place in the state dict, slices of the global tensor, rank offsets, replica id, flattened range)."""
    shape, prepended, cut = entry["shape"], entry.get("prepend", 0), entry[which]
    if isinstance(cut, dict):
        one = "one_cell" in cut
        axis, cells = cut["one_cell" if one else "flat"]
        length = shape[axis] // cells
        numel = math.prod(shape) // cells
        mine = range(cells)
        if one:
            ranks = max(1, ranks // cells)
            mine, rank = [rank % cells], rank // cells % ranks
        for cell in mine:
            index = [slice(None)] * len(shape)
            index[axis] = slice(cell * length, (cell + 1) * length)
            part = slice(numel * rank // ranks, numel * (rank + 1) // ranks)
            yield f"{entry['key']}[{cell}]", tuple(index), [(axis, cell, cells)], 0, part
        return
    offsets, replica, index = [], rank, [slice(None)] * len(shape)
    layers = range(shape[0]) if prepended else [None]
    if isinstance(cut, int):
        replica = 0
        length = shape[cut] // ranks
        assert length * ranks == shape[cut], f"{entry['key']}: {shape[cut]} rows for {ranks} ranks"
        if cut < prepended:
            layers = range(rank * length, (rank + 1) * length)
        else:
            offsets.append((cut, rank, ranks))
            index[cut] = slice(rank * length, (rank + 1) * length)
    for layer in layers:
        if layer is None:
            yield entry["key"], tuple(index), offsets, replica, None
        else:
            place = f"{entry['key']}[{layer}]"
            yield place, (layer, *index[1:]), [(0, layer, shape[0]), *offsets], replica, None


def state_dict(spec, which, rank, ranks, filled):
    """The whole state dict; `which` is "write" or "read". Unfilled, tensors are zeros and nothing else has a value."""
    model, extra = {}, {}
    for entry in spec["tensors"]:
        full = common.full_tensor(entry)
        for place, index, offsets, replica, part in pieces(entry, which, rank, ranks):
            local = full[index].clone(memory_format=torch.contiguous_format)
            if not filled:
                common.raw(local).zero_()
            if part is not None:
                shape, local = local.shape, local.flatten()[part]
                model[place] = ShardedTensor.from_rank_offsets_flat(
                    entry["key"], local, shape, *offsets, flattened_range=part, replica_id=replica
                )
                continue
            model[place] = ShardedTensor.from_rank_offsets(
                entry["key"], local, *offsets, replica_id=replica, prepend_axis_num=entry.get("prepend", 0)
            )
    for entry in spec["objects"]:
        cells = entry["cells"]
        for cell, coded in enumerate(cells):
            # A cell belongs to one rank when it is written; every rank reads all of them.
            if which == "write" and cell % ranks != rank:
                continue
            data = common.value(coded) if filled else None
            extra[f"{entry['key']}[{cell}]"] = ShardedObject(entry["key"], data, (len(cells),), (cell,), replica_id=0 if filled else rank)
    state = {"model": model, "extra": extra}
    if filled:
        state.update(common.value(spec["common"]))
    return state


def check(spec, state, rank, ranks):
    """Compares a loaded state dict with the spec."""
    for entry in spec["tensors"]:
        full = common.full_tensor(entry)
        for place, index, _, _, part in pieces(entry, "read", rank, ranks):
            expected = full[index] if part is None else full[index].flatten()[part]
            common.same(place, state["model"][place], expected)
    for entry in spec["objects"]:
        for cell, coded in enumerate(entry["cells"]):
            place = f"{entry['key']}[{cell}]"
            common.same(place, state["extra"][place], common.value(coded))
    rest = {key: item for key, item in state.items() if key not in ("model", "extra")}
    common.same("common state", rest, common.value(spec["common"]))

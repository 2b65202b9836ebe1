"""What a spec becomes through the planners of PyTorch's page, which reshard saves and loads with."""

import collections

import torch.distributed.checkpoint as dcp

import common


def renamed(spec):
    """Every key gets a prefix."""
    def flat(entry):
        return {**entry, "path": ["foo_" + ".".join(map(str, entry["path"]))]}

    return {**spec, **{kind: [flat(entry) for entry in spec[kind]] for kind in ("tensors", "values")}}


def halved(spec):
    """Every tensor is stored as float16."""
    return {**spec, "tensors": [{**entry, "as": "float16"} for entry in spec["tensors"]]}


PLANNED = {None: lambda spec: spec, "rename": renamed, "fp16": halved, "ddp": lambda spec: spec, "extra": lambda spec: spec}


def planned(spec):
    return PLANNED[spec["planner"]](spec)


def check(spec, directory):
    """What else that planner leaves in a checkpoint."""
    if spec["planner"] not in ("ddp", "extra"):
        return
    metadata = dcp.FileSystemReader(directory).read_metadata()
    files = collections.Counter(place.relative_path for place in metadata.storage_data.values())
    if spec["planner"] == "extra":
        common.same("planner_data", metadata.planner_data, ["per-rank-data"] * len(files))
    elif len(files) < 2 or max(files.values()) > min(files.values()) + 1:
        raise common.Mismatch(f"items are not dealt out in turns: {dict(files)}")

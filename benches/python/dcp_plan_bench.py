"""DCP's global plan without a network, and `pickle.load` of a large `.metadata`.

    python dcp_plan_bench.py plan RANKS ITEMS REPLICAS    seconds of dedup, metadata and validation
    python dcp_plan_bench.py write TENSORS CHUNKS FILE    writes a .metadata as DCP does
    python dcp_plan_bench.py load FILE ITERATIONS         seconds of pickle.load
"""

import gc
import json
import pickle
import resource
import sys
import time

import torch
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint.default_planner import _validate_global_plan, create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (ChunkStorageMetadata, Metadata, MetadataIndex,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def plan(ranks, items, replicas):
    """Each rank holds rows of every tensor, and `replicas` ranks hold the same ones."""
    properties = TensorProperties(dtype=torch.bfloat16)
    shards = ranks // replicas
    plans = []
    for r in range(ranks):
        shard = r % shards
        offset, size = torch.Size([shard * 4, 0]), torch.Size([4, 1024])
        plans.append(SavePlan([
            WriteItem(index=MetadataIndex(f"layers.{k}.w", offset, shard), type=WriteItemType.SHARD,
                      tensor_data=TensorWriteData(chunk=ChunkStorageMetadata(offset, size), properties=properties,
                                                  size=torch.Size([shards * 4, 1024])))
            for k in range(items)]))
    before = peak()
    gc.collect()
    start, used = time.perf_counter(), time.process_time()
    deduped = dedup_save_plans(plans, False)
    final, metadata = create_default_global_save_plan(deduped)
    problems = _validate_global_plan(final, metadata)
    out = {"seconds": [time.perf_counter() - start], "cpu": [time.process_time() - used]}
    assert not problems, problems
    return out | {"grown": peak() - before}


def write(tensors, chunks, path):
    properties = TensorProperties(dtype=torch.bfloat16)
    state, storage = {}, {}
    for t in range(tensors):
        key = f"model.layers.{t}.self_attn.q_proj.weight"
        state[key] = TensorStorageMetadata(properties, torch.Size([chunks * 4, 1024]), [
            ChunkStorageMetadata(torch.Size([c * 4, 0]), torch.Size([4, 1024])) for c in range(chunks)])
        for c in range(chunks):
            index = MetadataIndex(key, torch.Size([c * 4, 0]), c)
            storage[index] = _StorageInfo(f"__{c}_0.distcp", t * 9769, 9769)
    with open(path, "wb") as f:
        pickle.dump(Metadata(state, None, storage), f)
    return {}


def load(path, iterations):
    out = {"seconds": [], "cpu": []}
    before = peak()
    for _ in range(iterations):
        gc.collect()
        start, used = time.perf_counter(), time.process_time()
        with open(path, "rb") as f:
            metadata = pickle.load(f)
            out["bytes"] = f.tell()
        out["seconds"].append(time.perf_counter() - start)
        out["cpu"].append(time.process_time() - used)
        assert metadata.storage_data
        del metadata
    return out | {"grown": peak() - before}


if __name__ == "__main__":
    what, args = sys.argv[1], sys.argv[2:]
    out = {"plan": lambda: plan(int(args[0]), int(args[1]), int(args[2])),
           "write": lambda: write(int(args[0]), int(args[1]), args[2]),
           "load": lambda: load(args[0], int(args[1]))}[what]()
    print(json.dumps(out))

"""Saves and loads a live Megatron-FSDP with its optimizer (`fsdp_dtensor`), on CPUs: `--save`; without it, what is there is loaded. `--canonical` instead reads the canonical keys with PyTorch alone.

The model and the numbers are those of `mcore_optimizer.py`. Megatron's training program saves such a state with `torch.distributed.checkpoint`, and so does this one.
"""

import argparse
import contextlib
import os

import common
import mcore_optimizer as live

import torch
import torch.distributed.checkpoint as dcp
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.fsdp import mcore_fsdp_adapter
from megatron.core.distributed.fsdp.src.megatron_fsdp import megatron_fsdp
from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import gather_and_compute_chunk_metadata, preprocess_state_dict_for_uneven_dtensor
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.distributed.device_mesh import DeviceMesh


class Stream:
    """A stream or an event of a GPU, where all is done in order anyway."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, _):
        return lambda *_: None


class TorchOnCpu:
    """What Megatron-FSDP sees as `torch`: it asks for the device of its rank by name."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def device(which, *args):
        return torch.device("cpu") if str(which).startswith("cuda") else torch.device(which, *args)


class MeshOnCpu:
    @staticmethod
    def from_group(groups, device_type, **kwargs):
        return DeviceMesh.from_group(groups, device_type.replace("cuda", "cpu"), **kwargs)


torch.cuda.Stream = torch.cuda.Event = torch.cuda.current_stream = Stream
torch.cuda.stream = lambda _: contextlib.nullcontext()
torch.cuda.empty_cache = lambda: None
megatron_fsdp.torch = TorchOnCpu()
mcore_fsdp_adapter.DeviceMesh = MeshOnCpu


def model_and_optimizer():
    parallel_state.initialize_model_parallel(1)
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2)
    how = DistributedDataParallelConfig(use_distributed_optimizer=True, use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads_params")
    model = mcore_fsdp_adapter.FullyShardedDataParallel(config, how, live.Model(), fsdp_unit_modules=[live.Model], device=torch.device("cpu"))
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=0.1, use_distributed_optimizer=True), [model])
    (optimizer,) = getattr(optimizer, "chained_optimizers", [optimizer])
    for main in (main for group in optimizer.optimizer.param_groups for main in group["params"]):
        optimizer.optimizer.state[main] = {state: torch.zeros_like(main) for state in live.STATES[1:]}
    return model, optimizer


def parts(state):
    """What this rank has: (name, the tensor, what it should be)."""
    model, optimizer = state["model"], state["optimizer"]["state"]
    for name, _, _ in live.PARAMS:
        attribute = name.replace(".", "_")
        (param,) = (tensor for key, tensor in model.items() if key.endswith(attribute))
        (of_param,) = (tensors for key, tensors in optimizer.items() if key.endswith(attribute))
        for kind, tensor in {"param": param, **of_param}.items():
            # Megatron-FSDP cuts where its buffers end, so the parts of ranks are not even.
            at = gather_and_compute_chunk_metadata(tensor)
            part = live.whole(name, kind)[tuple(slice(start, start + size) for start, size in zip(at.offsets, at.sizes))]
            yield f"{kind} of {name}", tensor.to_local(), part


def state_of(model, optimizer, iteration):
    # For a load Megatron would only make the state of the optimizer, which is there already.
    declared = optimizer.sharded_state_dict(metadata={"distrib_optim_sharding_type": "fsdp_dtensor"})
    return {"model": model.state_dict(), "optimizer": declared, "iteration": iteration}


def save(args):
    model, optimizer = model_and_optimizer()
    for group in optimizer.optimizer.param_groups:
        group["step"] = live.STEP
    state = state_of(model, optimizer, live.STEP)
    with torch.no_grad():
        for _, tensor, want in parts(state):
            tensor.copy_(want)
    os.makedirs(args.dir, exist_ok=True)
    dcp.save(preprocess_state_dict_for_uneven_dtensor(state), storage_writer=dcp.FileSystemWriter(args.dir))


def load(args):
    model, optimizer = model_and_optimizer()
    state = state_of(model, optimizer, None)
    with torch.no_grad():
        for _, tensor, _ in parts(state):
            # Nothing may be right before it is loaded.
            tensor.fill_(-1)
    # A load has no place for settings of groups that the optimizer gets as it runs.
    del state["optimizer"]["param_to_group_meta"]
    state = preprocess_state_dict_for_uneven_dtensor(state)
    dcp.load(state, storage_reader=dcp.FileSystemReader(args.dir))
    checked = 0
    for what, tensor, want in parts(state):
        common.same(what, tensor.detach(), want)
        checked += want.numel()
    assert checked, "this rank has no part of any parameter"
    assert state["iteration"] == live.STEP, f"the iteration is {state['iteration']}"


def canonical(args):
    for name, shape, _ in live.PARAMS:
        for kind in live.STATES[1:]:
            key = f"optimizer.state.{kind}.module.module.{name.replace('.', '_')}"
            loaded = {key: torch.full(shape, -1.0)}
            dcp.load(loaded, storage_reader=dcp.FileSystemReader(args.dir))
            common.same(key, loaded[key], live.whole(name, kind))


def rank_main(rank, args, meeting):
    def work(*_):
        with live.OnCpu():
            (save if args.save else canonical if args.canonical else load)(args)

    common.rank_main(rank, work, None, args.dir, args.ranks, meeting)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--canonical", action="store_true")
    args = parser.parse_args()
    common.start(rank_main, (args,), args.ranks)
    print(f"mcore_fsdp.py: {'saved' if args.save else 'loaded'}, {args.ranks} rank(s)")


if __name__ == "__main__":
    main()

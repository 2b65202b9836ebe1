"""Saves and loads the distributed optimizer of a live Megatron Core, on CPUs: `--form` saves in one of its forms, with the layout of its buckets beside; with `--load` it loads this form again. Without it, the canonical form is loaded.

The layout is written by the lines of docs/optimizer.md, so that these stay true. Each element of a parameter and of its state is a number that follows from its place in the whole tensor, so any rank can
check what it has.
"""

import argparse
import inspect
import json
import os
import re

import common

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, distrib_optimizer, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig


class OnCpu(torch.overrides.TorchFunctionMode):
    """Megatron takes a GPU for granted, also in the names of types. Here its tensors lie in host memory."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(*args).replace("torch.", "torch.cuda.")
        return function(*args, **kwargs)


# Training programs have the Adam of Apex or Transformer Engine, which counts steps by group. What loads the canonical form can't take PyTorch's, whose step is state of each parameter.
torch.optim.Adam.__setstate__ = torch.optim.AdamW.__setstate__ = torch.optim.Optimizer.__setstate__
distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True
torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: "cpu"
torch.cuda.set_device = lambda *_: None

# Name, shape of the whole, the axis along which tensor parallelism cuts.
PARAMS = [("decoder.fc1.weight", (24, 20), 0), ("decoder.fc1.bias", (24,), 0), ("decoder.fc2.weight", (20, 24), 1), ("decoder.norm", (20,), None)]
STATES = ["param", "exp_avg", "exp_avg_sq"]
STEP = 7


def whole(name, state):
    """All elements of a parameter, or of its state."""
    at = [param[0] for param in PARAMS].index(name)
    shape = PARAMS[at][1]
    numel = torch.Size(shape).numel()
    return (torch.arange(numel, dtype=torch.float32) + 10_000 * at + 1_000 * STATES.index(state)).reshape(shape)


class Model(torch.nn.Module):
    """The parameters, as one rank of tensor parallelism has them."""

    def __init__(self):
        super().__init__()
        self.rank, self.ranks = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
        for name, _, axis in PARAMS:
            self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(self.mine(whole(name, "param"), axis)))

    def mine(self, full, axis):
        return (full if axis is None else full.chunk(self.ranks, axis)[self.rank]).contiguous()

    def params(self):
        return [(name, axis, getattr(self, name.replace(".", "_"))) for name, _, axis in PARAMS]

    def sharded_state_dict(self, replica):
        def leaf(name, axis, param):
            offsets = [] if axis is None else [(axis, self.rank, self.ranks)]
            return ShardedTensor.from_rank_offsets(name, param, *offsets, replica_id=(0, self.rank if axis is None else 0, replica))

        return {name: leaf(name, axis, param) for name, axis, param in self.params()}


def parts(optimizer, model):
    """What this rank has of the optimizer: (name of the parameter, of the state, the tensor, what it should be)."""
    for name, axis, param in model.params():
        if param not in optimizer.model_param_gbuf_map:
            continue
        mine = optimizer._get_model_param_range_map(param)["param"]
        group, order = optimizer.model_param_group_index_map[param]
        main = optimizer.optimizer.param_groups[group]["params"][order]
        tensors = {"param": main, **optimizer.optimizer.state[main]}
        for state in STATES:
            yield name, state, tensors[state], model.mine(whole(name, state), axis).flatten()[mine.start : mine.end]


def optimizer_of(tensor_parallel):
    """A model and its distributed optimizer, whose state is not filled yet."""
    parallel_state.initialize_model_parallel(tensor_parallel)
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2, tensor_model_parallel_size=tensor_parallel)
    model = Model()
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=0.1, use_distributed_optimizer=True), [ddp])
    (optimizer,) = getattr(optimizer, "chained_optimizers", [optimizer])
    for main in (main for group in optimizer.optimizer.param_groups for main in group["params"]):
        optimizer.optimizer.state[main] = {state: torch.full_like(main, -1) for state in STATES[1:]}
    return model, optimizer


def documented(page):
    """The function of the page of documentation."""
    with open(page, encoding="utf-8") as file:
        (block,) = re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL)
    names = {}
    exec(block, names)
    return names["params_of"]


def sharded_state(model, optimizer, form, is_loading):
    declared = model.sharded_state_dict(parallel_state.get_data_parallel_rank())
    if "metadata" in inspect.signature(optimizer.sharded_state_dict).parameters:
        how = {"metadata": {"distrib_optim_sharding_type": form}}
    else:
        how = {"sharding_type": form}
    return {"model": declared, "optimizer": optimizer.sharded_state_dict(dict(declared), is_loading, **how)}


def save(args):
    model, optimizer = optimizer_of(args.tensor_parallel)
    for _, _, tensor, want in parts(optimizer, model):
        tensor.data.copy_(want)
    for group in optimizer.optimizer.param_groups:
        group["step"] = STEP
    os.makedirs(args.dir, exist_ok=True)
    state = sharded_state(model, optimizer, args.form, is_loading=False)
    dist_checkpointing.save({**state, "iteration": STEP}, args.dir, (args.backend, 1) if args.backend else None)
    params = []
    if parallel_state.get_data_parallel_rank() == 0:
        params = list(documented(args.page)(optimizer, model.sharded_state_dict(0)))
    all_params = [None] * dist.get_world_size()
    dist.all_gather_object(all_params, params)
    if dist.get_rank() == 0:
        with open(f"{args.dir}.layout.json", "w", encoding="utf-8") as file:
            json.dump({"params": sum(all_params, [])}, file)


def load(args):
    model, optimizer = optimizer_of(args.tensor_parallel)
    for _, _, tensor, _ in parts(optimizer, model):
        # Nothing may be right before it is loaded.
        tensor.data.fill_(-1)
    for group in optimizer.optimizer.param_groups:
        # Older ones count the step of what is there, to replace it.
        group["step"] = 0
    state = sharded_state(model, optimizer, args.form or "fully_reshardable", is_loading=True)
    loaded = dist_checkpointing.load(state, args.dir)
    with torch.no_grad():
        optimizer.load_state_dict(loaded["optimizer"])
    checked = 0
    for name, state, tensor, want in parts(optimizer, model):
        common.same(f"{state} of {name}", tensor.detach(), want)
        checked += want.numel()
    assert checked, "this rank has no part of any parameter"
    steps = [group.get("step") for group in optimizer.optimizer.param_groups]
    assert set(steps) == {STEP}, f"the steps are {steps}"


def rank_main(rank, args, meeting):
    def work(*_):
        with OnCpu():
            (load if args.load or not args.form else save)(args)

    common.rank_main(rank, work, None, args.dir, args.ranks, meeting)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--form", help="save in this form")
    parser.add_argument("--load", action="store_true", help="load the form instead")
    parser.add_argument("--backend", help="of Megatron, if it is not its default")
    parser.add_argument("--page", help="docs/optimizer.md, which says how the layout is written")
    args = parser.parse_args()
    common.start(rank_main, (args,), args.ranks)
    print(f"mcore_optimizer.py: {args.form or 'loaded'}, {args.ranks} rank(s)")


if __name__ == "__main__":
    main()

"""Tiny random models on the CPU, of megatron-core and of transformers, for the maps between them.

    models.py megatron-save MODEL DIR    a checkpoint of megatron-core, and its logits beside it
    models.py megatron-load MODEL RUN    loads what the tracker file of RUN names into megatron-core, strictly and without edits, and compares logits
    models.py hf-save MODEL DIR          a checkpoint of transformers' state dict by torch DCP, and its logits beside it
    models.py hf-publish MODEL DIR       a folder as on the hub, by save_pretrained, and its logits beside it
    models.py hf-load MODEL DIR          puts config.json beside mapped weights, has transformers load the folder, strictly, and compares logits

MODEL is hf-llama, hf-mixtral or hf-gpt-neox. The logits lie in DIR.logits.npy; --logits FILE names those to compare with.
megatron-load takes --tensor N and --pipeline N, the parallel sizes of as many ranks, and --te to ask for the extra states of Transformer Engine, too.
Needs torch, transformers, safetensors and megatron-core 0.16, whose GPT runs without Transformer Engine. It ends with exit code 0 and one line.
"""

import argparse
import contextlib
import os
import socket

import common  # noqa: F401, I001, it sets variables before torch is imported
import numpy as np
import torch

SIZES = {"layers": 2, "hidden": 32, "heads": 4, "groups": 2, "ffn": 48, "vocab": 61, "padded_vocab": 64, "experts": 4}
TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [58, 9, 7, 60, 3, 2, 38, 4, 6, 2]]


def hf_model(name):
    import transformers

    c, common = SIZES, {}
    common = {
        "vocab_size": c["vocab"],
        "hidden_size": c["hidden"],
        "intermediate_size": c["ffn"],
        "num_hidden_layers": c["layers"],
        "num_attention_heads": c["heads"],
        "max_position_embeddings": 32,
        "attn_implementation": "eager",
        "tie_word_embeddings": False,
    }
    if name == "hf-gpt-neox":
        config = transformers.GPTNeoXConfig(
            **common, rotary_pct=0.5, use_parallel_residual=False, hidden_act="gelu", layer_norm_eps=1e-5
        )
        return transformers.GPTNeoXForCausalLM(config).eval(), config
    common |= {"num_key_value_heads": c["groups"], "rms_norm_eps": 1e-5}
    if name == "hf-mixtral":
        # Its default is another base than Megatron's.
        common["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
        config = transformers.MixtralConfig(**common, num_local_experts=c["experts"], num_experts_per_tok=2)
        return transformers.MixtralForCausalLM(config).eval(), config
    config = transformers.LlamaConfig(**common)
    return transformers.LlamaForCausalLM(config).eval(), config


def megatron_model(name, tensor=1, pipeline=1):
    torch.distributed.init_process_group("gloo")
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    # Megatron waits for a GPU wherever it copies; here there is none.
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: torch.device("cpu")
    from megatron.core.transformer.moe import moe_utils

    # What it would import from Transformer Engine.
    moe_utils.te_general_gemm = None
    parallel_state.initialize_model_parallel(tensor, pipeline)
    tensor_parallel.random.initialize_rng_tracker(use_te_rng_tracker=False)
    tensor_parallel.random.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
    c, neox, moe = SIZES, name == "hf-gpt-neox", name == "hf-mixtral"
    more = {}
    if moe:
        more = {"num_moe_experts": c["experts"], "moe_router_topk": 2, "moe_router_load_balancing_type": "none"}
        more |= {"moe_token_dispatcher_type": "allgather", "moe_ffn_hidden_size": c["ffn"]}
    config = TransformerConfig(
        num_layers=c["layers"],
        hidden_size=c["hidden"],
        ffn_hidden_size=c["ffn"],
        num_attention_heads=c["heads"],
        num_query_groups=None if neox else c["groups"],
        normalization="LayerNorm" if neox else "RMSNorm",
        gated_linear_unit=not neox,
        activation_func=torch.nn.functional.gelu if neox else torch.nn.functional.silu,
        add_bias_linear=neox,
        add_qkv_bias=neox,
        layernorm_epsilon=1e-5,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        attention_softmax_in_fp32=True,
        persist_layer_norm=False,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        pipeline_dtype=torch.float32,
        **more,
    )
    spec = get_gpt_layer_local_spec(
        num_experts=c["experts"] if moe else None, moe_grouped_gemm=False, normalization=config.normalization
    )
    model = GPTModel(
        config,
        spec,
        vocab_size=c["padded_vocab"],
        max_sequence_length=32,
        position_embedding_type="rope",
        rotary_percent=0.5 if neox else 1.0,
        share_embeddings_and_output_weights=False,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    return model.eval()


def logits_of_megatron(model):
    tokens = torch.tensor(TOKENS)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    # True is what attention must not see.
    mask = torch.ones(tokens.shape[1], tokens.shape[1]).tril().logical_not()[None, None]
    from megatron.core import parallel_state, tensor_parallel

    width = torch.empty(tokens.shape[1], tokens.shape[0], SIZES["hidden"])
    with torch.no_grad():
        if not parallel_state.is_pipeline_first_stage():
            torch.distributed.recv(width, parallel_state.get_pipeline_model_parallel_prev_rank())
            model.set_input_tensor(width)
        out = model(tokens, positions, mask)
        if not parallel_state.is_pipeline_last_stage():
            torch.distributed.send(out.contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
            return None
        out = tensor_parallel.gather_from_tensor_model_parallel_region(out)
    return out[..., : SIZES["vocab"]].float().numpy()


def logits_of_hf(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits.float().numpy()


def megatron_args(name):
    c = SIZES
    return argparse.Namespace(
        num_layers=c["layers"],
        hidden_size=c["hidden"],
        num_attention_heads=c["heads"],
        group_query_attention=name != "hf-gpt-neox",
        num_query_groups=1 if name == "hf-gpt-neox" else c["groups"],
        kv_channels=c["hidden"] // c["heads"],
        vocab_size=c["vocab"],
        padded_vocab_size=c["padded_vocab"],
        num_experts=c["experts"] if name == "hf-mixtral" else None,
    )


def randomise(model):
    """Norms and biases begin as ones and zeros, which would hide that they are exchanged."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for _, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.1 * noise if "norm" in _ and _.endswith("weight") else 0.15 * noise)


def compare(got, args, what):
    want = np.load(args.logits)
    worst = float(np.abs(got - want).max())
    assert got.shape == want.shape and worst < 1e-4, f"{what}: logits differ by {worst}"
    print(f"{what}: the logits are within {worst:.1e} of {float(np.abs(want).max()):.1f}")


def find_as_training_does(run):
    """What `load_checkpoint` of Megatron-LM does before it builds a sharded state dict, by the same calls."""
    from megatron.core import dist_checkpointing

    with open(os.path.join(run, "latest_checkpointed_iteration.txt")) as f:
        text = f.read().strip()
    folder = os.path.join(run, text if text == "release" else f"iter_{int(text):07d}")
    assert dist_checkpointing.check_is_distributed_checkpoint(folder), folder
    common = dist_checkpointing.load_common_state_dict(folder)
    assert common["checkpoint_version"] == 3.0 and common["iteration"] == 0, common
    # Since 0.13. Without it, each version builds the form that all of them have had.
    if hasattr(dist_checkpointing, "load_content_metadata"):
        assert dist_checkpointing.load_content_metadata(preloaded_state_dict=common) is None
    return folder, common["args"]


def check_args(name, args):
    """The arguments that `check_checkpoint_args` compares with those of the training, and those that `--use-checkpoint-args` takes over."""
    c, neox, moe = SIZES, name == "hf-gpt-neox", name == "hf-mixtral"
    assert isinstance(args, argparse.Namespace), args
    want = {
        "num_layers": c["layers"],
        "hidden_size": c["hidden"],
        "ffn_hidden_size": c["ffn"],
        "num_attention_heads": c["heads"],
        "group_query_attention": not neox,
        "vocab_size": c["vocab"],
        "padded_vocab_size": c["padded_vocab"],
        "max_position_embeddings": 32,
        "position_embedding_type": "rope",
        "rotary_base": 10000,
        "normalization": "LayerNorm" if neox else "RMSNorm",
        "norm_epsilon": 1e-5,
        "swiglu": not neox,
        "add_bias_linear": neox,
        "add_qkv_bias": neox,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "untie_embeddings_and_output_weights": True,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "no_save_optim": True,
        "no_save_rng": True,
    }
    if neox:
        want |= {"rotary_percent": 0.5}
    else:
        want |= {"num_query_groups": c["groups"], "kv_channels": c["hidden"] // c["heads"], "use_rope_scaling": False}
    if moe:
        want |= {"num_experts": c["experts"], "moe_ffn_hidden_size": c["ffn"], "moe_router_topk": 2}
        want |= {"moe_router_pre_softmax": False}
    if name == "hf-llama":
        want |= {"qk_layernorm": False}
    assert vars(args) == want, {k: (vars(args).get(k), want.get(k)) for k in vars(args).keys() | want.keys()}


def states_of_transformer_engine(name, model):
    """The states for which layers of Transformer Engine ask beside those of local layers, as its versions and those of megatron-core do."""
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing import ShardedObject

    modules = ["self_attention.core_attention"] + (["pre_mlp_layernorm"] if name == "hf-mixtral" else [])
    replica = (0, parallel_state.get_tensor_model_parallel_rank(), 0)
    empty = torch.empty(0, dtype=torch.uint8)
    out = {}
    for layer in model.decoder.layers:
        n = layer.layer_number - 1
        for module in modules:
            key = f"decoder.layers.{module}._extra_state"
            out[f"te.{n}.{module}"] = ShardedObject(key, empty, (SIZES["layers"],), (n,), replica)
    if model.post_process:
        out["te.final"] = ShardedObject("decoder.final_layernorm._extra_state", empty, (1,), (0,), replica)
    return out


def megatron_load(args):
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.utils import apply_prefix_mapping

    model = megatron_model(args.model, args.tensor, args.pipeline)
    folder, saved = find_as_training_does(args.dir)
    check_args(args.model, saved)
    wanted = model.sharded_state_dict()
    own = set(wanted)
    if args.te:
        wanted |= states_of_transformer_engine(args.model, model)
        if args.model == "hf-mixtral":
            norm = "decoder.layers.mlp.linear_fc1.layer_norm_"
            apply_prefix_mapping(wanted, {norm: "decoder.layers.pre_mlp_layernorm."})
    with empty_takes_strides():
        # Every key that is asked for is stored, and every stored key is asked for.
        loaded = dist_checkpointing.load(wanted, folder, strict="raise_all")
    # No version of Transformer Engine or megatron-core reads a state from None.
    states = {k: v for k, v in loaded.items() if "_extra_state" in k or k.startswith("te.")}
    assert states and all(v is None for v in states.values()), states
    model.load_state_dict({k: v for k, v in loaded.items() if k in own}, strict=True)
    got = logits_of_megatron(model)
    if got is not None and torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
        compare(got, args, "megatron-core")


@contextlib.contextmanager
def empty_takes_strides():
    """With torch 2.15, megatron-core up to 0.19 passes `strides`, which it has read, to `torch.empty`, so that only one way to be strict works."""
    empty = torch.empty
    torch.empty = lambda *sizes, strides=None, **more: empty(*sizes, **more)
    try:
        yield
    finally:
        torch.empty = empty


def of_rank(rank, args, port):
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(args.tensor * args.pipeline)}
    torch.manual_seed(5)
    megatron_load(args)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["megatron-save", "megatron-load", "hf-save", "hf-publish", "hf-load"])
    parser.add_argument("model")
    parser.add_argument("dir")
    parser.add_argument("--logits")
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--te", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(5)
    if args.what == "megatron-load":
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(of_rank, (args, port), args.tensor * args.pipeline)
        return
    if args.what.startswith("megatron"):
        from megatron.core import dist_checkpointing

        os.environ |= {"MASTER_ADDR": "localhost", "RANK": "0", "WORLD_SIZE": "1"}
        os.environ.setdefault("MASTER_PORT", "29741")
        model = megatron_model(args.model)
    else:
        model, config = hf_model(args.model)
    if args.what == "megatron-save":
        randomise(model)
        os.makedirs(args.dir, exist_ok=True)
        state = model.sharded_state_dict() | {"args": megatron_args(args.model)}
        dist_checkpointing.save(state, args.dir)
        np.save(args.dir + ".logits.npy", logits_of_megatron(model))
        print("saved")
    elif args.what == "hf-publish":
        randomise(model)
        model.save_pretrained(args.dir)
        np.save(args.dir + ".logits.npy", logits_of_hf(model))
        print("saved")
    elif args.what == "hf-save":
        import torch.distributed.checkpoint as dcp

        randomise(model)
        state = hf_names(args.model, model.state_dict())
        dcp.save(state, checkpoint_id=args.dir, no_dist=True)
        config.save_pretrained(args.dir)
        np.save(args.dir + ".logits.npy", logits_of_hf(model))
        print("saved")
    else:
        config.save_pretrained(args.dir)
        loaded, told = type(model).from_pretrained(args.dir, output_loading_info=True, attn_implementation="eager")
        faults = {k: v for k, v in told.items() if v and k != "conversion_errors"}
        assert not faults, faults
        compare(logits_of_hf(loaded.eval()), args, "transformers")


def hf_names(name, state):
    """The names of published checkpoints. Transformers 5 reads them, and has other ones for the head of GPT-NeoX and for the experts of Mixtral."""
    if name == "hf-gpt-neox":
        return {"embed_out.weight" if key == "lm_head.weight" else key: tensor for key, tensor in state.items()}
    if name != "hf-mixtral":
        return state
    out = {}
    for key, tensor in state.items():
        layer = key.split(".mlp.")[0]
        moe = f"{layer}.block_sparse_moe"
        if key.endswith("experts.gate_up_proj"):
            for e, both in enumerate(tensor):
                gate, up = both.chunk(2)
                out |= {f"{moe}.experts.{e}.w1.weight": gate.contiguous(), f"{moe}.experts.{e}.w3.weight": up.contiguous()}
        elif key.endswith("experts.down_proj"):
            out |= {f"{moe}.experts.{e}.w2.weight": down.contiguous() for e, down in enumerate(tensor)}
        elif ".mlp.gate." in key:
            out[f"{moe}.gate.weight"] = tensor
        else:
            out[key] = tensor
    return out


if __name__ == "__main__":
    main()

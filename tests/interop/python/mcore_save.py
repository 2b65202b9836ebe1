"""Saves a spec's state with megatron.core.dist_checkpointing."""

import os

# Megatron starts helpers that import this file anew: they need none of this, and it takes seconds.
if __name__ != "__mp_main__":
    import common  # noqa: I001, it sets variables before torch is imported

    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    import mcore_state


def work(spec, directory, rank, ranks):
    os.makedirs(directory, exist_ok=True)
    state = mcore_state.state_dict(spec, "write", rank, ranks, filled=True)
    backend, hint = spec["backend"], spec["separation_hint"]
    strategy = (backend, 1) if backend else None
    if hint:
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1, separation_hint=hint)
    # Older versions don't have the argument.
    checks = {"verify_integrity": True} if spec["integrity"] else {}
    dist_checkpointing.save(state, directory, strategy, **checks)


if __name__ == "__main__":
    common.run(work, __doc__, ranks=2)

"""Loads a checkpoint with megatron.core.dist_checkpointing, cut otherwise than it was saved, and compares it with the spec."""

import common  # noqa: I001, it sets variables before torch is imported

from megatron.core import dist_checkpointing

import mcore_state


def work(spec, directory, rank, ranks):
    # Older versions don't have the argument.
    checks = {"verify_integrity": True} if spec["integrity"] else {}
    template = mcore_state.state_dict(spec, "read", rank, ranks, filled=False)
    state = dist_checkpointing.load(template, directory, **checks)
    mcore_state.check(spec, state, rank, ranks)


if __name__ == "__main__":
    common.run(work, __doc__, ranks=2)

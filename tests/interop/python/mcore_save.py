"""Saves a spec's state with megatron.core.dist_checkpointing."""

import os

from megatron.core import dist_checkpointing

import common
import mcore_state


def work(spec, directory, rank, ranks):
    os.makedirs(directory, exist_ok=True)
    dist_checkpointing.save(mcore_state.state_dict(spec, "write", rank, ranks, filled=True), directory)


if __name__ == "__main__":
    common.run(work, __doc__, ranks=2)

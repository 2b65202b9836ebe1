"""Loads a checkpoint with torch.distributed.checkpoint, cut otherwise than it was saved, and compares it with the spec."""

import torch.distributed.checkpoint as dcp

import common
import dcp_planners
import dcp_state


def work(spec, directory, rank, ranks):
    spec = dcp_planners.planned(spec)
    state = dcp_state.state_dict(spec, spec["cut"], rank, ranks, filled=False)
    # Before 2.2 it had another name.
    load = getattr(dcp, "load", None) or dcp.load_state_dict
    # With flatten_sharded_tensors it puts what is not flattened into a copy of the state dict, and nobody sees it.
    flatten = spec["flatten"]
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=flatten, flatten_sharded_tensors=flatten)
    load(state, storage_reader=dcp.FileSystemReader(directory), planner=planner)
    dcp_state.check(spec, state, rank, ranks)
    dcp_planners.check(spec, directory)


if __name__ == "__main__":
    common.run(work, __doc__, ranks=3)

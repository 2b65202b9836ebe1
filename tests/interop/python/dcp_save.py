"""Saves a spec's state with torch.distributed.checkpoint."""

import torch.distributed.checkpoint as dcp

import common
import dcp_planners
import dcp_state


def work(spec, directory, rank, ranks):
    spec = dcp_planners.planned(spec)
    state = dcp_state.state_dict(spec, "write", rank, ranks, filled=True)
    # Before 2.2 it had another name.
    save = getattr(dcp, "save", None) or dcp.save_state_dict
    planner = dcp.DefaultSavePlanner(flatten_state_dict=spec["flatten"])
    save(state, storage_writer=dcp.FileSystemWriter(directory), planner=planner)


if __name__ == "__main__":
    common.run(work, __doc__, ranks=2)

"""A worker of torchrun, with a rank of reshard beside it: a process in Rust that meets the other ones at the store of the job.

The ranks of reshard save, and the workers load with torch.distributed.checkpoint; then the other way round.
"""

import argparse
import os
import subprocess

import common  # noqa: I001, it sets variables before torch is imported
import torch.distributed as dist

import dcp_load
import dcp_save


def reshard(program, command, spec, directory):
    """Runs this worker's rank of reshard: it finds the others by the variables that torchrun has set."""
    call = [program, command, "--beside-torchrun", "--spec", spec, "--dir", directory]
    done = subprocess.run(call, capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise SystemExit(f"rank {os.environ['RANK']} of reshard cannot {command}: {done.stdout}{done.stderr}")


def groups(store, run):
    """How many groups the ranks of reshard have made at the store of the job."""
    # The id of the job, then the id and the restart of the run; torchrun names both.
    return int(store.add(f"reshard/default/{run}/{run}/0/joined/0", 0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reshard", required=True, help="the program reshard-interop")
    own, rest = parser.parse_known_args()
    common.sys.argv[1:] = rest
    parsed, spec = common.arguments(__doc__, ranks=None)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True", "the store must be torchrun's"
    store = dist.TCPStore(host, port, is_master=False)

    ours, theirs = f"{parsed.dir}/by-reshard", f"{parsed.dir}/by-torch"
    reshard(own.reshard, "write", parsed.spec, ours)
    dcp_load.work(spec, ours, rank, ranks)
    dcp_save.work(spec, theirs, rank, ranks)
    dist.barrier()
    reshard(own.reshard, "check", parsed.spec, theirs)
    dist.barrier()
    found = groups(store, os.environ["TORCHELASTIC_RUN_ID"])
    if found != 2:
        raise SystemExit(f"{found} groups of reshard have met at the store of torchrun instead of 2")
    if rank == 0:
        common.report(spec, f"{ranks} workers of torchrun and {ranks} ranks of reshard beside them")
    dist.barrier()
    dist.destroy_process_group()

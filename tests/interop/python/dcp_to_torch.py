"""Makes one torch.save file of a checkpoint with PyTorch's own converter, loads it, and compares it with the spec."""

import os
import tempfile

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import common


def main():
    parsed, spec = common.arguments(__doc__, ranks=None)
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "state.pt")
        dcp_to_torch_save(parsed.dir, path)
        got = torch.load(path, weights_only=False)
    want = {}
    for entry in spec["tensors"]:
        common.place(want, entry["path"], common.full_tensor(entry))
    for entry in spec["values"]:
        common.place(want, entry["path"], common.value(entry["value"]))
    common.same("state", got, want)
    common.report(spec, f"torch {torch.__version__}")


if __name__ == "__main__":
    main()

"""Writes what surrounds the data in archives of more than 4 GiB: `python make_zip64.py SCRATCH_FOLDER`, under torch 2.15.

Each file of `zip64/` is named after the sizes of the storages, all zeros: the bytes before the first one's data, and those
after the last one's. Needs 9 GB of scratch space and some minutes.
"""

import pathlib
import sys

import torch

out = pathlib.Path(__file__).parent / "zip64"
out.mkdir(exist_ok=True)
scratch = pathlib.Path(sys.argv[1]) / "archive.pt"
BIG = 2**32
for sizes in [(BIG - 2,), (BIG - 1,), (BIG + 100,), (BIG + 100, 8, 0), (8, BIG + 100, BIG - 1)]:
    value = [torch.zeros(n, dtype=torch.uint8) for n in sizes]
    with open(scratch, "wb") as f:
        torch.save(value, f)
    with open(scratch, "rb") as f:
        length = f.seek(0, 2)
        f.seek(0)
        start = f.read(8192)
        f.seek(-8192, 2)
        end = f.read()
    name = "_".join(map(str, sizes))
    header = start.index(b"archive/data/0")
    extra = int.from_bytes(start[header - 2 : header], "little")
    head = start[: header + len("archive/data/0") + extra]
    last = end.index(b"archive/version") - 30
    descriptor = {True: 24, False: 16}[max(sizes) >= BIG - 1] if sizes[-1] else 0
    (out / f"{name}.head").write_bytes(head)
    (out / f"{name}.tail").write_bytes(end[last - descriptor :])
    (out / f"{name}.len").write_text(f"{length}\n")
scratch.unlink()

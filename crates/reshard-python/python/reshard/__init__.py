"""Distributed checkpoints: inspect, verify, convert, load onto any sharding.

>>> import reshard
>>> ckpt = reshard.open("checkpoints/step-1000")     # a folder, a file or a URL, of any format
>>> ckpt["model.embed.weight"][0:128].torch()         # reads only these rows
>>> ckpt.load("model.layers.0.*", dtype="bfloat16")   # a dict of tensors
>>> ckpt.verify()                                     # raises DamagedError if a checksum is wrong

`reshard.torch` has a reader and a writer for `torch.distributed.checkpoint`. The program runs as ``reshard`` or ``python -m reshard``.
"""

from ._checkpoint import Checkpoint, open
from ._errors import (
    DamagedError,
    Error,
    ExistsError,
    LimitError,
    MismatchError,
    NotFoundError,
    PickleError,
    RankFailedError,
    UnavailableError,
    UnsupportedError,
)
from ._objects import Opaque
from ._reshard import __version__
from ._tensor import Tensor

__all__ = [
    "Checkpoint",
    "DamagedError",
    "Error",
    "ExistsError",
    "LimitError",
    "MismatchError",
    "NotFoundError",
    "Opaque",
    "PickleError",
    "RankFailedError",
    "Tensor",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "open",
]

"""reshard for PyTorch: storage for `torch.distributed.checkpoint`.

>>> import torch.distributed.checkpoint as dcp
>>> from reshard.torch import StorageReader, StorageWriter
>>> dcp.save(state_dict, storage_writer=StorageWriter("checkpoints/step-1000"))
>>> dcp.load(state_dict, storage_reader=StorageReader("checkpoints/step-1000"))    # or any other format

Run on the CPU with gloo. Not run on CUDA.
"""

from ._reader import StorageReader
from ._writer import StorageWriter

__all__ = ["StorageReader", "StorageWriter"]

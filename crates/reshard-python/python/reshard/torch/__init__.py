"""reshard for PyTorch: storage for `torch.distributed.checkpoint`, and saves and loads that reshard plans itself.

>>> import torch.distributed.checkpoint as dcp
>>> from reshard.torch import StorageReader, StorageWriter
>>> dcp.save(state_dict, storage_writer=StorageWriter("checkpoints/step-1000"))
>>> dcp.load(state_dict, storage_reader=StorageReader("checkpoints/step-1000"))    # or any other format

>>> import reshard.torch
>>> reshard.torch.save(state_dict, "checkpoints/step-1000")    # on all ranks
>>> reshard.torch.load(state_dict, "checkpoints/step-1000")    # in place, of any format, onto any mesh

Run on the CPU with gloo. Not run on CUDA.
"""

from ._job import Pending, async_save, load, save
from ._reader import StorageReader
from ._writer import StorageWriter

__all__ = ["Pending", "StorageReader", "StorageWriter", "async_save", "load", "save"]

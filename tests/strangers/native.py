"""Digests of the tensors in published files, as the libraries that wrote these files read them.

    python native.py JOBS

JOBS is a file with a list of {"path", "reader"}. Prints {path: {key: {"dtype", "shape", "sha256"}}}.
"""

import hashlib
import json
import sys


def of_torch(tensor):
    import torch

    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data


def flat(value, path=()):
    """The tensors in dicts and lists, by the names on the way to each."""
    import torch

    if isinstance(value, torch.Tensor):
        yield ".".join(path), of_torch(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for n, inner in enumerate(value):
            yield from flat(inner, (*path, str(n)))


def torch_save(path):
    import torch

    return flat(torch.load(path, map_location="cpu", weights_only=True))


def torch_module(path):
    """A pickled module. Classes of its package are replaced by empty modules, so none of its code runs."""
    import pickle
    import types

    import torch

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            if module.split(".")[0] in ("torch", "collections", "numpy", "_codecs") or name == "set":
                return super().find_class(module, name)
            return type(name, (torch.nn.Module,), {})

    names = {**vars(pickle), "Unpickler": Unpickler}
    module = torch.load(path, map_location="cpu", weights_only=False, pickle_module=types.SimpleNamespace(**names))
    return flat(module.state_dict())


def torch_script(path):
    import torch

    return flat(torch.jit.load(path, map_location="cpu").state_dict())


def safetensors(path):
    from safetensors.torch import load_file

    return flat(load_file(path))


def tensor_bundle(path):
    import numpy as np
    import tensorflow as tf

    reader = tf.train.load_checkpoint(path)
    for name in reader.get_variable_to_shape_map():
        dtype = reader.get_variable_to_dtype_map()[name]
        if dtype != tf.string:
            array = np.ascontiguousarray(reader.get_tensor(name))
            yield name, (dtype.name, list(np.shape(reader.get_tensor(name))), array.tobytes())


READERS = {read.__name__: read for read in (torch_save, torch_module, torch_script, safetensors, tensor_bundle)}

found = {}
with open(sys.argv[1]) as jobs:
    for job in json.load(jobs):
        tensors = READERS[job["reader"]](job["path"])
        found[job["path"]] = {
            key: {"dtype": dtype, "shape": shape, "sha256": hashlib.sha256(data).hexdigest()}
            for key, (dtype, shape, data) in tensors
        }
print(json.dumps(found))

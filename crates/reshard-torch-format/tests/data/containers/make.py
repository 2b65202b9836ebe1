"""Writes `python3.json`: containers with tensors in protocols 0 to 5, as Python's pickle writes them. `python make.py`, under torch 2.15.

A module that no reader has, `stranger`, holds the classes. Storages are persistent ids in all protocols, which Python's C pickler can't write
in protocol 0, so its pickler in Python is used.
"""

import collections
import io
import json
import pathlib
import pickle
import sys
import types

import torch

stranger = types.ModuleType("stranger")
sys.modules["stranger"] = stranger


def own(cls):
    cls.__module__, cls.__qualname__ = "stranger", cls.__name__
    setattr(stranger, cls.__name__, cls)
    return cls


@own
class Config(dict):
    pass


@own
class Ordered(collections.OrderedDict):
    pass


@own
class Output(collections.OrderedDict):
    """As transformers' ModelOutput: the values are arguments of the class, and items."""

    def __init__(self, logits=None, loss=None):
        super().__init__(logits=logits, loss=loss)

    def __reduce__(self):
        call, _, *rest = super().__reduce__()
        return call, tuple(self.values()), *rest


@own
class Rows(list):
    pass


Pair = own(collections.namedtuple("Pair", "a b"))


class Pickler(pickle._Pickler):
    def persistent_id(self, value):
        if isinstance(value, torch.storage.TypedStorage):
            return ("storage", torch.FloatStorage, "0", "cpu", 4)

    def save_pers(self, pid):
        self.save(pid, save_persistent_id=False)
        self.write(pickle.BINPERSID)

    # Classes of storages are not pickled by their own names.
    def reducer_override(self, value):
        if value is torch.FloatStorage:
            return "FloatStorage"
        return NotImplemented


def dumps(value, protocol):
    out = io.BytesIO()
    Pickler(out, protocol).dump(value)
    return out.getvalue().hex()


def config():
    made = Config(w=t, n=1)
    made.note = "kept"
    return made


t = torch.arange(4, dtype=torch.float32)
# What Python pickles, and the keys of tensors and of objects.
cases = {
    "dict": ({"w": t, "n": 1}, ["w"], ["n"]),
    "dict in a dict": ({"a": {"w": t}, 3: t}, ["a.w", "3"], []),
    "OrderedDict": (collections.OrderedDict(w=t, n=1), ["w"], ["n"]),
    "defaultdict": (collections.defaultdict(list, w=t), ["w"], []),
    "list": ([t, t, 1], ["0", "1"], ["2"]),
    "tuple": ((t, {"a": t}, 1), ["0", "1.a"], ["2"]),
    "tuple of one": ((t,), ["0"], []),
    "tuple in a list": ([(t, 1)], ["0.0"], ["0.1"]),
    "list in a dict": ({"a": [t, [t]]}, ["a.0", "a.1.0"], []),
    "tuple in a dict": ({"a": (t, [1, (t,)])}, [], ["a"]),
    "tuple in a tuple": ((t, {"a": (t, [1, (t,)])}), ["0", "1.a.0", "1.a.1.1.0"], ["1.a.1.0"]),
    "tuple without tensors": ({"w": t, "betas": (0.9, 0.999)}, ["w"], ["betas"]),
    "list without tensors": ([1, 2], [], ["object"]),
    "unknown dict": (config(), ["w"], ["n"]),
    "unknown dict in a dict": ({"cfg": config()}, ["cfg.w"], ["cfg.n"]),
    "unknown dict without tensors": ({"w": t, "cfg": Config(n=1)}, ["w"], ["cfg"]),
    "unknown OrderedDict": (Ordered(w=t), ["w"], []),
    "arguments and items": (Output(t, t), ["logits", "loss"], []),
    "unknown list": ({"a": Rows([t])}, [], ["a"]),
    "namedtuple": ({"a": Pair(t, 1)}, [], ["a"]),
    "set": ({"w": t, "s": {1, 2}}, ["w"], ["s"]),
    "namespace": ({"w": t, "args": types.SimpleNamespace(lr=0.5)}, ["w"], ["args"]),
    "UserDict": (collections.UserDict(w=t), [], ["object"]),
}
out = {
    name: {"tensors": tensors, "objects": objects, "pickles": [dumps(value, n) for n in range(6)]}
    for name, (value, tensors, objects) in cases.items()
}
path = pathlib.Path(__file__).parent / "python3.json"
path.write_text(json.dumps(out, indent=1) + "\n")

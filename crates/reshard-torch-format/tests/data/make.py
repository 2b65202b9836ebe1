"""Writes the samples of this folder with the torch that runs it: `python make.py`, under torch 2.15 and 2.1.

Each torch has a folder of its own, with `expected.json`: what Python says of each file.
"""

import argparse
import collections
import decimal
import enum
import fractions
import functools
import hashlib
import io
import json
import pathlib
import pickle
import sys
import uuid

import torch

out = pathlib.Path(__file__).parent / f"torch-{torch.__version__.split('+')[0]}"
out.mkdir(exist_ok=True)
expected = {}


def sha(t):
    t = t.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return hashlib.sha256(bytes(t.untyped_storage())[: t.numel() * t.element_size()]).hexdigest()


def show(v):
    """As `repr`, but tensors by their content; the same as `python.rs` shows."""
    if isinstance(v, torch.Tensor):
        return f"tensor(dtype={str(v.dtype)[6:]}, shape={tuple(v.shape)}, sha256={sha(v)})"
    if type(v) is tuple:
        return "(" + ", ".join(map(show, v)) + ("," if len(v) == 1 else "") + ")"
    if type(v) is list:
        return "[" + ", ".join(map(show, v)) + "]"
    if type(v) is dict:
        return "{" + ", ".join(f"{show(k)}: {show(x)}" for k, x in v.items()) + "}"
    if type(v) is collections.OrderedDict:
        return "OrderedDict([" + ", ".join(f"({show(k)}, {show(x)})" for k, x in v.items()) + "])"
    return repr(v)


def put(name, data, **facts):
    (out / name).write_bytes(data)
    expected[name] = facts


def save(name, value, shown=True, **options):
    f = io.BytesIO()
    try:
        torch.save(value, f, **options)
    except KeyError:  # an element type that this torch has, but can't save
        return
    text = show(value) if shown else None
    if shown and len(text) > 2000:
        put(name, f.getvalue(), repr_sha256=hashlib.sha256(text.encode()).hexdigest())
    else:
        put(name, f.getvalue(), **({"repr": text} if shown else {}))


class Outer:
    class Inner:
        def __init__(self):
            self.x = 1

        def __eq__(self, other):
            return type(self) is type(other) and self.__dict__ == other.__dict__


class Color(enum.Enum):
    RED = 1


class Kw:
    def __new__(cls, *a, **k):
        return object.__new__(cls)

    def __getnewargs_ex__(self):
        return (1, "two"), {"k": 2}


class Sub(torch.Tensor):
    pass


class MyDict(dict):
    pass


class MyList(list):
    pass


def tensors():
    for name in (
        "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 complex32 uint16 uint32 "
        "uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
    ).split():
        dtype = getattr(torch, name, None)
        if dtype is None:
            continue
        size = torch.empty(0, dtype=dtype).element_size()
        raw = torch.arange(6 * size, dtype=torch.uint8)
        if name == "bool":
            raw %= 2
        t = torch.empty(0, dtype=dtype)
        t.set_(raw.untyped_storage(), 0, (2, 3), (3, 1))
        save(f"{name}.pt", t)
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    save("transposed.pt", base.transpose(0, 2))
    save("twelve.pt", [torch.full((2,), i, dtype=torch.int32) for i in range(12)])
    save("view.pt", base[1, 1:, ::2])
    save("scalar.pt", torch.tensor(7))
    save("empty.pt", torch.empty(3, 0, 2))
    save("five_axes.pt", torch.arange(32, dtype=torch.int16).reshape(2, 2, 2, 2, 2))
    save("expanded.pt", torch.ones(1).expand(3, 2))
    z = torch.tensor([1 + 2j, 3 - 4j])
    save("conj.pt", z.conj())
    save("neg.pt", z.conj().imag)
    save("requires_grad.pt", torch.ones(2, requires_grad=True))


def objects():
    w = torch.arange(6, dtype=torch.float32)
    save("tied.pt", {"a": w, "b": w.detach(), "part": w[2:4]})
    save("parameter.pt", torch.nn.Parameter(torch.ones(2)))
    tagged = torch.ones(2)
    tagged.tag = 1
    save("attribute.pt", tagged, shown=False)
    save("subclass.pt", torch.ones(2).as_subclass(Sub), shown=False)
    save("state_dict.pt", torch.nn.Linear(2, 3).state_dict(), shown=False)
    save("module.pt", torch.nn.Linear(2, 3), shown=False)
    save("quantized.pt", torch.quantize_per_tensor(torch.ones(3), 0.5, 1, torch.quint8), shown=False)
    save("sparse.pt", torch.eye(3).to_sparse(), shown=False)
    save("storage.pt", [w.untyped_storage()], shown=False)
    save("bits8.pt", torch.empty(0, dtype=torch.bits8), shown=False)
    save("numbers.pt", [0, 255, 256, 65535, 65536, -1, 2**31 - 1, 2**31, -(2**31), 2**63, -(2**63), 10**30, 0.1, -0.0])
    save("texts.pt", ["", "a", "é中😀\x00", b"", b"a", b"\x00\xff bytes", bytearray(b"abc"), "a" * 300])
    save("odd_text.pt", "a\udc80b", shown=False)
    save("sets.pt", [{1}, frozenset({"a"}), set()])
    save("dict_1000.pt", {i: None for i in range(1000)})
    save("dict_1001.pt", {i: None for i in range(1001)})
    save("list_1001.pt", list(range(1001)))
    save("ordered_1001.pt", collections.OrderedDict((i, i) for i in range(1001)))
    save("deque_1001.pt", collections.deque(range(1001), maxlen=2000))
    save("nested_class.pt", Outer.Inner(), shown=False)
    save("enum.pt", [Color.RED, Color.RED], shown=False)
    save("keywords.pt", Kw(), shown=False)
    save("partial.pt", functools.partial(int, base=2), shown=False)
    d = MyDict(a=1)
    d.attribute = 2
    save("dict_class.pt", d, shown=False)
    save("list_class.pt", MyList([1, 2]), shown=False)
    save("default_dict.pt", collections.defaultdict(list, a=[1]), shown=False)
    save("error.pt", [ValueError("x"), FileNotFoundError(2, "y")], shown=False)
    save("namespace.pt", argparse.Namespace(lr=0.1, name="x"))
    save("several.pt", (torch.Size([2, 3]), torch.bfloat16, torch.device("cpu"), decimal.Decimal("1.50"),
                        fractions.Fraction(1, 3), uuid.UUID(int=5), range(1, 10, 3), slice(1, None, 2), 1 + 2j))


def legacy():
    w = torch.arange(6, dtype=torch.float32)
    old = {"_use_new_zipfile_serialization": False}
    save("legacy.pt", {"a": w, "b": w[2:4], "t": w.reshape(2, 3).t(), "n": (1, "x", None)}, **old)
    save("legacy_dtypes.pt", [torch.tensor([1, 2], dtype=t) for t in
                              (torch.bool, torch.int16, torch.int64, torch.bfloat16, torch.complex64, torch.float64)], **old)
    save("legacy_module.pt", torch.nn.Linear(2, 3), shown=False, **old)
    save("legacy_empty.pt", [], **old)


def pickles():
    shared = ["s", 1]
    value = {
        "none": None, "bools": [True, False], "ints": [0, 1, -1, 255, 256, 65536, 2**31, -(2**40), 2**63, 10**30, -(10**30)],
        "floats": [0.0, -1.5, 1e300, 1e-7], "text": ["", "é中😀", "a\nb\\u1234'\""], "bytes": [b"", b"\x00\xff\n'\\"],
        "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), "shared": [shared, shared], "nested": {1: {2: {3: [4]}}},
        "bytearray": bytearray(b"xyz"), "set": {5}, "frozen": frozenset({6}),
        "ordered": collections.OrderedDict(a=1), "size": torch.Size([2]), "decimal": decimal.Decimal("2.5"),
    }
    for protocol in range(6):
        put(f"pickle_{protocol}.pkl", pickle.dumps(value, protocol), repr=show(value))
    cycle = []
    cycle.append(cycle)
    put("cycle.pkl", pickle.dumps(cycle, 2))


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.modules["sample"] = sys.modules["__main__"]
    for cls in (Outer, Outer.Inner, Color, Kw, Sub, MyDict, MyList):
        cls.__module__ = "sample"
    tensors()
    legacy()
    if torch.__version__.startswith("2.15"):
        objects()
        pickles()
    (out / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=True) + "\n")

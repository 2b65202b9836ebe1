"""Random states make the round trip between reshard and PyTorch's own storage, in one process."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import bits
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

import reshard
from reshard.torch import StorageReader, StorageWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


def dense(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bytes, so also NaN of all kinds; a bool is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    count = math.prod(shape) * dtype.itemsize
    high = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, high, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    seed = draw(st.integers(0, 2**32))
    layout = draw(st.sampled_from(["dense", "transposed", "stepped", "expanded", "overlapping", "offset", "conjugated"]))
    if layout == "transposed":
        tensor = dense(shape[::-1], dtype, seed).permute(tuple(reversed(range(len(shape)))))
    elif layout == "stepped" and shape:
        tensor = dense((*shape[:-1], 3 * shape[-1] + 1), dtype, seed)[..., 1 : 3 * shape[-1] + 1 : 3]
    elif layout == "expanded":
        tensor = dense((1,) * len(shape), dtype, seed).expand(shape)
    elif layout == "overlapping" and shape and 0 not in shape:
        # Windows of a vector: each element belongs to several rows.
        length = sum(n - 1 for n in shape) + 1
        tensor = dense((length,), dtype, seed).as_strided(shape, (1,) * len(shape))
    elif layout == "offset" and shape:
        tensor = dense((shape[0] + 2, *shape[1:]), dtype, seed)[1:-1]
    elif layout == "conjugated" and dtype.is_complex:
        tensor = dense(shape, dtype, seed).conj()
        tensor = tensor.imag if draw(st.booleans()) else tensor
    else:
        tensor = dense(shape, dtype, seed)
    kind = draw(st.sampled_from(["plain", "plain", "grad", "parameter", "buffer"]))
    if kind == "grad" and tensor.is_floating_point() and tensor.is_contiguous():
        tensor = tensor.requires_grad_()
    elif kind == "parameter" and not tensor.is_neg():
        tensor = torch.nn.Parameter(tensor, requires_grad=False)
    elif kind == "buffer":
        tensor = torch.nn.Buffer(tensor)
    return tensor


objects = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(min_size=1, max_size=3), inner, min_size=1, max_size=2),
    max_leaves=5,
)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(lambda name: "." not in name)


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    """Nested dicts and lists of tensors and objects; some tensors occur twice."""
    leaves = draw(st.lists(tensors(), min_size=1, max_size=5))
    leaf = st.sampled_from(leaves) | tensors() | objects
    nested = st.recursive(leaf, lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3) | st.lists(inner, max_size=3), max_leaves=8)
    return draw(st.dictionaries(names, nested, min_size=1, max_size=4))


def blank(value: Any) -> Any:
    """The same structure with other values. Tensors have memory of their own, and some run in another order."""
    if isinstance(value, torch.Tensor):
        made = torch.full(value.shape[::-1], 1).to(value.dtype).permute(tuple(reversed(range(value.ndim))))
        return made.contiguous() if value.is_contiguous() else made
    if isinstance(value, dict):
        return {key: blank(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [blank(inner) for inner in value]
    # A load changes dicts in tuples.
    return copy.deepcopy(value)


def check(found: Any, expected: Any, path: str = "") -> None:
    """Whether two states are the same, bit for bit."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), path
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), path
        assert bits(found) == bits(expected), path
    elif isinstance(expected, dict):
        assert type(found) is dict and list(found) == list(expected), path
        for key in expected:
            check(found[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected) and len(found) == len(expected), path
        for n, (one, other) in enumerate(zip(found, expected)):
            check(one, other, f"{path}.{n}")
    else:
        assert type(found) is type(expected) and repr(found) == repr(expected), path


WAYS = [(StorageWriter, FileSystemReader), (FileSystemWriter, StorageReader), (StorageWriter, StorageReader)]
numbers = itertools.count()


@settings(max_examples=40, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(state=states())
def test_random_states(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]) -> None:
    folder = tmp_path_factory.getbasetemp() / f"states-{next(numbers)}"
    for n, (writer, reader) in enumerate(WAYS):
        place = Path(folder, str(n))
        options = {"durable": False} if writer is StorageWriter else {"sync_files": False}
        dcp.save(copy.copy(state), storage_writer=writer(place, **options), no_dist=True)
        found = blank(state)
        dcp.load(found, storage_reader=reader(place), no_dist=True)
        check(found, state)
        reshard.open(place).verify()


def test_every_type_has_a_tensor_without_and_with_one_dimension(tmp_path: Path) -> None:
    state = {str(dtype): [dense((), dtype, 1), dense((3,), dtype, 2), dense((0, 2), dtype, 3)] for dtype in DTYPES}
    for n, (writer, reader) in enumerate(WAYS):
        dcp.save(state, storage_writer=writer(tmp_path / str(n)), no_dist=True)
        found = blank(state)
        dcp.load(found, storage_reader=reader(tmp_path / str(n)), no_dist=True)
        check(found, state)


@pytest.mark.parametrize("writer", [StorageWriter, FileSystemWriter])
def test_a_state_is_rebuilt_without_a_template(tmp_path: Path, writer: Any) -> None:
    state = {"model": {"a.b": torch.ones(2), "list": [torch.zeros(1), {"x": torch.ones(1)}]}, "step": 3}
    dcp.save(state, storage_writer=writer(tmp_path / "place"), no_dist=True)
    found: dict[str, Any] = {}
    _load_state_dict(found, storage_reader=StorageReader(tmp_path / "place"), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    # The order of keys is that of the checkpoint's description.
    assert sorted(found) == sorted(state)
    check({key: found[key] for key in state}, state)


def test_tied_tensors_stay_equal(tmp_path: Path) -> None:
    shared = torch.arange(12.0).reshape(3, 4)
    state = {"one": shared, "other": shared, "turned": shared.t(), "part": shared[1:, ::2]}
    dcp.save(state, storage_writer=StorageWriter(tmp_path / "place"), no_dist=True)
    found = blank(state)
    dcp.load(found, storage_reader=StorageReader(tmp_path / "place"), no_dist=True)
    check(found, state)


def test_a_load_fills_only_the_view_that_was_given(tmp_path: Path) -> None:
    dcp.save({"weight": torch.ones(3, 2)}, storage_writer=StorageWriter(tmp_path / "place"), no_dist=True)
    memory = torch.zeros(5, 4)
    dcp.load({"weight": memory[1:4, 1:3]}, storage_reader=StorageReader(tmp_path / "place"), no_dist=True)
    assert memory.sum() == 6 and memory[1:4, 1:3].sum() == 6
    parameter = torch.nn.Parameter(torch.zeros(3, 2))
    dcp.load({"weight": parameter}, storage_reader=StorageReader(tmp_path / "place"), no_dist=True)
    assert parameter.requires_grad and parameter.sum() == 6


def test_tensors_that_share_memory_as_targets(tmp_path: Path) -> None:
    """Elements of an expanded tensor lie in one place, which can't hold different values."""
    dcp.save({"weight": torch.arange(6.0).reshape(3, 2)}, storage_writer=StorageWriter(tmp_path / "place"), no_dist=True)
    target = torch.zeros(1, 2).expand(3, 2)
    with pytest.raises(dcp.api.CheckpointException, match="weight"):
        dcp.load({"weight": target}, storage_reader=StorageReader(tmp_path / "place"), no_dist=True)


def test_values_are_converted_to_the_type_of_the_target(tmp_path: Path) -> None:
    values = torch.tensor([0.0, 1.5, -2.0, 1000.0])
    dcp.save({"weight": values}, storage_writer=StorageWriter(tmp_path / "place"), no_dist=True)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        results = []
        for reader in (StorageReader, FileSystemReader):
            state = {"weight": torch.zeros(4, dtype=dtype)}
            dcp.load(state, storage_reader=reader(tmp_path / "place"), no_dist=True)
            results.append(bits(state["weight"]))
        assert results[0] == results[1], dtype

"""`reshard.open` and what it returns."""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import file_of

import reshard


def test_a_checkpoint_is_a_mapping(place: str, state: dict[str, Any]) -> None:
    ckpt = reshard.open(place)
    assert ckpt.format == "torch_dist/1"
    assert len(ckpt) == len(list(ckpt)) == 9
    assert ckpt["step"] == 7 and ckpt["optim.betas"] == (0.9, 0.99)
    weight = ckpt["layer.weight"]
    assert (weight.dtype, weight.shape, weight.size, weight.ndim, len(weight)) == ("float32", (6, 8), 48, 2, 6)
    assert "layer.weight" in ckpt and ckpt.get("nope") is None
    assert ckpt.state()["layer"]["weight"].equal(state["layer"]["weight"])


@pytest.mark.parametrize(
    "index",
    [np.s_[1:3], np.s_[1:3, ::], np.s_[:, 2], np.s_[..., -1], np.s_[2, 3], np.s_[-2:, 1:-1], np.s_[5:2], np.s_[...], np.s_[()]],
    ids=str,
)
def test_slices_are_those_of_numpy(place: str, state: dict[str, Any], index: Any) -> None:
    part = reshard.open(place)["layer.weight"][index]
    expected = state["layer"]["weight"].numpy()[index]
    assert part.shape == expected.shape
    np.testing.assert_array_equal(part.numpy(), expected)
    np.testing.assert_array_equal(part.torch().numpy(), expected)
    assert part.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_a_slice_of_a_slice(place: str, state: dict[str, Any]) -> None:
    part = reshard.open(place)["layer.weight"][1:5][:, 3][1:]
    assert part.torch().equal(state["layer"]["weight"][1:5][:, 3][1:])


@pytest.mark.parametrize("index", [np.s_[::2], np.s_[9], np.s_[1, 2, 3], np.s_["a"], np.s_[None], np.s_[..., ...]], ids=str)
def test_other_indices_are_errors(place: str, index: Any) -> None:
    with pytest.raises(IndexError, match="layer.weight"):
        reshard.open(place)["layer.weight"][index]


def test_a_slice_reads_only_its_bytes(tmp_path: Path) -> None:
    tensors = {"w": torch.arange(4e6).reshape(1_000_000, 4)}
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors")
    ckpt = reshard.open(tmp_path / "a.safetensors")

    def read_so_far() -> int:
        lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(lines["rchar"])

    before = read_so_far()
    part = ckpt["w"][10:12].torch()
    assert read_so_far() - before < 100_000
    assert part.equal(tensors["w"][10:12])


def test_types(place: str, state: dict[str, Any]) -> None:
    ckpt = reshard.open(place)
    half = ckpt["layer.half"]
    assert half.numpy().dtype.name == "bfloat16" and half.torch().equal(state["layer"]["half"])
    assert half.torch(torch.float32).equal(state["layer"]["half"].float())
    assert half.numpy("float64").dtype == np.float64
    small = ckpt["layer.small"].torch()
    assert small.dtype == torch.float8_e4m3fn and small.float().equal(state["layer"]["small"].float())
    # A number that does not fit is an error, and not another number.
    with pytest.raises(reshard.MismatchError, match="uint8"):
        ckpt["layer.weight"].torch(torch.uint8)


def test_memory_of_the_caller(place: str, state: dict[str, Any]) -> None:
    ckpt = reshard.open(place)
    memory = torch.zeros(8, 6).t()
    assert ckpt["layer.weight"].torch(out=memory) is memory
    assert memory.equal(state["layer"]["weight"])
    array = np.zeros((3, 8))
    ckpt["layer.weight"][3:].numpy(out=array)
    np.testing.assert_array_equal(array, state["layer"]["weight"][3:].numpy())
    with pytest.raises(reshard.MismatchError, match=r"\[2, 2\]"):
        ckpt["layer.weight"].torch(out=torch.zeros(2, 2))


def test_load(place: str, state: dict[str, Any]) -> None:
    ckpt = reshard.open(place)
    loaded = ckpt.load("layer.*", dtype=torch.float32)
    assert sorted(loaded) == ["layer.half", "layer.small", "layer.weight"]
    assert all(tensor.dtype == torch.float32 for tensor in loaded.values())
    everything = ckpt.load(framework="numpy")
    assert everything["step"] == 7 and everything["count"] == 3
    with pytest.raises(reshard.NotFoundError, match="matches"):
        ckpt.load("nope.*")
    with pytest.raises(reshard.NotFoundError, match="layer.weight"):
        ckpt.load(["layer.weigth"])


def test_progress(place: str) -> None:
    seen: list[tuple[int, int]] = []
    reshard.open(place, progress=lambda *now: seen.append(now)).load()
    assert seen[-1][0] == seen[-1][1] > 0


def test_verify_metadata_and_stats(place: str, tmp_path: Path) -> None:
    ckpt = reshard.open(place)
    assert ckpt.verify()["status"] == "sound"
    assert ckpt.metadata["backend"] == "torch_dist"
    assert ckpt.stats("layer.weight")["tensors"][0]["key"] == "layer.weight"

    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    file = file_of(str(copy))
    data = bytearray(file.read_bytes())
    at = bytes(data).index(reshard.open(place)["layer.weight"].tobytes())
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(reshard.DamagedError) as caught:
        reshard.open(copy).verify()
    assert caught.value.report is not None and caught.value.report["damage"]
    with pytest.raises(reshard.DamagedError) as damaged:
        reshard.open(copy)["layer.weight"].torch()
    assert damaged.value.path is not None and "distcp" in damaged.value.path


def test_errors_say_what_and_where(place: str, tmp_path: Path) -> None:
    with pytest.raises(reshard.NotFoundError) as nothing:
        reshard.open(tmp_path / "nothing")
    assert nothing.value.hint and isinstance(nothing.value, KeyError)
    with pytest.raises(reshard.NotFoundError, match="did you mean layer.weight"):
        reshard.open(place)["layer.weigth"]
    # Ranks send exceptions to each other.
    again = pickle.loads(pickle.dumps(nothing.value))
    assert (type(again), str(again), again.hint) == (type(nothing.value), str(nothing.value), nothing.value.hint)


def test_unknown_classes_are_inert(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(ran),)

    torch.save({"w": torch.ones(2), "args": argparse.Namespace(lr=0.5), "evil": Evil()}, tmp_path / "a.pt")
    ckpt = reshard.open(tmp_path / "a.pt")
    args = ckpt["args"]
    assert isinstance(args, reshard.Opaque) and args.lr == 0.5 and args.class_name == "argparse.Namespace"
    with pytest.raises(AttributeError, match="lr2"):
        args.lr2
    assert "mkdir" in repr(ckpt["evil"])
    assert not ran.exists()


def test_formats_and_maps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.float16)}
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors")
    torch.save(tensors, tmp_path / "a.pt")
    for name in ("a.safetensors", "a.pt"):
        loaded = reshard.open(tmp_path / name).load()
        assert all(loaded[key].equal(tensor) for key, tensor in tensors.items())
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nrename = "a"\nto = "model.a"\n')
    ckpt = reshard.open(tmp_path / "a.pt")
    with caplog.at_level(logging.WARNING, "reshard"):
        mapped = ckpt.map(rules)
    assert sorted(mapped) == ["b", "model.a"] and "no rule of the map matches 1 tensors: b" in caplog.text
    assert mapped["model.a"][1].torch().equal(tensors["a"][1])
    assert mapped.load(framework="numpy")["model.a"].tolist() == tensors["a"].tolist()
    with pytest.raises(reshard.MismatchError):
        ckpt.map("hf-llama")


def test_threads_read_at_the_same_time(place: str, state: dict[str, Any]) -> None:
    ckpt = reshard.open(place)
    failed: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(20):
                assert ckpt["layer.weight"].torch().equal(state["layer"]["weight"])
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60)


def test_a_forked_process_is_refused_or_works(place: str) -> None:
    code = """
import os, sys, reshard
used = sys.argv[2] == "used"
if used:
    reshard.open(sys.argv[1])
if os.fork() == 0:
    try:
        print("child", len(reshard.open(sys.argv[1])), flush=True)
    except reshard.Error as e:
        print("child refused", "spawn" in str(e), flush=True)
    os._exit(0)
os.wait()
print("parent", len(reshard.open(sys.argv[1])))
"""
    assert run(code, place, "used").stdout.split("\n")[:2] == ["child refused True", "parent 9"]
    assert run(code, place, "new").stdout.split("\n")[:2] == ["child 9", "parent 9"]


def test_importing_it_imports_neither_torch_nor_numpy() -> None:
    done = run("import reshard, sys; print({'torch', 'numpy'} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr


def test_a_signal_is_answered(place: str) -> None:
    code = """
import os, signal, sys, torch, reshard
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    while True:
        reshard.open(sys.argv[1]).load()
except Stop:
    print("stopped")
"""
    assert run(code, place).stdout.strip() == "stopped"


def test_the_program(place: str, tmp_path: Path) -> None:
    def program(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "reshard", *args], capture_output=True, text=True, timeout=60)

    done = program("inspect", place)
    assert done.returncode == 0 and "layer.weight" in done.stdout
    missing = program("inspect", str(tmp_path / "nothing"))
    assert missing.returncode == 3 and "error:" in missing.stderr and not missing.stdout
    assert program("--version").stdout.split()[1] == reshard.__version__
    assert program("nonsense").returncode == 2


@pytest.mark.slow
def test_ctrl_c_ends_the_program(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "reshard", "demo", "--size", "4GiB", "--dir", str(tmp_path / "demo")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        child.wait(2)
    except subprocess.TimeoutExpired:
        pass
    child.send_signal(signal.SIGINT)
    assert child.wait(20) in (130, -signal.SIGINT)
    child.communicate()
    for left in tmp_path.iterdir():
        shutil.rmtree(left)

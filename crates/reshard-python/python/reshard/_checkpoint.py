"""Checkpoints of any format."""

from __future__ import annotations

import fnmatch
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import _memory, _reshard
from ._errors import (
    DamagedError,
    Error,
    ExistsError,
    LimitError,
    MismatchError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from ._tensor import Tensor

_log = logging.getLogger("reshard")

#: Calls with the bytes that have come and the bytes that will have come in the end.
Progress = Callable[[int, int], object]


def open(
    place: str | os.PathLike[str],
    *,
    format: str | None = None,
    verify: bool = True,
    item: str | None = None,
    open_modules: bool = False,
    dequantize: Any = None,
    progress: Progress | bool | None = None,
) -> Checkpoint:
    """Open a checkpoint of any format. This reads what describes it, and no tensor.

    Parameters
    ----------
    place : str or path
        A folder, a file, or a URL such as ``s3://bucket/step-1000``.
    format : str, optional
        The format, such as ``"torch_dist"``. By default the files tell it.
    verify : bool, optional
        Whether the checksum of everything that is read as a whole is checked.
    item : str, optional
        One item of a folder with one file per rank, such as ``"model"`` of model_world_size_4_rank_0.pt.
    open_modules : bool, optional
        Whether tensors of pickled modules (``torch.save(model)``) and of TorchScript are read, under the names of ``state_dict()``. Nothing is executed.
    dequantize : dtype or str, optional
        The type in which float8 weights with scales are read, for safetensors.
    progress : callable or bool, optional
        Called with the bytes that have come and with all that will, by each call that reads tensors. True shows a bar of tqdm.

    Returns
    -------
    Checkpoint
        A mapping of keys to tensors, which are read when they are used, and to objects.

    Raises
    ------
    NotFoundError
        Nothing lies there, or no checkpoint. The hint says what does.
    DamagedError
        What describes the checkpoint is damaged.
    """
    how = {
        "format": format,
        "verify": verify,
        "item": item,
        "open_modules": open_modules,
        "dequantize": None if dequantize is None else _memory.dtype_name(dequantize),
        "progress": bar("reading") if progress is True else (progress or None),
    }
    source = _reshard.open(os.fspath(place), how)
    for warning in source.warnings():
        _log.warning("%s: %s", source.url, warning)
    options = [
        *([f"--format={format}"] if format is not None else []),
        *([f"--item={item}"] if item is not None else []),
        *(["--open-modules"] if open_modules else []),
        *([f"--dequantize={how['dequantize']}"] if dequantize is not None else []),
    ]
    return Checkpoint(source, options)


def bar(what: str) -> Progress:
    """A progress bar of tqdm, as a callback."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]

    shown: Any = None

    def show(done: int, total: int) -> None:
        nonlocal shown
        if shown is None or shown.total != total or done < shown.n:
            if shown is not None:
                shown.close()
            shown = tqdm(total=total, desc=what, unit="B", unit_scale=True)
        shown.update(done - shown.n)
        if done >= total:
            shown.close()

    return show


class Checkpoint(Mapping[str, Any]):
    """An open checkpoint: a mapping of keys to tensors and objects. `reshard.open` makes it.

    ``ckpt["layer.weight"]`` is a `Tensor`, of which nothing is read yet. ``ckpt["step"]`` is the value of an object. Objects are never unpickled:
    classes that reshard does not know become inert `Opaque` objects.
    """

    def __init__(self, source: _reshard.Source, options: Sequence[str] | None) -> None:
        self._source = source
        # How the program opens the same; None if it can't, because of a map.
        self._options = options
        self._tensors = {key: (dtype, tuple(shape)) for key, dtype, shape in source.tensors()}
        self._objects = dict.fromkeys(source.objects())

    @property
    def url(self) -> str:
        """Where it lies."""
        return self._source.url

    @property
    def format(self) -> str:
        """Name and version of its format, such as ``"torch_dist/1"``."""
        return self._source.format

    def __repr__(self) -> str:
        return f"<reshard.Checkpoint {self.url} {self.format}: {len(self._tensors)} tensors, {len(self._objects)} objects>"

    def __len__(self) -> int:
        return len(self._tensors) + len(self._objects)

    def __iter__(self) -> Iterator[str]:
        yield from self._tensors
        yield from self._objects

    def __contains__(self, key: object) -> bool:
        return key in self._tensors or key in self._objects

    def __getitem__(self, key: str) -> Any:
        if key in self._tensors:
            return self.tensor(key)
        if key in self._objects:
            return self._source.object(key)
        # The native library knows similar keys.
        self._source.chunks(key)
        raise NotFoundError(f"{self.url} holds no {key!r}", key=key, path=self.url)

    def tensor(self, key: str) -> Tensor:
        """The tensor of a key. Nothing is read.

        Raises
        ------
        NotFoundError
            There is no tensor of that key. The message names similar keys.
        """
        if key not in self._tensors:
            self._source.chunks(key)
        dtype, shape = self._tensors[key]
        return Tensor(self._source, key, dtype, (0,) * len(shape), shape, tuple(range(len(shape))))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by key. Nothing is read."""
        return {key: self.tensor(key) for key in self._tensors}

    @property
    def objects(self) -> list[str]:
        """The keys of all objects."""
        return list(self._objects)

    def load(
        self,
        keys: str | Iterable[str] | None = None,
        *,
        framework: str = "torch",
        dtype: Any = None,
        device: Any = "cpu",
    ) -> dict[str, Any]:
        """Read many tensors and objects at once.

        Parameters
        ----------
        keys : str or iterable of str, optional
            Keys, or a pattern such as ``"model.layers.*"``. By default all.
        framework : {"torch", "numpy"}, optional
            Of which kind the tensors are.
        dtype : dtype or str, optional
            The type of all floating-point tensors. By default each has its own. Others keep theirs.
        device : torch.device or str, optional
            Where tensors of torch lie.

        Returns
        -------
        dict
            Tensors and values of objects, by key.

        Raises
        ------
        NotFoundError
            A key, or all keys of a pattern, are not there.
        DamagedError
            A checksum is wrong, or bytes are missing.
        """
        if framework not in ("torch", "numpy"):
            raise MismatchError(f'framework is {framework!r}; give "torch" or "numpy"')
        chosen = self._chosen(keys)
        cast = None if dtype is None else _memory.dtype_name(dtype)
        out: dict[str, Any] = {}
        wants = []
        for key in chosen:
            if key not in self._tensors:
                out[key] = self._source.object(key)
                continue
            tensor = self.tensor(key)
            name = cast if cast is not None and _is_float(tensor.dtype) else tensor.dtype
            if framework == "torch":
                out[key] = _memory.empty_torch(tensor.shape, name)
                wants.append(tensor._want(_memory.of_torch(out[key])))
            else:
                out[key] = _memory.empty_numpy(tensor.shape, name)
                wants.append(tensor._want(_memory.of_numpy(out[key])))
        self._source.read(wants)
        if framework == "torch" and str(device) != "cpu":
            import torch

            out = {key: value.to(device) if isinstance(value, torch.Tensor) and key in self._tensors else value for key, value in out.items()}
        return out

    def _chosen(self, keys: str | Iterable[str] | None) -> list[str]:
        if keys is None:
            return list(self)
        patterns = [keys] if isinstance(keys, str) else list(keys)
        chosen: dict[str, None] = {}
        for pattern in patterns:
            if pattern in self:
                chosen[pattern] = None
                continue
            found = fnmatch.filter(self, pattern) if set(pattern) & set("*?[") else []
            if not found and set(pattern) & set("*?["):
                raise NotFoundError(f"{self.url} holds no key that matches {pattern!r}", key=pattern, path=self.url)
            if not found:
                self[pattern]
            chosen.update(dict.fromkeys(found))
        return list(chosen)

    def state(self) -> Any:
        """Read everything, nested as it was saved, with the common state of Megatron Core. Tensors are of torch if it is imported, else of numpy."""
        return self._source.state()

    def common(self) -> Any:
        """Read the common state of Megatron Core, which is not sharded. Empty in other checkpoints."""
        return self._source.common()

    def map(self, map: str | os.PathLike[str], *, inverse: bool = False, parameters: Mapping[str, int] | None = None) -> Checkpoint:
        """The same checkpoint under the names, shapes and types that a map makes. Nothing is read or copied.

        Parameters
        ----------
        map : str or path
            A map that comes with reshard, such as ``"hf-llama"``, or a mapping file.
        inverse : bool, optional
            Whether the checkpoint has the names that the map makes.
        parameters : mapping of str to int, optional
            Parameters of the map. Others are taken from the checkpoint.

        Raises
        ------
        MismatchError
            The map does not fit the checkpoint.
        """
        name = os.fspath(map)
        if os.path.isfile(name):
            name = Path(name).read_text(encoding="utf-8")
        mapped = self._source.mapped(name, dict(parameters or {}), inverse)
        dropped, unmapped = mapped.unmapped()
        if unmapped:
            _log.warning("%s: no rule of the map matches %d tensors: %s", self.url, len(unmapped), ", ".join(unmapped[:20]))
        if dropped:
            _log.info("%s: the map leaves out %d keys: %s", self.url, len(dropped), ", ".join(dropped[:20]))
        return Checkpoint(mapped, None)

    @property
    def metadata(self) -> dict[str, Any]:
        """What `reshard inspect --json` says of it: format, programs that wrote it, tensors, files. docs/cli.md describes it."""
        return self._command("inspect")

    def verify(self, *, full: bool = True) -> dict[str, Any]:
        """Look for damage: structure, coverage, sizes, and with `full` every checksum.

        Returns
        -------
        dict
            What `reshard verify --json` says.

        Raises
        ------
        DamagedError
            Something is damaged, missing or unsafe. Its `report` is what was found.
        """
        return self._command("verify", *([] if full else ["--quick"]))

    def stats(self, keys: str | Iterable[str] | None = None) -> dict[str, Any]:
        """Minimum, maximum, mean and counts of NaN, infinity and zero of each tensor, as `reshard stats --json` says."""
        options = [] if keys is None else [f"--key={key}" for key in self._chosen(keys)]
        return self._command("stats", *options)

    def _command(self, name: str, *options: str) -> dict[str, Any]:
        if self._options is None:
            raise UnsupportedError("a checkpoint that a map shows can't be checked; check the one that it is made of", path=self.url)
        code, out, _ = _reshard.command([name, "--json", *self._options, *options, self.url])
        report: dict[str, Any] = json.loads(out) if out else {}
        if code == 0:
            return report
        if "error" in report:
            said = report["error"]
            raise _CLASSES.get(said["kind"], Error)(said["message"], path=self.url, hint=said["hint"])
        raise DamagedError(f"{self.url} is not sound; `report` of this exception lists what was found", path=self.url, report=report)


# The words of the program for what is wrong.
_CLASSES = {
    "invalid": MismatchError,
    "not_found": NotFoundError,
    "exists": ExistsError,
    "corrupt": DamagedError,
    "damaged": DamagedError,
    "unsupported": UnsupportedError,
    "limit": LimitError,
    "unavailable": UnavailableError,
}


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat")) and not dtype.startswith("float4")

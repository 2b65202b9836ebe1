"""Objects of checkpoints as Python values. Nothing is imported or called for them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._reshard import HostTensor


class Opaque:
    """An object of a class that reshard does not import: its name, and what the pickle says of it.

    What its `__dict__` would be can be read as attributes: `args.lr` of an `argparse.Namespace`.

    Attributes
    ----------
    class_name : str
        Module and name, such as ``argparse.Namespace``.
    args : tuple or None
        The arguments it is made with. None for the class or function itself.
    kwargs : dict
        The keyword arguments it is made with.
    state : object
        What `__setstate__` or `__dict__` would get.
    items : list
        The elements of a subclass of list or set.
    pairs : list of tuple
        The items of a subclass of dict.
    """

    __slots__ = ("args", "class_name", "items", "kwargs", "pairs", "state")

    def __init__(
        self,
        class_name: str,
        args: tuple[Any, ...] | None,
        kwargs: dict[Any, Any],
        state: Any,
        items: list[Any],
        pairs: list[tuple[Any, Any]],
    ) -> None:
        self.class_name = class_name
        self.args = args
        self.kwargs = kwargs
        self.state = state
        self.items = items
        self.pairs = pairs

    def __getattr__(self, name: str) -> Any:
        state = object.__getattribute__(self, "state")
        if isinstance(state, dict) and name in state:
            return state[name]
        raise AttributeError(f"the {self.class_name} has no {name!r}; reshard keeps it as data, without its class")

    def __repr__(self) -> str:
        if self.args is None:
            return f"<{self.class_name}>"
        told = [repr(arg) for arg in self.args]
        told += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        if isinstance(self.state, dict):
            told += [f"{name}={value!r}" for name, value in self.state.items()]
        return f"<{self.class_name}({', '.join(told)})>"


def made(
    class_name: str,
    args: tuple[Any, ...] | None,
    kwargs: dict[Any, Any],
    state: Any,
    items: list[Any],
    pairs: list[tuple[Any, Any]],
) -> Any:
    """An object of a class. Those of torch that only hold facts are made, if the program has imported torch; all others are inert."""
    torch = sys.modules.get("torch")
    module, _, name = class_name.rpartition(".")
    if module == "torch":
        if name == "Size" and args is not None:
            return torch.Size(*args) if torch is not None else tuple(*args)
        if name == "device" and args is not None and torch is not None:
            return torch.device(*args)
        found = getattr(torch, name, None)
        if args is None and torch is not None and isinstance(found, torch.dtype):
            return found
    return Opaque(class_name, args, kwargs, state, items, pairs)


def tensor(host: HostTensor) -> Any:
    """A tensor within an object: of torch if the program has imported it, else an array of numpy, else as reshard has it."""
    from . import _memory

    if "torch" in sys.modules:
        made = _memory.empty_torch(host.shape, host.dtype)
        host.copy_into(_memory.of_torch(made))
        return made
    try:
        import numpy  # noqa: F401
    except ImportError:
        return host
    if not _memory.is_numpy_dtype(host.dtype):
        return host
    array = _memory.empty_numpy(host.shape, host.dtype)
    host.copy_into(_memory.of_numpy(array))
    return array

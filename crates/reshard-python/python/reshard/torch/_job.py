"""Saves and loads that reshard plans itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .. import _reshard
from .._checkpoint import bar
from ._declare import Declared
from ._group import Ranks

Progress = Callable[[int, int], object]
T = TypeVar("T")

#: How many seconds a rank waits in one step for the others.
DEADLINE = 1800.0


def save(
    state_dict: Mapping[str, Any],
    place: str | os.PathLike[str],
    *,
    process_group: Any = None,
    format: str | Mapping[str, Any] | None = None,
    dialect: str = "pytorch",
    policy: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    durable: bool = True,
    check_replicas: bool = False,
    coordinators_plain_tensors: bool = False,
    integrity: bool = False,
    step: int | None = None,
    keep: int | None = None,
    deadline: float = DEADLINE,
    progress: Progress | bool | None = None,
) -> str:
    """Save a state dict that is spread over ranks. All ranks of the group call it.

    DTensors and ShardedTensors are saved as the parts that they are; of equal replicas one is written. Other tensors must be equal on all ranks. Values that are
    no tensors are those of rank 0. Objects that have `state_dict()`, at the top of the state, are asked for it.

    The new checkpoint becomes visible in one step, when all ranks have written. If a rank fails or dies, all ranks raise, and the old one stays.

    Parameters
    ----------
    state_dict : mapping of str to object
        Nested dicts and lists.
    place : str or path
        A folder, a file (formats of single files), or a URL. With `step`, the folder of a run.
    process_group : torch.distributed.ProcessGroup, optional
        The ranks. By default all, or this process alone if `torch.distributed` was not initialised.
    format : str or mapping, optional
        The format, such as ``"safetensors"``, or its settings: ``{"format": "torch_dist", "files_per_rank": 2}``. By default that of DCP.
    dialect : {"pytorch", "megatron", "tensors"}, optional
        Whose conventions the checkpoint follows for what is not sharded.
    policy : mapping, optional
        How tensors go into files: ``{"type": "max_shard_size", "max_shard_size": "500MiB"}``.
    overwrite : bool, optional
        Whether a checkpoint that lies there is replaced. Other files stay.
    durable : bool, optional
        Whether everything is synced to the disk, so that it survives a crash of the machine.
    check_replicas : bool, optional
        Whether replicas are compared before all but one are dropped. Tensors of devices are not.
    coordinators_plain_tensors : bool, optional
        Whether rank 0's tensors are saved where tensors that are not sharded differ.
    integrity : bool, optional
        Whether Megatron Core's ``integrity.json`` is written.
    step, keep : int, optional
        Save this step of a run, in a folder of its own below `place`, and keep only so many of the newest.
    deadline : float, optional
        How many seconds this rank waits in one step for the others.
    progress : callable or bool, optional
        Called with the bytes of this rank that were written, and with all of them. True shows a bar of tqdm.

    Returns
    -------
    str
        What the save did, in one line.

    Raises
    ------
    ExistsError
        Something lies at the place.
    MismatchError
        The parts of the ranks don't make up their tensors; tensors that are not sharded differ.
    RankFailedError
        Another rank failed, died, or did not come before the deadline. The message names it.
    UnsupportedError
        A tensor is sparse, quantised, without data, or of a class of its own.
    """
    ranks = Ranks(process_group, deadline)

    def run() -> str:
        # Ranks meet first, so that they learn of what fails below.
        group = ranks.group
        declared = Declared(_states(state_dict), load=False)
        how = _how(
            declared, format, dialect, policy, overwrite, durable, check_replicas, coordinators_plain_tensors, integrity, deadline, progress
        )
        how.update(step=step, keep=keep)
        return _reshard.save(os.fspath(place), declared.node, how, group)

    return _together(ranks, run)


def load(
    state_dict: dict[str, Any],
    place: str | os.PathLike[str],
    *,
    process_group: Any = None,
    strict: bool = True,
    cast: str = "any",
    verify: bool = True,
    deadline: float = DEADLINE,
    progress: Progress | bool | None = None,
) -> dict[str, Any]:
    """Load a checkpoint of any format into a state dict, whatever its sharding. All ranks of the group call it.

    Tensors are filled in place. Values that are no tensors are replaced. Objects that have `load_state_dict()`, at the top of the state, get their state. Each rank
    reads what it needs.

    Parameters
    ----------
    state_dict : dict
        Which tensors are wanted, and their memory.
    place : str or path
        A folder, a file or a URL.
    process_group : torch.distributed.ProcessGroup, optional
        The ranks. By default all, or this process alone if `torch.distributed` was not initialised.
    strict : bool, optional
        Whether a key that is not stored is an error. Otherwise it keeps its contents, and a warning is logged.
    cast : {"never", "lossless", "float", "any"}, optional
        Which casts of elements are allowed, if stored types differ.
    verify : bool, optional
        Whether the checksum of everything that is read as a whole is checked.
    deadline : float, optional
        How many seconds this rank waits in one step for the others.
    progress : callable or bool, optional
        Called with the bytes of this rank that have come, and with all of them. True shows a bar of tqdm.

    Returns
    -------
    dict
        `state_dict`.

    Raises
    ------
    DamagedError
        A checksum is wrong, or bytes are missing.
    NotFoundError
        There is no checkpoint, or a key is not stored.
    MismatchError
        A shape is another one than the stored one.
    RankFailedError
        Another rank failed, died, or did not come before the deadline.
    """
    ranks = Ranks(process_group, deadline)

    def run() -> tuple[dict[str, Any], Declared, list[Any]]:
        group = ranks.group
        state = _states(state_dict)
        declared = Declared(state, load=True)
        how = {
            "strict": strict,
            "cast": cast,
            "verify": verify,
            "deadline": float(deadline),
            "progress": bar("loading") if progress is True else (progress or None),
        }
        return state, declared, _reshard.load(os.fspath(place), declared.node, how, group)

    state, declared, values = _together(ranks, run)
    for (container, key), value in zip(declared.values, values):
        container[key] = value
    for tensor, host in declared.staged:
        tensor.copy_(host)
    for key, value in state_dict.items():
        if _has_state(value):
            value.load_state_dict(state[key])
        else:
            state_dict[key] = state[key]
    return state_dict


class Pending:
    """A save in the background, made by `async_save`."""

    def __init__(self, pending: _reshard.Pending, ranks: Ranks) -> None:
        self._pending = pending
        self._ranks = ranks
        self._report: str | None = None

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._report is not None or self._pending.done()

    def result(self) -> str:
        """Wait for the end, and return what the save did, in one line. Raises what `save` raises."""
        if self._report is None:
            self._report = _together(self._ranks, self._pending.finish)
        return self._report


def async_save(
    state_dict: Mapping[str, Any],
    place: str | os.PathLike[str],
    *,
    process_group: Any = None,
    format: str | Mapping[str, Any] | None = None,
    dialect: str = "pytorch",
    policy: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    durable: bool = True,
    check_replicas: bool = False,
    coordinators_plain_tensors: bool = False,
    integrity: bool = False,
    deadline: float = DEADLINE,
    progress: Progress | bool | None = None,
) -> Pending:
    """Save in the background. When this returns, the state dict was copied and may change.

    All ranks of the group call it, in the same order. It makes no collectives of `torch.distributed` after the first call for a group. One save of a group is under way at a
    time: a second one waits for the first.

    Parameters
    ----------
    state_dict, place, process_group, ...
        As for `save`.

    Returns
    -------
    Pending
        `result()` waits for the end. Call it: only it tells whether the save succeeded.
    """
    ranks = Ranks(process_group, deadline)

    def run() -> _reshard.Pending:
        saver = ranks.saver()
        declared = Declared(_states(state_dict), load=False)
        how = _how(
            declared, format, dialect, policy, overwrite, durable, check_replicas, coordinators_plain_tensors, integrity, deadline, progress
        )
        return saver.start(os.fspath(place), declared.node, how)

    return Pending(_together(ranks, run), ranks)


def _together(ranks: Ranks, run: Callable[[], T]) -> T:
    """Runs a part of a save or load. If it fails here, the other ranks learn it at once."""
    try:
        return run()
    except BaseException as e:
        ranks.failed(e)
        raise


def _states(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The state dict with the state of each value that makes its own."""
    return {key: value.state_dict() if _has_state(value) else value for key, value in state_dict.items()}


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _how(
    declared: Declared,
    format: str | Mapping[str, Any] | None,
    dialect: str,
    policy: Mapping[str, Any] | None,
    overwrite: bool,
    durable: bool,
    check_replicas: bool,
    coordinators_plain_tensors: bool,
    integrity: bool,
    deadline: float,
    progress: Progress | bool | None,
) -> dict[str, Any]:
    call = bar("saving") if progress is True else (progress or None)
    done = 0

    def told(new: int) -> None:
        nonlocal done
        done = min(done + new, declared.nbytes)
        assert call is not None
        call(done, declared.nbytes)

    return {
        "format": format if format is None or isinstance(format, str) else json.dumps(dict(format)),
        "dialect": dialect,
        "policy": None if policy is None else json.dumps(dict(policy)),
        "overwrite": overwrite,
        "durable": durable,
        "check_replicas": check_replicas,
        "coordinators_plain_tensors": coordinators_plain_tensors,
        "integrity": integrity,
        "deadline": float(deadline),
        "progress": None if call is None else told,
        "step": None,
        "keep": None,
    }

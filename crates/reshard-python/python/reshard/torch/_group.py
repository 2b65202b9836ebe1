"""Groups of ranks for reshard's own saves and loads.

Ranks meet by one collective of `torch.distributed`, with any backend. From then on they talk to each other directly over TCP, as `torchrun` jobs of Rust do. So a
save never waits in a collective of the job, works on any thread, notices a rank that dies, and ends at its deadline.
"""

from __future__ import annotations

import socket
import threading
import uuid
import weakref
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from .. import _reshard

_lock = threading.Lock()
_groups: weakref.WeakKeyDictionary[Any, _Joined] = weakref.WeakKeyDictionary()


class _Joined:
    """What this rank knows of the others of a process group."""

    def __init__(self, rank: int, size: int, host: str, port: int, name: str, meeting: _reshard.Meeting | None) -> None:
        self._at = (rank, size, host, port, name)
        # Rank 0 serves the store at which the ranks meet, as long as there is the process group.
        self._meeting = meeting
        self._group: _reshard.Group | None = None
        self._saver: _reshard.Saver | None = None

    def group(self, deadline: float) -> _reshard.Group:
        """The group. After a failure the ranks meet anew, at the same store."""
        if self._group is None:
            self._group = _reshard.Group(*self._at, deadline)
        return self._group

    def saver(self, deadline: float) -> _reshard.Saver:
        """What saves in the background. All ranks call it."""
        if self._saver is None:
            self._saver = _reshard.Saver(self.group(deadline))
        return self._saver

    def failed(self, why: str) -> None:
        """Breaks the group. It is of no use to the other ranks any more either, so all of them meet anew."""
        if self._group is not None:
            self._group.abort(why)
        self._group, self._saver = None, None


class Ranks:
    """The ranks of a process group, or this process alone.

    Parameters
    ----------
    process_group : torch.distributed.ProcessGroup, optional
        By default all ranks, or none if `torch.distributed` was not initialised.
    deadline : float
        How many seconds this rank waits in one step for the others.
    """

    def __init__(self, process_group: Any, deadline: float) -> None:
        self._deadline = deadline
        self._joined: _Joined | None = None
        if not (dist.is_available() and dist.is_initialized()):
            return
        key = process_group if process_group is not None else dist.group.WORLD
        if dist.get_world_size(key) < 2:
            return
        with _lock:
            self._joined = _groups.get(key)
        if self._joined is None:
            self._joined = _meet(key)
            with _lock:
                _groups[key] = self._joined

    @property
    def group(self) -> _reshard.Group | None:
        """The group for the native library. None for a process alone."""
        return None if self._joined is None else self._joined.group(self._deadline)

    def saver(self) -> _reshard.Saver:
        """What saves in the background. Ranks call it together."""
        return _alone() if self._joined is None else self._joined.saver(self._deadline)

    def failed(self, error: BaseException) -> None:
        """Tell the other ranks."""
        if self._joined is not None:
            self._joined.failed(f"{type(error).__name__}: {error}")


_single: list[_reshard.Saver] = []


def _alone() -> _reshard.Saver:
    with _lock:
        if not _single:
            _single.append(_reshard.Saver(None))
        return _single[0]


def _meet(key: Any) -> _Joined:
    rank, size = dist.get_rank(key), dist.get_world_size(key)
    meeting = _reshard.Meeting() if rank == 0 else None
    mine = (socket.gethostname(), _address(), meeting.port if meeting else 0, uuid.uuid4().hex)
    told: list[Any] = [None] * size
    dist.all_gather_object(told, mine, group=key)
    host, address, port, name = told[0]
    one_machine = all(other[0] == host for other in told)
    return _Joined(rank, size, "127.0.0.1" if one_machine else address, port, name, meeting)


def _address() -> str:
    """The address of this machine for others: the one from which it reaches the store of the job, if it has one."""
    store: Any = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", None)
    if host:
        try:
            # Nothing is sent.
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, store.port))
                found: str = probe.getsockname()[0]
            if not found.startswith("127."):
                return found
        except OSError:
            pass
    return socket.gethostname()

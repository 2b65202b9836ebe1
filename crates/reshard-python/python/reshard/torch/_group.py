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
    """What the ranks of a process group share."""

    def __init__(self, group: _reshard.Group, meeting: _reshard.Meeting | None) -> None:
        self.group = group
        # Rank 0 serves the store at which the ranks have met.
        self.meeting = meeting
        self.saver: _reshard.Saver | None = None


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
        self._key: Any = None
        self._joined: _Joined | None = None
        if not (dist.is_available() and dist.is_initialized()):
            return
        key = process_group if process_group is not None else dist.group.WORLD
        if dist.get_world_size(key) < 2:
            return
        self._key = key
        with _lock:
            self._joined = _groups.get(key)
        if self._joined is None:
            self._joined = _meet(key, deadline)
            with _lock:
                _groups[key] = self._joined

    @property
    def group(self) -> _reshard.Group | None:
        """The group for the native library. None for a process alone."""
        return None if self._joined is None else self._joined.group

    def saver(self) -> _reshard.Saver:
        """What saves in the background. Ranks call it together."""
        if self._joined is None:
            return _alone()
        if self._joined.saver is None:
            self._joined.saver = _reshard.Saver(self._joined.group)
        return self._joined.saver

    def failed(self, error: BaseException) -> None:
        """Tell the other ranks, and meet anew next time."""
        if self._joined is None:
            return
        self._joined.group.abort(f"{type(error).__name__}: {error}")
        with _lock:
            if _groups.get(self._key) is self._joined:
                del _groups[self._key]


_single: list[_reshard.Saver] = []


def _alone() -> _reshard.Saver:
    with _lock:
        if not _single:
            _single.append(_reshard.Saver(None))
        return _single[0]


def _meet(key: Any, deadline: float) -> _Joined:
    rank, size = dist.get_rank(key), dist.get_world_size(key)
    meeting = _reshard.Meeting(False) if rank == 0 else None
    mine = (socket.gethostname(), _address(), meeting.port if meeting else 0, uuid.uuid4().hex)
    told: list[Any] = [None] * size
    dist.all_gather_object(told, mine, group=key)
    host, address, port, name = told[0]
    one_machine = all(other[0] == host for other in told)
    group = _reshard.Group(rank, size, "127.0.0.1" if one_machine else address, port, name, deadline)
    return _Joined(group, meeting)


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

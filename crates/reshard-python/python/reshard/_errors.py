"""The exceptions of reshard."""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """Base class of all exceptions of reshard.

    Attributes
    ----------
    key : str or None
        The tensor or object in question.
    path : str or None
        The file or checkpoint in question.
    offset : int or None
        The byte of the file at which it was found.
    hint : str or None
        What to do about it, if the message does not say it.
    """

    key: str | None
    path: str | None
    offset: int | None
    hint: str | None

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        path: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.path = path
        self.offset = offset
        self.hint = hint

    # KeyError would quote the message.
    def __str__(self) -> str:
        return str(self.args[0])


class DamagedError(Error):
    """Bytes of the checkpoint are wrong or missing.

    Attributes
    ----------
    report : dict or None
        What a check has found (`Checkpoint.verify`).
    """

    report: dict[str, Any] | None

    def __init__(self, message: str, *, report: dict[str, Any] | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.report = report


class NotFoundError(Error, KeyError):
    """There is no checkpoint, file, tensor or object of that name."""


class ExistsError(Error):
    """Something lies at the place already. `overwrite=True` replaces a checkpoint."""


class MismatchError(Error, ValueError):
    """What was asked for contradicts itself, or what is stored: a shape, a type, a region, an option."""


class UnsupportedError(Error):
    """This version, this format or this place can't do it."""


class LimitError(Error):
    """It needs more memory or more items than a limit allows."""


class UnavailableError(Error):
    """Reading or writing failed. Trying again later may work."""


class RankFailedError(Error):
    """Another rank failed, or did not come in time."""


class PickleError(Error):
    """An object refers to a class or function that Python must not import unasked. `allow_pickle=True` allows it."""


# Tracebacks show the names by which they are caught.
for _class in (Error, *Error.__subclasses__()):
    _class.__module__ = "reshard"

"""Errors of the object store's library, turned into our three: missing, refused, unavailable."""

from __future__ import annotations

import re
from typing import Final

from magnetar.ledger.api import LedgerError, LedgerUnavailable
from magnetar.tiered.api import OffloadedLedgerNotFound, OffloadRefused, OffloadUnavailable
from obstore import exceptions

_STATUS: Final = re.compile(r"status code: (\d{3})")
_TRY_AGAIN: Final = frozenset((408, 409, 423, 425, 429))
"""Statuses of a client's mistake that another attempt may not have."""
RANGE_BEYOND_END: Final = 416
_REFUSALS: Final = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.NotSupportedError,
    exceptions.InvalidPathError,
    exceptions.UnknownConfigurationKeyError,
)
_MISSING_KEY: Final = ("NoSuchKey", "BlobNotFound")
_TEXT_LENGTH_MAX: Final = 400
"""A store's answer is a page at times; its beginning has status and code."""

STORE_ERRORS: Final = (exceptions.BaseError, OSError, ValueError)
"""All that the library raises. A missing object is a `FileNotFoundError`."""


def status_of(error: BaseException) -> int | None:
    """The status of HTTP that the store answered with."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match is not None else None


def names_missing_key(error: BaseException) -> bool:
    """Whether the store said that the object is missing, which is not the same as a missing bucket."""
    return isinstance(error, FileNotFoundError) and any(code in str(error) for code in _MISSING_KEY)


def as_store_error(error: BaseException, what: str) -> LedgerError | LedgerUnavailable:
    """The error to raise instead. `what` names the object and what was to be done with it."""
    told = f"{what}: {_short(error)}"
    if isinstance(error, FileNotFoundError):
        return OffloadedLedgerNotFound(told)
    status = status_of(error)
    refused = status is not None and 300 <= status < 500 and status not in _TRY_AGAIN
    if refused or isinstance(error, _REFUSALS):
        return OffloadRefused(told)
    return OffloadUnavailable(told)


def _short(error: BaseException) -> str:
    """The beginning of a text that may be a page, on one line."""
    text = " ".join(str(error).split("Debug source:")[0].split())
    return text if len(text) <= _TEXT_LENGTH_MAX else text[:_TEXT_LENGTH_MAX] + " …"

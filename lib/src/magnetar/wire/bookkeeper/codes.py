"""BookKeeper's result codes: version 2 on the wire, version 3's status codes, and our own for a silent bookie."""

from __future__ import annotations

import enum
from typing import Final

from magnetar.core.errors import MagnetarError


class BookieCode(enum.IntEnum):
    """What a bookie says to a request. Values as in protocol version 2 (BookKeeper: proto/BookieProtocol)."""

    EOK = 0
    ENOLEDGER = 1
    ENOENTRY = 2
    EBADREQ = 100
    EIO = 101
    EUA = 102
    EBADVERSION = 103
    EFENCED = 104
    EREADONLY = 105
    ETOOMANYREQUESTS = 106
    EUNKNOWNLEDGERSTATE = 107
    UNREACHABLE = -8
    """Never on the wire: the bookie cannot be reached or gave no answer in time (BookieHandleNotAvailable)."""


V3_STATUS: Final[dict[int, int]] = {
    BookieCode.EOK: 0,
    BookieCode.ENOLEDGER: 402,
    BookieCode.ENOENTRY: 403,
    BookieCode.EBADREQ: 404,
    BookieCode.EIO: 501,
    BookieCode.EUA: 502,
    BookieCode.EBADVERSION: 503,
    BookieCode.EFENCED: 504,
    BookieCode.EREADONLY: 505,
    BookieCode.ETOOMANYREQUESTS: 506,
    BookieCode.EUNKNOWNLEDGERSTATE: 507,
}
"""Version 3's StatusCode of every code that can be on the wire."""

CODE_OF_V3_STATUS: Final[dict[int, BookieCode]] = {status: BookieCode(code) for code, status in V3_STATUS.items()}

CODE_OF_NUMBER: Final[dict[int, BookieCode]] = {int(code): code for code in BookieCode}


def known_code(number: int) -> BookieCode:
    """The code with this number; a number that nobody defined counts as EIO."""
    return CODE_OF_NUMBER.get(number, BookieCode.EIO)


class BookieError(MagnetarError):
    """A bookie refused a request, or could not be reached (`UNREACHABLE`)."""

    def __init__(self, code: BookieCode, what: str = "") -> None:
        super().__init__(f"{code.name}: {what}" if what else code.name)
        self.code = code

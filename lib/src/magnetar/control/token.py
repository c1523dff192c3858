"""The token of a control port, also out of a file that is exchanged while the port is open."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from magnetar.core.errors import SettingError

logger: Final = logging.getLogger(__name__)


class ControlToken:
    """What callers must show. A file is looked at with each call: Kubernetes writes a changed Secret into it, and
    whoever has the new token must be let in without a restart."""

    def __init__(self, token: str, file: Path | None = None) -> None:
        """`SettingError` for a file that cannot be read or has none: a port that wants a token must not open without.
        Without a file it is `token`; empty: none is wanted."""
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._token = token.encode()
        if file is not None:
            self._stamp = _stamp(file)
            self._token = _read(file)

    @property
    def wanted(self) -> bytes:
        """The token of now, empty for none. A file that has become unreadable leaves the last one in force."""
        if self._file is None:
            return self._token
        try:
            stamp = _stamp(self._file)
        except SettingError:
            # It went with its Secret: the next one is written in its place.
            return self._token
        if stamp != self._stamp:
            # Only once for each state of the file, whatever is in it.
            self._stamp = stamp
            try:
                self._token = _read(self._file)
            except SettingError as error:
                logger.warning("the control port keeps its token: %s", error)
            else:
                logger.info("the control port has a new token")
        return self._token


def _stamp(file: Path) -> tuple[int, int]:
    """What changes with the contents: mounted Secrets are links to files that are written anew."""
    try:
        found = file.stat()
    except OSError as error:
        raise SettingError(f"the control token's file cannot be read: {error}") from None
    return found.st_ino, found.st_mtime_ns


def _read(file: Path) -> bytes:
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise SettingError(f"the control token's file cannot be read: {error}") from None
    if not token or not token.isascii():
        raise SettingError(f"{file} must hold a token of ASCII characters: it is sent as a header")
    return token

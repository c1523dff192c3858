"""Reads a file that a setting names: whole, and not more of it than it may have."""

from __future__ import annotations

from pathlib import Path

from magnetar.core.errors import SettingError


def read_bounded(file: Path, what: str, bytes_max: int) -> bytes:
    """The file's bytes. `what` says in the `SettingError` which file it is that is missing, unreadable or larger."""
    try:
        with file.open("rb") as opened:
            data = opened.read(bytes_max + 1)
    except OSError as error:
        raise SettingError(f"{what} {file} cannot be read: {error.strerror}") from None
    if len(data) > bytes_max:
        raise SettingError(f"{what} {file} is larger than {bytes_max} bytes")
    return data

"""What the commands about tokens need beside making and checking them."""

from __future__ import annotations

import base64
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from magnetar.auth.keys import algorithms_of, family, read_public_key
from magnetar.core.errors import SettingError

_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_DURATION: Final = re.compile(r"([0-9]{1,9})([smhdwy])", re.IGNORECASE)
_OWNER_ALONE: Final = 0o600
_ALL_READ: Final = 0o644


def as_base64(content: bytes) -> bytes:
    """The text that settings take for a key."""
    return base64.b64encode(content)


def write_out(content: bytes) -> None:
    """To standard output, as it is."""
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def require_no_key(*paths: Path) -> None:
    """Raises `SettingError` where a file has something already: every token of a lost key is worth nothing.

    Empty files, such as those of mktemp, and devices are written to."""
    for path in paths:
        if path.is_file() and path.stat().st_size:
            raise SettingError(f"{path} is there already, and a key that is lost makes all its tokens worthless")


def write_key(path: Path, content: bytes, *, secret: bool) -> None:
    """Write a key, one that is secret for its owner alone. OSError."""
    mode = _OWNER_ALONE if secret else _ALL_READ
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)


def duration_seconds(text: str) -> int:
    """Seconds of `30m`, `1h`, `3d`, `2w`, `10y`. `SettingError`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise SettingError(f"--expiry-time {text!r} must be a number and s, m (minutes), h, d, w or y")
    return int(found[1]) * _SECONDS[found[2].lower()]


def claims_of(subject: str, expiry_time: str | None) -> dict[str, Any]:
    """A token's claims. `SettingError`."""
    claims: dict[str, Any] = {"sub": subject}
    if expiry_time:
        claims["exp"] = int(time.time()) + duration_seconds(expiry_time)
    return claims


def headers_of(pairs: Sequence[str]) -> dict[str, str]:
    """From `name=value`. `SettingError`."""
    headers: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise SettingError(f"--headers {pair!r} must be NAME=VALUE")
        headers[name] = value
    return headers


def one_key(secret_key: str | None, other: str | None, other_name: str) -> None:
    """`SettingError` unless exactly one is given."""
    if bool(secret_key) == bool(other):
        raise SettingError(f"give either --secret-key or {other_name}")


def check_algorithm(algorithm: str, public_key: str | None) -> None:
    """`SettingError` when a public key is not of the algorithm's kind."""
    if not public_key:
        return
    fitting = algorithms_of("--public-key", read_public_key("--public-key", public_key))
    if family(algorithm) != family(fitting[0]):
        raise SettingError(f"--public-key is for {', '.join(fitting)}; tell so with --signature-algorithm")


def given_token(argument: str | None, file: Path | None, *, stdin: bool) -> str:
    """The token, from where it is said to be. `SettingError`, OSError."""
    if stdin:
        return sys.stdin.readline().strip()
    if file is not None:
        return file.read_text(encoding="utf-8").strip()
    if not argument:
        raise SettingError("no token: give it as an argument, by --token-file, --stdin, or in TOKEN")
    if _is_file(argument):
        raise SettingError(f"{argument} is a file; to read a token from it: --token-file {shlex.quote(argument)}")
    return argument.strip()


def _is_file(argument: str) -> bool:
    try:
        return Path(argument).is_file()
    except OSError:  # A token is longer than the name of a file may be.
        return False

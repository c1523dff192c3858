"""Checks a password against a line of a file that `htpasswd` makes: bcrypt, apr1 (MD5), SHA and crypt.

bcrypt and the system's crypt take as long as they are meant to: call this in a thread.
"""

from __future__ import annotations

import base64
import ctypes
import ctypes.util
import hashlib
import hmac
import threading
from functools import lru_cache
from typing import Any, Final

from magnetar.core.errors import SettingError

_APR1: Final = b"$apr1$"
_SHA: Final = "{SHA}"
_BCRYPT: Final = ("$2a$", "$2b$", "$2y$")
_CRYPT_DIGITS: Final = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_APR1_ROUNDS: Final = 1_000
_APR1_ORDER: Final = ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5))
"""Which bytes of the digest make each group of four digits."""
_BCRYPT_BYTES_MAX: Final = 72
"""bcrypt looks at no more; the library refuses longer passwords instead of ignoring their end."""

_crypt_lock: Final = threading.Lock()


def check_kind(user: str, encrypted: str) -> None:
    """`SettingError` when a line's password is written in a way that is not known here."""
    if encrypted.startswith((_APR1.decode(), _SHA, *_BCRYPT)):
        return
    if _system_crypt() is None:
        raise SettingError(
            f"basicAuthConf: the password of {user} needs the system's libcrypt, which is not here; write it anew with "
            "htpasswd -B"
        )


def password_fits(password: bytes, encrypted: str) -> bool:
    """Whether a password is the one that was encrypted."""
    if encrypted.startswith(_BCRYPT):
        return _bcrypt_fits(password, encrypted.encode())
    if encrypted.startswith(_SHA):
        made = _SHA + base64.b64encode(hashlib.sha1(password, usedforsecurity=False).digest()).decode()
        return hmac.compare_digest(made.encode(), encrypted.encode())
    if encrypted.startswith(_APR1.decode()):
        salt = encrypted.encode()[len(_APR1) :].partition(b"$")[0][:8]
        return hmac.compare_digest(apr1(password, salt), encrypted.encode())
    made_by_system = _crypt(password, encrypted.encode())
    return made_by_system is not None and hmac.compare_digest(made_by_system, encrypted.encode())


def _bcrypt_fits(password: bytes, encrypted: bytes) -> bool:
    import bcrypt  # A binary library that only such lines need.

    try:
        return bcrypt.checkpw(password[:_BCRYPT_BYTES_MAX], encrypted)
    except ValueError:
        return False


def apr1(password: bytes, salt: bytes) -> bytes:
    """Apache httpd's variant of the MD5 crypt of FreeBSD (httpd's documentation, "Password Formats")."""
    final = _md5(password + salt + password)
    mixed = password + _APR1 + salt + (final * (len(password) // 16 + 1))[: len(password)]
    bits = len(password)
    while bits:
        mixed += b"\0" if bits & 1 else password[:1]
        bits >>= 1
    digest = _md5(mixed)
    for number in range(_APR1_ROUNDS):
        odd = number & 1
        step = password if odd else digest
        if number % 3:
            step += salt
        if number % 7:
            step += password
        digest = _md5(step + (digest if odd else password))
    text = b"".join(
        _digits(digest[first] << 16 | digest[second] << 8 | digest[third], 4) for first, second, third in _APR1_ORDER
    )
    return _APR1 + salt + b"$" + text + _digits(digest[11], 2)


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _digits(value: int, count: int) -> bytes:
    return bytes(_CRYPT_DIGITS[value >> 6 * place & 0x3F] for place in range(count))


@lru_cache(maxsize=1)
def _system_crypt() -> Any | None:
    """`crypt` of the system's library; Python's own module for it ends with 3.12."""
    name = ctypes.util.find_library("crypt") or "libcrypt.so.1"
    try:
        crypt = ctypes.CDLL(name).crypt
    except (OSError, AttributeError):
        return None
    crypt.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    crypt.restype = ctypes.c_char_p
    return crypt


def _crypt(password: bytes, setting: bytes) -> bytes | None:
    crypt = _system_crypt()
    if crypt is None or b"\0" in password:
        return None
    with _crypt_lock:  # Its answer stands in one buffer.
        made: bytes | None = crypt(password, setting)
    return made

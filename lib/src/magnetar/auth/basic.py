"""Users and passwords (method `basic`; Pulsar `AuthenticationProviderBasic`)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

from magnetar.auth.credentials import METHOD_BASIC, AuthenticationFailed, Certificate, Credentials, Identity
from magnetar.auth.keys import read_data
from magnetar.auth.passwords import check_kind, password_fits
from magnetar.core.errors import SettingError

SETTING: Final = "basicAuthConf"

KEPT_MAX: Final = 10_000
"""Passwords that were right of which a mark is kept, 100 bytes each: HTTP shows one with each request, and bcrypt
takes 50 ms or more. The oldest make room."""

PASSWORD_BYTES_MAX: Final = 1_024
"""What a person types is shorter; apr1 goes over all of it a thousand times, and a frame may have 5 MB of it."""

CHECKS_MAX: Final = 4
"""Passwords looked at side by side: those who guess must not take all of the machine."""


class BasicProvider:
    """Checks `user:password` against a file, which is read once."""

    method: Final = METHOD_BASIC

    def __init__(self, users: str) -> None:
        """`SettingError` for a file that cannot be used."""
        self._users = read_users(read_data(SETTING, users))
        # What is kept is of no use to who reads it out of this process's memory.
        self._mark_key = secrets.token_bytes(32)
        self._right: dict[bytes, None] = {}
        self._checks = asyncio.Semaphore(CHECKS_MAX)

    def http_credentials(self, authorization: str, certificate: Certificate | None) -> Credentials | None:
        """From the header `Authorization: Basic …`; None when there is none. `AuthenticationFailed`."""
        del certificate
        scheme, _, content = authorization.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            return Credentials(METHOD_BASIC, base64.b64decode(content.strip(), validate=True))
        except (binascii.Error, ValueError):
            raise AuthenticationFailed("what follows Basic is not base64") from None

    async def authenticate(self, credentials: Credentials) -> Identity:
        """The user. `AuthenticationFailed`."""
        user_bytes, colon, password = credentials.data.partition(b":")
        user = user_bytes.decode("utf-8", "replace")
        encrypted = self._users.get(user)
        if not colon or encrypted is None or len(password) > PASSWORD_BYTES_MAX:
            raise AuthenticationFailed("Unknown user or invalid password")
        mark = hmac.digest(self._mark_key, credentials.data, hashlib.sha256)
        if mark not in self._right:
            async with self._checks:
                fits = await asyncio.get_running_loop().run_in_executor(None, password_fits, password, encrypted)
            if not fits:
                raise AuthenticationFailed("Unknown user or invalid password")
            self._keep(mark)
        return Identity(user, METHOD_BASIC)

    def _keep(self, mark: bytes) -> None:
        self._right[mark] = None
        while len(self._right) > KEPT_MAX:
            del self._right[next(iter(self._right))]


def read_users(content: bytes) -> dict[str, str]:
    """Users and their encrypted passwords. `SettingError` for lines that are none; empty ones and comments are left
    out."""
    users: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        user, colon, encrypted = text.partition(":")
        if not colon or not user or not encrypted or ":" in encrypted:
            raise SettingError(f"{SETTING}: line {number} is not user:password as htpasswd writes it")
        check_kind(user, encrypted)
        users[user] = encrypted
    return users

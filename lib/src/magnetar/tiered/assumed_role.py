"""Credentials of a role: asked of Amazon's STS by the library boto3, with those that the environment offers."""

from __future__ import annotations

import asyncio
from datetime import UTC
from typing import TYPE_CHECKING, Any

from magnetar.core.errors import SettingError

if TYPE_CHECKING:
    from obstore.store import S3Credential


class AssumedRole:
    """Called by the store whenever the credentials that it has expire."""

    __slots__ = ("_client", "_role", "_session_name")

    def __init__(self, role: str, session_name: str, region: str) -> None:
        try:
            import boto3  # Only who assumes a role needs it.
        except ImportError:
            raise SettingError(
                "s3ManagedLedgerOffloadRole needs the library boto3: install magnetar-lib with the extra s3-role"
            ) from None
        try:
            self._client: Any = boto3.client("sts", region_name=region or "us-east-1")
        except ValueError as error:  # The library's own for such names is one.
            raise SettingError(f"s3ManagedLedgerOffloadRole={role} cannot be taken on in {region}: {error}") from None
        self._role = role
        self._session_name = session_name

    async def __call__(self) -> S3Credential:
        """Fresh credentials. The library waits for the network, and therefore does so in a thread."""
        return await asyncio.to_thread(self._assume)

    def _assume(self) -> S3Credential:
        answer = self._client.assume_role(RoleArn=self._role, RoleSessionName=self._session_name)
        given = answer["Credentials"]
        return {
            "access_key_id": given["AccessKeyId"],
            "secret_access_key": given["SecretAccessKey"],
            "token": given["SessionToken"],
            # Its own zone of UTC is another object than the one that the store's library knows.
            "expires_at": given["Expiration"].astimezone(UTC),
        }

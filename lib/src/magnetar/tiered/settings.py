"""Where a store is, and how ledgers are cut for it, from the settings and policies that Pulsar has for that
(OffloadPoliciesImpl, TieredStorageConfiguration)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.core.errors import SettingError

S3_DRIVERS: Final = ("aws-s3", "S3")
"""Upper and lower case do not matter in a setting."""
BLOCK_BYTES_MIN: Final = 5 << 20
"""The smallest part of an upload that S3 takes; Apache's broker refuses less, too."""
BLOCK_BYTES_MAX: Final = (1 << 31) - 1
BLOCK_BYTES_DEFAULT: Final = 64 << 20
READ_BUFFER_BYTES_MIN: Final = 1 << 10
READ_BUFFER_BYTES_MAX: Final = 64 << 20
READ_BUFFER_BYTES_DEFAULT: Final = 1 << 20
PREFETCH_ROUNDS_MAX: Final = 64

_PREFIX: Final = "managedLedgerOffload"
_SPECIFIC: Final = "ManagedLedgerOffload"
_PROVIDER_NAMES: Final = {"aws-s3": "AWS_S3", "S3": "S3"}
"""How Apache's broker spells the driver among the properties that it stores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlace:
    """One bucket, and what is needed to reach it."""

    bucket: str
    region: str = ""
    endpoint: str = ""
    """Empty: the provider's own for the region."""
    credentials: tuple[str, str] | None = field(default=None, repr=False)
    """Id and secret; None: a role, or what the environment offers."""
    role: str = ""
    role_session_name: str = "pulsar-s3-offload"

    def __str__(self) -> str:
        return f"bucket {self.bucket}" + (f" at {self.endpoint}" if self.endpoint else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadStoreSettings:
    """One store, as a broker's settings or a namespace's policies describe it."""

    driver: str
    place: StorePlace
    block_bytes_max: int = BLOCK_BYTES_DEFAULT
    read_buffer_bytes: int = READ_BUFFER_BYTES_DEFAULT
    prefetch_rounds: int = 1

    def __post_init__(self) -> None:
        _check_range("MaxBlockSizeInBytes", self.block_bytes_max, BLOCK_BYTES_MIN, BLOCK_BYTES_MAX)
        _check_range("ReadBufferSizeInBytes", self.read_buffer_bytes, READ_BUFFER_BYTES_MIN, READ_BUFFER_BYTES_MAX)
        _check_range("PrefetchRounds", self.prefetch_rounds, 0, PREFETCH_ROUNDS_MAX)

    def stored_metadata(self) -> dict[str, str]:
        """Driver properties that are stored beside a ledger's offload, with the names and values of Apache's broker."""
        return {
            "managedLedgerOffloadDriver": _PROVIDER_NAMES[self.driver],
            "bucket": self.place.bucket,
            "region": self.place.region,
            "serviceEndpoint": self.place.endpoint,
        }


def s3_settings(properties: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> OffloadStoreSettings:
    """The settings of an S3 store from Apache's names: for `aws-s3`, `s3ManagedLedgerOffload…` comes before
    `managedLedgerOffload…`. For `S3` the variables that Apache takes its credentials from count where none are set.

    Values that are missing or empty are the defaults. Raises `SettingError`."""
    driver = driver_of(properties)
    if driver not in S3_DRIVERS:
        raise SettingError(f"managedLedgerOffloadDriver={driver}: the drivers are {', '.join(S3_DRIVERS)}")
    prefixes = (f"s3{_SPECIFIC}", _PREFIX) if driver == "aws-s3" else (_PREFIX,)
    bucket, region, endpoint = (_text(properties, prefixes, name) for name in ("Bucket", "Region", "ServiceEndpoint"))
    if not bucket:
        raise SettingError(f"{prefixes[0]}Bucket must be set for the driver {driver}")
    if not region and not endpoint:
        raise SettingError(f"{prefixes[0]}Region or {prefixes[0]}ServiceEndpoint must be set for the driver {driver}")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise SettingError(f"{_PREFIX}ServiceEndpoint={endpoint}: begins with neither http:// nor https://")
    credentials = _credentials(properties)
    if credentials is None and driver == "S3" and not properties.get(f"s3{_SPECIFIC}Role"):
        credentials = _credentials_of(environment)
    place = StorePlace(
        bucket=bucket,
        region=region,
        endpoint=endpoint.rstrip("/"),
        credentials=credentials,
        role=properties.get(f"s3{_SPECIFIC}Role") or "",
        role_session_name=properties.get(f"s3{_SPECIFIC}RoleSessionName") or "pulsar-s3-offload",
    )
    return OffloadStoreSettings(
        driver=driver,
        place=place,
        block_bytes_max=_number(properties, prefixes, "MaxBlockSizeInBytes", BLOCK_BYTES_DEFAULT),
        read_buffer_bytes=_number(properties, prefixes, "ReadBufferSizeInBytes", READ_BUFFER_BYTES_DEFAULT),
        prefetch_rounds=_number(properties, prefixes, "PrefetchRounds", 1),
    )


def driver_of(properties: Mapping[str, str]) -> str:
    """The driver's name, spelled as Apache spells it."""
    asked = properties.get(f"{_PREFIX}Driver") or ""
    for known in S3_DRIVERS:
        if asked.lower() == known.lower():
            return known
    return asked


def _credentials(properties: Mapping[str, str]) -> tuple[str, str] | None:
    credential_id, secret = (properties.get(f"s3{_SPECIFIC}Credential{part}") or "" for part in ("Id", "Secret"))
    if bool(credential_id) != bool(secret):
        raise SettingError(f"s3{_SPECIFIC}CredentialId and s3{_SPECIFIC}CredentialSecret go together")
    return (credential_id, secret) if credential_id else None


def _credentials_of(environment: Mapping[str, str]) -> tuple[str, str] | None:
    credential_id, secret = (environment.get(name, "").strip() for name in ("ACCESS_KEY_ID", "ACCESS_KEY_SECRET"))
    return (credential_id, secret) if credential_id and secret else None


def _text(properties: Mapping[str, str], prefixes: Sequence[str], name: str) -> str:
    return _named(properties, prefixes, name)[1]


def _named(properties: Mapping[str, str], prefixes: Sequence[str], name: str) -> tuple[str, str]:
    """The setting that counts, by its whole name, and its text; the first name and "" where none is set."""
    for prefix in prefixes:
        if text := (properties.get(prefix + name) or "").strip():
            return prefix + name, text
    return prefixes[0] + name, ""


def _number(properties: Mapping[str, str], prefixes: Sequence[str], name: str, default: int) -> int:
    whole_name, text = _named(properties, prefixes, name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"{whole_name}={text}: is no number") from None


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise SettingError(f"{_PREFIX}{name}={value}: must be {low} to {high}")

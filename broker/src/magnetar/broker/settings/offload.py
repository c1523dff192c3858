"""What an operator may set about tiered storage, under Pulsar's names (`ServiceConfiguration`, and those that its
brokers read into `OffloadPoliciesImpl` beside these)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.core.setting import check_ranges, setting
from magnetar.tiered.policy import DELETION_LAG_MS, RUNS_MAX, ReadFirst
from magnetar.tiered.settings import (
    BLOCK_BYTES_DEFAULT,
    BLOCK_BYTES_MAX,
    BLOCK_BYTES_MIN,
    PREFETCH_ROUNDS_MAX,
    READ_BUFFER_BYTES_DEFAULT,
    READ_BUFFER_BYTES_MAX,
    READ_BUFFER_BYTES_MIN,
)

RUNS_AT_ONCE_MAX: Final = 64
"""Offloads at a time: each holds a block in memory, 64 MiB by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """Where closed ledgers go, and when; namespaces and topics may say otherwise."""

    driver: str = setting("managedLedgerOffloadDriver", "")
    """`aws-s3` or `S3`, for any store that speaks S3's protocol; `filesystem`; empty: nothing is offloaded."""
    runs_max: int = setting("managedLedgerOffloadMaxThreads", RUNS_MAX, low=1, high=RUNS_AT_ONCE_MAX)
    """Ledgers that this broker offloads at a time, to one store."""
    prefetch_rounds: int = setting("managedLedgerOffloadPrefetchRounds", 1, low=0, high=PREFETCH_ROUNDS_MAX)
    """Read buffers that are fetched ahead of who reads."""
    threshold_bytes: int = setting("managedLedgerOffloadAutoTriggerSizeThresholdBytes", -1, below_zero=-1)
    """Bytes of a topic's newest ledgers that stay on the bookies alone; below 0: any number."""
    threshold_seconds: int = setting("managedLedgerOffloadThresholdInSeconds", -1, below_zero=-1)
    """Seconds after its end at which a ledger is offloaded; below 0: none is for its age."""
    deletion_lag_ms: int = setting("managedLedgerOffloadDeletionLagMs", DELETION_LAG_MS)
    """Milliseconds after its offload at which the copy on the bookies is deleted."""
    read_first: ReadFirst = setting("managedLedgerDataReadPriority", ReadFirst.TIERED_STORAGE)
    """Where a ledger is read that is in both places."""
    on_load: bool = setting("triggerOffloadOnTopicLoad", False)
    """Whether what is due is offloaded as soon as a topic is loaded."""
    idle_seconds_max: int = setting(
        "managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds", 600, low=1, dynamic="broker"
    )
    """Seconds after which a reader of an offloaded ledger that nobody uses is closed."""

    bucket: str = setting("managedLedgerOffloadBucket", "")
    """This and the next four are for either driver; those of `aws-s3` by their own names come before them."""
    region: str = setting("managedLedgerOffloadRegion", "")
    endpoint: str = setting("managedLedgerOffloadServiceEndpoint", "")
    """The URL of a store that is not AWS's."""
    block_bytes_max: int = setting(
        "managedLedgerOffloadMaxBlockSizeInBytes", BLOCK_BYTES_DEFAULT, low=BLOCK_BYTES_MIN, high=BLOCK_BYTES_MAX
    )
    """Bytes of one part of an upload."""
    read_buffer_bytes: int = setting(
        "managedLedgerOffloadReadBufferSizeInBytes",
        READ_BUFFER_BYTES_DEFAULT,
        low=READ_BUFFER_BYTES_MIN,
        high=READ_BUFFER_BYTES_MAX,
    )
    """Bytes that one request to the store reads."""
    file_uri: str = setting("fileSystemURI", "")
    """Where `filesystem` puts ledgers: a folder that every broker has, as `file:///…`."""
    s3_bucket: str = setting("s3ManagedLedgerOffloadBucket", "")
    s3_region: str = setting("s3ManagedLedgerOffloadRegion", "")
    s3_endpoint: str = setting("s3ManagedLedgerOffloadServiceEndpoint", "")
    s3_block_bytes_max: int = setting(
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes", BLOCK_BYTES_DEFAULT, low=BLOCK_BYTES_MIN, high=BLOCK_BYTES_MAX
    )
    """Bytes of one part of an upload."""
    s3_read_buffer_bytes: int = setting(
        "s3ManagedLedgerOffloadReadBufferSizeInBytes",
        READ_BUFFER_BYTES_DEFAULT,
        low=READ_BUFFER_BYTES_MIN,
        high=READ_BUFFER_BYTES_MAX,
    )
    """Bytes that one request to the store reads."""
    s3_credential_id: str = setting("s3ManagedLedgerOffloadCredentialId", "")
    s3_credential_secret: str = setting("s3ManagedLedgerOffloadCredentialSecret", "", secret=True)
    s3_role: str = setting("s3ManagedLedgerOffloadRole", "")
    """A role to take on; empty, without an id either: what the environment offers."""
    s3_role_session_name: str = setting("s3ManagedLedgerOffloadRoleSessionName", "pulsar-s3-offload")

    def __post_init__(self) -> None:
        check_ranges(self)

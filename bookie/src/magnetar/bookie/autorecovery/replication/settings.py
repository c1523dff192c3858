"""What can be set about the copying of ledgers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import check_ranges, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """Bounds and times; BookKeeper's names in brackets."""

    entry_batch_size: int = setting("rereplicationEntryBatchSize", 1000, low=1, high=1_000_000)
    """Entries that are read at a time. BookKeeper's default is 10, Pulsar's 100: there
    the writes of one batch end before the next is read, here they overlap within `outstanding_bytes_max`."""
    batch_bytes_max: int = 1 * MIB
    """What one batch read asks for; bounds the memory of one read together with the frame size."""
    outstanding_bytes_max: int = 4 * MIB
    """Bytes of one ledger that were sent to the new bookies and not confirmed yet."""
    bytes_per_second: int = setting("replicationRateByBytes", 0, below_zero=0)
    """All copies of this process together; 0: no limit."""
    ledgers_at_a_time: int = 4
    """Ledgers that are copied at once; each may have its outstanding bytes twice in memory."""
    verification_percentage: int = 0
    """How many of a fragment's entries beside the first and the last one are read to judge it
    [auditorLedgerVerificationPercentage]."""
    check_reads_in_flight_max: int = setting("inFlightReadEntryNumInLedgerChecker", 64, low=1, high=100_000)
    """Reads that all checks of this process together have outstanding, at most."""
    add_timeout_seconds: float = 30.0
    """A new bookie that confirms nothing for this long is replaced by another one [addEntryTimeoutSec]."""
    failure_backoff_seconds: float = setting("rwRereplicateBackoffMs", 5.0)
    """Seconds that a worker waits after a failure."""
    failed_lock_seconds_max: float = setting("lockReleaseOfFailedLedgerGracePeriod", 300.0, unit="ms")
    """How long a ledger that failed stays locked before somebody may try again.
    The first failures cost 1/32 of it, doubled with each one."""
    open_ledger_grace_seconds: float = setting("openLedgerRereplicationGracePeriod", 30.0, unit="ms")
    """How long a writer has to replace a lost bookie itself before its ledger is fenced and closed."""
    recovery_digest_type: str = "CRC32"
    """The digest type of ledgers so old that their metadata names none [bookieRecoveryDigestType]."""
    recovery_password: bytes = b""
    """The password of ledgers so old that their metadata holds none [bookieRecoveryPasswd]."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, value, low, high in (
            ("auditorLedgerVerificationPercentage", self.verification_percentage, 0, 100),
            ("the number of ledgers replicated at a time", self.ledgers_at_a_time, 1, 1_000),
        ):
            if not low <= value <= high:
                raise SettingError(f"{name} is out of bounds: {value}; {low} to {high} are accepted")


DEFAULT_REPLICATION_SETTINGS: Final = ReplicationSettings()

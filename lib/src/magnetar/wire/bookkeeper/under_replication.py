"""The values of AutoRecovery's nodes: protobuf text, but for the marks of the last checks, which are protobuf.

Byte for byte as Apache's two implementations write them (BookKeeper: meta/ZkLedgerUnderreplicationManager,
meta/ZkLedgerAuditorManager; Pulsar: metadata/bookkeeper/PulsarLedgerUnderreplicationManager).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, TypeAlias, TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from magnetar.core.errors import PeerError
from magnetar.wire.bookkeeper.generated.under_replication_pb2 import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    PlacementPolicyCheckFormat,
    ReplicasCheckFormat,
    UnderreplicatedLedgerFormat,
)
from magnetar.wire.protobuf import parse_text

LAYOUT_TYPE: Final = "BASIC"
LAYOUT_VERSION: Final = 1


class CheckKind(enum.Enum):
    """The auditor's checks that leave a mark of their last run."""

    ALL_LEDGERS = "checkallledgers"
    PLACEMENT = "placementpolicycheck"
    REPLICAS = "replicascheck"


_CheckMessage: TypeAlias = CheckAllLedgersFormat | PlacementPolicyCheckFormat | ReplicasCheckFormat

T = TypeVar("T", bound=Message)


def encode_layout() -> bytes:
    """The value of the node `LAYOUT`."""
    return _text(LedgerRereplicationLayoutFormat(type=LAYOUT_TYPE, version=LAYOUT_VERSION))


def decode_layout(value: bytes) -> tuple[str, int]:
    """(type, version). Raises `PeerError`."""
    layout = _parsed(value, LedgerRereplicationLayoutFormat())
    return layout.type, layout.version


def encode_underreplicated(missing_replicas: Iterable[str], created_ms: int | None) -> bytes:
    """The value of a ledger's mark."""
    message = UnderreplicatedLedgerFormat(replica=missing_replicas)
    if created_ms is not None:
        message.ctime = created_ms
    return _text(message)


def decode_underreplicated(value: bytes) -> tuple[tuple[str, ...], int | None]:
    """(bookies whose replicas are missing, when it was marked or None). Raises `PeerError`."""
    message = _parsed(value, UnderreplicatedLedgerFormat())
    return tuple(message.replica), message.ctime if message.HasField("ctime") else None


def encode_lock(holder: str) -> bytes:
    """The value of a lock. Apache writes the host's name as the holder."""
    return _text(LockDataFormat(bookieId=holder))


def decode_lock(value: bytes) -> str:
    """Who holds a lock; empty when the holder did not say. Raises `PeerError`."""
    return _parsed(value, LockDataFormat()).bookieId


def encode_vote(bookie_id: str) -> bytes:
    """The value of a vote in the auditor's election, and of the election's node once there is an auditor."""
    return _text(AuditorVoteFormat(bookieId=bookie_id))


def decode_vote(value: bytes) -> str:
    """Whose vote it is. Raises `PeerError`."""
    return _parsed(value, AuditorVoteFormat()).bookieId


def encode_last_check(kind: CheckKind, time_ms: int) -> bytes:
    """The mark that a check leaves."""
    message: _CheckMessage
    match kind:
        case CheckKind.ALL_LEDGERS:
            message = CheckAllLedgersFormat(checkAllLedgersCTime=time_ms)
        case CheckKind.PLACEMENT:
            message = PlacementPolicyCheckFormat(placementPolicyCheckCTime=time_ms)
        case CheckKind.REPLICAS:
            message = ReplicasCheckFormat(replicasCheckCTime=time_ms)
    return message.SerializeToString()


def decode_last_check(kind: CheckKind, value: bytes) -> int | None:
    """When a check ran last; None if the mark does not say. Raises `PeerError`."""
    try:
        match kind:
            case CheckKind.ALL_LEDGERS:
                all_ledgers = CheckAllLedgersFormat.FromString(value)
                return all_ledgers.checkAllLedgersCTime if all_ledgers.HasField("checkAllLedgersCTime") else None
            case CheckKind.PLACEMENT:
                placement = PlacementPolicyCheckFormat.FromString(value)
                known = placement.HasField("placementPolicyCheckCTime")
                return placement.placementPolicyCheckCTime if known else None
            case CheckKind.REPLICAS:
                replicas = ReplicasCheckFormat.FromString(value)
                return replicas.replicasCheckCTime if replicas.HasField("replicasCheckCTime") else None
    except DecodeError as error:
        raise PeerError(f"damaged mark of the last {kind.value}: {error}") from None


def _text(message: Message) -> bytes:
    return text_format.MessageToString(message, as_utf8=False).encode("ascii")


def _parsed(value: bytes, message: T) -> T:
    parsed = parse_text(type(message), value)
    if not parsed.IsInitialized():
        raise PeerError(f"{type(message).__name__} with missing fields")
    return parsed

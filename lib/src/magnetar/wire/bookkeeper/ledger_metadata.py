"""What the metadata store holds about a ledger, and its bytes in the three formats that BookKeeper reads.

Every format begins with the line `BookieMetadataFormatVersion\\t<N>`. 3 is written: a varint size and the protobuf
message. 2 is the same message as protobuf text, 1 is lines of text; both are read only
(BookKeeper: meta/LedgerMetadataSerDe).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Final, cast

from google.protobuf.message import DecodeError
from magnetar.core.errors import PeerError
from magnetar.wire.bookkeeper.generated.ledger_metadata_pb2 import LedgerMetadataFormat
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.protobuf import parse_text

VERSION_PREFIX: Final = b"BookieMetadataFormatVersion\t"
_VERSION_1_IN_RECOVERY: Final = -102
_VARINT_BYTES_MAX: Final = 5
"""A size of up to 32 bits."""


class LedgerState(enum.IntEnum):
    """Whether somebody writes the ledger; the protobuf's numbers."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


_DIGEST_NUMBER: Final = {"CRC32": 1, "HMAC": 2, "CRC32C": 3, "DUMMY": 4}
_DIGEST_NAME: Final = {number: name for name, number in _DIGEST_NUMBER.items()}


@dataclass(slots=True, kw_only=True)
class LedgerMetadata:
    """Where a ledger's entries are and where it ends. Treat as a value: change it through `dataclasses.replace`."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    ensembles: list[tuple[int, list[str]]]
    """Segments: the first entry id and the bookies from there on; the first one begins at 0."""
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = -1
    """Only a closed ledger has one; -1 if it is empty."""
    length_bytes: int = 0
    digest_type: str | None = "CRC32C"
    """None in metadata of format 1, which did not keep it."""
    password: bytes = b""
    created_ms: int | None = None
    custom_metadata: dict[str, bytes] = field(default_factory=dict)
    creator_token: int = 0
    """Tells a creator whose connection broke whether the ledger it finds is its own."""

    def ensemble_of(self, entry_id: int) -> list[str]:
        """The bookies of the segment that an entry belongs to."""
        for first_entry_id, bookies in reversed(self.ensembles):
            if entry_id >= first_entry_id:
                return bookies
        return self.ensembles[0][1]

    def with_ensemble(self, first_entry_id: int, bookies: list[str]) -> LedgerMetadata:
        """The metadata with another last segment; one with the same first entry is replaced."""
        kept = [segment for segment in self.ensembles if segment[0] < first_entry_id]
        return replace(self, ensembles=[*kept, (first_entry_id, list(bookies))])


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """Format 3, byte for byte as BookKeeper writes it (but for the order of custom metadata, which is its map's)."""
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length_bytes,
        lastEntryId=metadata.last_entry_id,
        state=cast("LedgerMetadataFormat.State", int(metadata.state)),
        ackQuorumSize=metadata.ack_quorum,
    )
    for first_entry_id, bookies in metadata.ensembles:
        message.segment.add(firstEntryId=first_entry_id, ensembleMember=bookies)
    if metadata.digest_type is not None:
        message.digestType = cast("LedgerMetadataFormat.DigestType", _DIGEST_NUMBER[metadata.digest_type])
        message.password = metadata.password
    if metadata.created_ms is not None:
        message.ctime = metadata.created_ms
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    message.cToken = metadata.creator_token
    body = message.SerializeToString()
    return VERSION_PREFIX + b"3\n" + _varint(len(body)) + body


def encode_offloaded_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """The bare protobuf message as an index of tiered storage has it (Pulsar: OffloadUtils.buildLedgerMetadataFormat):
    closed, without password and creator's token."""
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length_bytes,
        lastEntryId=metadata.last_entry_id,
        state=LedgerMetadataFormat.CLOSED,
        ackQuorumSize=metadata.ack_quorum,
        ctime=metadata.created_ms if metadata.created_ms is not None else -1,
        # Metadata of format 1 did not keep it; BookKeeper takes its first default then.
        digestType=cast("LedgerMetadataFormat.DigestType", _DIGEST_NUMBER[metadata.digest_type or "CRC32"]),
    )
    for first_entry_id, bookies in metadata.ensembles:
        message.segment.add(firstEntryId=first_entry_id, ensembleMember=bookies)
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    return message.SerializeToString()


def decode_ledger_metadata_message(data: bytes) -> LedgerMetadata:
    """The bare protobuf message. An index of tiered storage may name no bookies. Raises `PeerError`."""
    try:
        return _from_message(LedgerMetadataFormat.FromString(data), bookies_needed=False)
    except (DecodeError, ValueError, KeyError) as error:
        raise PeerError(f"damaged ledger metadata: {error}") from None


def decode_ledger_metadata(data: bytes) -> LedgerMetadata:
    """The metadata of any of the three formats. Raises `PeerError`."""
    head, newline, rest = data.partition(b"\n")
    if not newline or not head.startswith(VERSION_PREFIX):
        raise PeerError("ledger metadata without its format version")
    version = head[len(VERSION_PREFIX) :]
    try:
        if version == b"3":
            return _from_message(LedgerMetadataFormat.FromString(_delimited(rest)))
        if version == b"2":
            return _from_message(parse_text(LedgerMetadataFormat, rest))
        if version == b"1":
            return _from_lines(rest.decode("utf-8").split("\n"))
    except (DecodeError, BadProtobuf, ValueError, IndexError) as error:
        raise PeerError(f"damaged ledger metadata: {error}") from None
    raise PeerError(f"ledger metadata of the unknown format {version!r}")


def _from_message(message: LedgerMetadataFormat, *, bookies_needed: bool = True) -> LedgerMetadata:
    if not message.IsInitialized():
        raise PeerError("ledger metadata with missing fields")
    segments = [(segment.firstEntryId, list(segment.ensembleMember)) for segment in message.segment]
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        # Ledgers older than acknowledgement quorums waited for the whole write quorum.
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        ensembles=_checked(segments) if segments or bookies_needed else [],
        state=LedgerState(message.state),
        last_entry_id=message.lastEntryId if message.HasField("lastEntryId") else -1,
        length_bytes=message.length,
        digest_type=_DIGEST_NAME[message.digestType] if message.HasField("digestType") else None,
        password=message.password,
        created_ms=message.ctime if message.HasField("ctime") else None,
        custom_metadata={pair.key: pair.value for pair in message.customMetadata},
        creator_token=message.cToken,
    )


def _from_lines(lines: list[str]) -> LedgerMetadata:
    write_quorum, ensemble_size, length_bytes = int(lines[0]), int(lines[1]), int(lines[2])
    metadata = LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        ensembles=[],
        length_bytes=length_bytes,
        digest_type=None,
    )
    segments: list[tuple[int, list[str]]] = []
    for line in lines[3:]:
        if not line:
            continue
        fields = line.split("\t")
        if fields[-1] == "CLOSED":
            last_entry_id = int(fields[0])
            recovering = last_entry_id == _VERSION_1_IN_RECOVERY
            metadata.state = LedgerState.IN_RECOVERY if recovering else LedgerState.CLOSED
            metadata.last_entry_id = -1 if recovering else last_entry_id
            break
        segments.append((int(fields[0]), fields[1:]))
    metadata.ensembles = _checked(segments)
    return metadata


def _checked(segments: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    if not segments:
        raise PeerError("ledger metadata without an ensemble")
    return sorted(segments)


def _delimited(data: bytes) -> bytes:
    size = 0
    for index in range(min(len(data), _VARINT_BYTES_MAX)):
        size |= (data[index] & 0x7F) << (7 * index)
        if data[index] < 0x80:
            body = data[index + 1 : index + 1 + size]
            if len(body) != size:
                raise PeerError("ledger metadata that is cut short")
            return body
    raise PeerError("ledger metadata that is cut short")


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)

"""BookKeeper's protocol version 3: one protobuf message per frame, matched by transaction id.

A bookie's side of all of it, a client's side of what ours ask. Encoders give whole frames (length included); decoders
take one frame's body. Brokers use version 2, so only the answers to adds are made for many at once.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from google.protobuf.message import DecodeError
from magnetar.core.errors import PeerError
from magnetar.wire.bookkeeper.codes import CODE_OF_V3_STATUS, V3_STATUS, BookieCode
from magnetar.wire.bookkeeper.generated import bookkeeper_protocol_pb2 as pb
from magnetar.wire.framing import frame

HIGH_PRIORITY: Final = 100
"""What BookKeeper's clients put into the header of requests that may use a full bookie's reserve."""

INFO_TOTAL_DISK_CAPACITY: Final = 0x1
INFO_FREE_DISK_SPACE: Final = 0x2


class Operation(enum.IntEnum):
    """What a request asks for; the numbers of the protocol."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    RANGE_READ_ENTRY = 3
    RANGE_ADD_ENTRY = 4
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    GET_LIST_OF_ENTRIES_OF_LEDGER = 11
    BATCH_READ_ENTRY = 12


@dataclass(slots=True, kw_only=True)
class ReadRequest:
    """One entry; with `previous_lac` and `timeout_ms` a long poll for the last add confirmed."""

    ledger_id: int
    entry_id: int
    master_key: bytes = b""
    fence: bool = False
    piggyback: bool = False
    previous_lac: int | None = None
    timeout_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class AddRequest:
    """One whole entry to be stored."""

    ledger_id: int
    entry_id: int
    master_key: bytes
    entry: bytes
    recovery: bool = False
    write_flags: int = 0


@dataclass(slots=True, kw_only=True)
class AuthRequest:
    """A step of the authentication exchange."""

    plugin_name: str
    payload: bytes


@dataclass(slots=True, kw_only=True)
class WriteLacRequest:
    """Store an explicit LAC; `packet` is ledger id, LAC, and the ledger's digest over the two."""

    ledger_id: int
    last_add_confirmed: int
    master_key: bytes
    packet: bytes


@dataclass(slots=True, kw_only=True)
class ReadLacRequest:
    """The explicit LAC and the last entry."""

    ledger_id: int


@dataclass(slots=True, kw_only=True)
class GetBookieInfoRequest:
    """Disk capacity and free space, as the bits of `requested` say."""

    requested: int


@dataclass(slots=True, kw_only=True)
class StartTlsRequest:
    """Go on in TLS after the answer."""


@dataclass(slots=True, kw_only=True)
class ForceLedgerRequest:
    """Force to disk what was added with deferred sync."""

    ledger_id: int


@dataclass(slots=True, kw_only=True)
class ListEntriesRequest:
    """Which entries of the ledger the bookie has."""

    ledger_id: int


@dataclass(slots=True, kw_only=True)
class UnknownRequest:
    """An operation that is declared but never served; to be answered with EBADREQ."""


RequestBody: TypeAlias = (
    ReadRequest
    | AddRequest
    | AuthRequest
    | WriteLacRequest
    | ReadLacRequest
    | GetBookieInfoRequest
    | StartTlsRequest
    | ForceLedgerRequest
    | ListEntriesRequest
    | UnknownRequest
)


@dataclass(slots=True, kw_only=True)
class Request:
    """A request with what its answer must echo."""

    operation: Operation
    transaction_id: int
    priority: int = 0
    body: RequestBody


@dataclass(slots=True, kw_only=True)
class Response:
    """An answer to any request; fields that the operation does not have stay at their defaults."""

    operation: Operation
    transaction_id: int
    code: BookieCode
    ledger_id: int = -1
    entry_id: int = -1
    body: bytes = b""
    """The entry of a read, the last entry of a LAC read, the payload of an authentication, the list of entries."""
    lac_packet: bytes = b""
    last_add_confirmed: int | None = None
    lac_updated_ms: int | None = None
    plugin_name: str = ""
    total_disk_capacity_bytes: int | None = None
    free_disk_space_bytes: int | None = None


def decode_request(body: bytes) -> Request:
    """The request of one frame. `PeerError` when it is none: on the first frame that means version 2."""
    try:
        message = pb.Request.FromString(body)
        operation = Operation(message.header.operation)
        return Request(
            operation=operation,
            transaction_id=message.header.txnId,
            priority=message.header.priority,
            body=_request_body(operation, message),
        )
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise PeerError(f"not a request of version 3: {error}") from None


def _request_body(operation: Operation, message: pb.Request) -> RequestBody:
    match operation:
        case Operation.READ_ENTRY if message.HasField("readRequest"):
            return _read_request(message.readRequest)
        case Operation.ADD_ENTRY if message.HasField("addRequest"):
            add = message.addRequest
            return AddRequest(
                ledger_id=add.ledgerId,
                entry_id=add.entryId,
                master_key=add.masterKey,
                entry=add.body,
                recovery=add.HasField("flag") and add.flag == pb.AddRequest.RECOVERY_ADD,
                write_flags=add.writeFlags,
            )
        case Operation.AUTH if message.HasField("authRequest"):
            auth = message.authRequest
            return AuthRequest(plugin_name=auth.authPluginName, payload=auth.payload)
        case Operation.WRITE_LAC if message.HasField("writeLacRequest"):
            lac = message.writeLacRequest
            return WriteLacRequest(
                ledger_id=lac.ledgerId, last_add_confirmed=lac.lac, master_key=lac.masterKey, packet=lac.body
            )
        case Operation.READ_LAC if message.HasField("readLacRequest"):
            return ReadLacRequest(ledger_id=message.readLacRequest.ledgerId)
        case Operation.GET_BOOKIE_INFO if message.HasField("getBookieInfoRequest"):
            return GetBookieInfoRequest(requested=message.getBookieInfoRequest.requested)
        case Operation.START_TLS:
            return StartTlsRequest()
        case Operation.FORCE_LEDGER if message.HasField("forceLedgerRequest"):
            return ForceLedgerRequest(ledger_id=message.forceLedgerRequest.ledgerId)
        case Operation.GET_LIST_OF_ENTRIES_OF_LEDGER if message.HasField("getListOfEntriesOfLedgerRequest"):
            return ListEntriesRequest(ledger_id=message.getListOfEntriesOfLedgerRequest.ledgerId)
        case _:
            return UnknownRequest()


def _read_request(read: pb.ReadRequest) -> ReadRequest:
    return ReadRequest(
        ledger_id=read.ledgerId,
        entry_id=read.entryId,
        master_key=read.masterKey,
        fence=read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER,
        piggyback=read.HasField("flag") and read.flag == pb.ReadRequest.ENTRY_PIGGYBACK,
        previous_lac=read.previousLAC if read.HasField("previousLAC") else None,
        timeout_ms=read.timeOut if read.HasField("timeOut") else None,
    )


def encode_request(request: Request) -> bytes:
    """The frame of a request that one of our own clients sends: see `v3_query`."""
    message = pb.Request()
    message.header.version = pb.VERSION_THREE
    message.header.operation = cast("pb.OperationType", int(request.operation))
    message.header.txnId = request.transaction_id
    if isinstance(request.body, GetBookieInfoRequest):
        message.getBookieInfoRequest.requested = request.body.requested
    elif isinstance(request.body, StartTlsRequest):
        message.startTLSRequest.SetInParent()
    else:
        assert isinstance(request.body, ListEntriesRequest)
        message.getListOfEntriesOfLedgerRequest.ledgerId = request.body.ledger_id
    return frame(message.SerializeToString())


def encode_response(response: Response) -> bytes:
    """The frame of an answer, errors included; a bookie's side."""
    status = cast("pb.StatusCode", V3_STATUS[response.code])
    message = pb.Response()
    message.header.version = pb.VERSION_THREE
    message.header.operation = cast("pb.OperationType", int(response.operation))
    message.header.txnId = response.transaction_id
    message.status = status
    match response.operation:
        case Operation.READ_ENTRY:
            _fill_read_response(message.readResponse, response, status)
        case Operation.ADD_ENTRY:
            add = message.addResponse
            add.status, add.ledgerId, add.entryId = status, response.ledger_id, response.entry_id
        case Operation.AUTH:
            message.authResponse.authPluginName = response.plugin_name
            message.authResponse.payload = response.body
        case Operation.READ_LAC:
            _fill_read_lac_response(message.readLacResponse, response, status)
        case _:
            _fill_rare_response(message, response, status)
    return frame(message.SerializeToString())


def encode_add_responses(code: BookieCode, ledger_id: int, added: Sequence[tuple[int, int]]) -> bytes:
    """The frames of the answers to adds of one ledger: (transaction id, entry id) of each."""
    status = cast("pb.StatusCode", V3_STATUS[code])
    message = pb.Response()
    header = message.header
    header.version = pb.VERSION_THREE
    header.operation = pb.ADD_ENTRY
    message.status = status
    add = message.addResponse
    add.status, add.ledgerId = status, ledger_id
    frames: list[bytes] = []
    for header.txnId, add.entryId in added:
        frames.append(frame(message.SerializeToString()))
    return b"".join(frames)


def _fill_rare_response(message: pb.Response, response: Response, status: pb.StatusCode) -> None:
    match response.operation:
        case Operation.WRITE_LAC:
            message.writeLacResponse.status, message.writeLacResponse.ledgerId = status, response.ledger_id
        case Operation.GET_BOOKIE_INFO:
            info = message.getBookieInfoResponse
            info.status = status
            if response.total_disk_capacity_bytes is not None:
                info.totalDiskCapacity = response.total_disk_capacity_bytes
            if response.free_disk_space_bytes is not None:
                info.freeDiskSpace = response.free_disk_space_bytes
        case Operation.START_TLS:
            message.startTLSResponse.SetInParent()
        case Operation.FORCE_LEDGER:
            message.forceLedgerResponse.status, message.forceLedgerResponse.ledgerId = status, response.ledger_id
        case Operation.GET_LIST_OF_ENTRIES_OF_LEDGER:
            entries = message.getListOfEntriesOfLedgerResponse
            entries.status, entries.ledgerId = status, response.ledger_id
            if response.body:
                entries.availabilityOfEntriesOfLedger = response.body
        case _:
            pass


def _fill_read_response(read: pb.ReadResponse, response: Response, status: pb.StatusCode) -> None:
    read.status, read.ledgerId, read.entryId = status, response.ledger_id, response.entry_id
    if response.body:
        read.body = response.body
    if response.last_add_confirmed is not None:
        read.maxLAC = response.last_add_confirmed
    if response.lac_updated_ms is not None:
        read.lacUpdateTimestamp = response.lac_updated_ms


def _fill_read_lac_response(read: pb.ReadLacResponse, response: Response, status: pb.StatusCode) -> None:
    read.status, read.ledgerId = status, response.ledger_id
    if response.lac_packet:
        read.lacBody = response.lac_packet
    if response.body:
        read.lastEntryBody = response.body


def decode_response(body: bytes) -> Response:
    """The answer of one frame to what `encode_request` makes. `PeerError` when it is none."""
    try:
        message = pb.Response.FromString(body)
        response = Response(
            operation=Operation(message.header.operation),
            transaction_id=message.header.txnId,
            code=CODE_OF_V3_STATUS.get(message.status, BookieCode.EIO),
        )
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise PeerError(f"not a response of version 3: {error}") from None
    info = message.getBookieInfoResponse
    response.total_disk_capacity_bytes = info.totalDiskCapacity if info.HasField("totalDiskCapacity") else None
    response.free_disk_space_bytes = info.freeDiskSpace if info.HasField("freeDiskSpace") else None
    entries = message.getListOfEntriesOfLedgerResponse
    response.ledger_id, response.body = entries.ledgerId, entries.availabilityOfEntriesOfLedger
    return response

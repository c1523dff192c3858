"""A client's side of BookKeeper's protocol version 3, as far as tests need one: Apache's clients have all of it."""

from __future__ import annotations

from typing import cast

from google.protobuf.message import DecodeError, EncodeError
from magnetar.core.errors import PeerError
from magnetar.wire.bookkeeper.codes import CODE_OF_V3_STATUS, BookieCode
from magnetar.wire.bookkeeper.generated import bookkeeper_protocol_pb2 as pb
from magnetar.wire.bookkeeper.v3 import (
    AddRequest,
    AuthRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    Operation,
    ReadLacRequest,
    ReadRequest,
    Request,
    RequestBody,
    Response,
    StartTlsRequest,
    WriteLacRequest,
)
from magnetar.wire.framing import frame


def encode_request(request: Request) -> bytes:
    """The frame of a request; a client's side."""
    message = pb.Request()
    message.header.version = pb.VERSION_THREE
    message.header.operation = cast("pb.OperationType", int(request.operation))
    message.header.txnId = request.transaction_id
    if request.priority:
        message.header.priority = request.priority
    _fill_request(message, request.body)
    try:
        return frame(message.SerializeToString())
    except EncodeError as error:
        raise PeerError(str(error)) from None


def _fill_request(message: pb.Request, body: RequestBody) -> None:
    match body:
        case ReadRequest():
            _fill_read(message.readRequest, body)
        case AddRequest():
            add = message.addRequest
            add.ledgerId, add.entryId = body.ledger_id, body.entry_id
            add.masterKey, add.body = body.master_key, body.entry
            if body.write_flags:
                add.writeFlags = body.write_flags
            if body.recovery:
                add.flag = pb.AddRequest.RECOVERY_ADD
        case AuthRequest():
            message.authRequest.authPluginName = body.plugin_name
            message.authRequest.payload = body.payload
        case WriteLacRequest():
            lac = message.writeLacRequest
            lac.ledgerId, lac.lac = body.ledger_id, body.last_add_confirmed
            lac.masterKey, lac.body = body.master_key, body.packet
        case GetBookieInfoRequest():
            message.getBookieInfoRequest.requested = body.requested
        case _:
            _fill_short_request(message, body)


def _fill_short_request(message: pb.Request, body: RequestBody) -> None:
    match body:
        case StartTlsRequest():
            message.startTLSRequest.SetInParent()
        case ReadLacRequest():
            message.readLacRequest.ledgerId = body.ledger_id
        case ForceLedgerRequest():
            message.forceLedgerRequest.ledgerId = body.ledger_id
        case ListEntriesRequest():
            message.getListOfEntriesOfLedgerRequest.ledgerId = body.ledger_id
        case _:
            pass


def _fill_read(read: pb.ReadRequest, body: ReadRequest) -> None:
    read.ledgerId, read.entryId = body.ledger_id, body.entry_id
    if body.master_key:
        read.masterKey = body.master_key
    if body.fence:
        read.flag = pb.ReadRequest.FENCE_LEDGER
    elif body.piggyback:
        read.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    if body.previous_lac is not None:
        read.previousLAC = body.previous_lac
    if body.timeout_ms is not None:
        read.timeOut = body.timeout_ms


def decode_response(body: bytes) -> Response:
    """The answer of one frame; a client's side. `PeerError` when it is none."""
    try:
        message = pb.Response.FromString(body)
        response = Response(
            operation=Operation(message.header.operation),
            transaction_id=message.header.txnId,
            code=CODE_OF_V3_STATUS.get(message.status, BookieCode.EIO),
        )
        _read_response_body(message, response)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise PeerError(f"not a response of version 3: {error}") from None
    return response


def _read_response_body(message: pb.Response, response: Response) -> None:
    match response.operation:
        case Operation.READ_ENTRY:
            read = message.readResponse
            response.ledger_id, response.entry_id, response.body = read.ledgerId, read.entryId, read.body
            response.last_add_confirmed = read.maxLAC if read.HasField("maxLAC") else None
            response.lac_updated_ms = read.lacUpdateTimestamp if read.HasField("lacUpdateTimestamp") else None
        case Operation.ADD_ENTRY:
            response.ledger_id, response.entry_id = message.addResponse.ledgerId, message.addResponse.entryId
        case Operation.AUTH:
            response.plugin_name, response.body = message.authResponse.authPluginName, message.authResponse.payload
        case Operation.WRITE_LAC:
            response.ledger_id = message.writeLacResponse.ledgerId
        case Operation.READ_LAC:
            lac = message.readLacResponse
            response.ledger_id, response.lac_packet, response.body = lac.ledgerId, lac.lacBody, lac.lastEntryBody
        case Operation.GET_BOOKIE_INFO:
            info = message.getBookieInfoResponse
            if info.HasField("totalDiskCapacity"):
                response.total_disk_capacity_bytes = info.totalDiskCapacity
            if info.HasField("freeDiskSpace"):
                response.free_disk_space_bytes = info.freeDiskSpace
        case Operation.FORCE_LEDGER:
            response.ledger_id = message.forceLedgerResponse.ledgerId
        case Operation.GET_LIST_OF_ENTRIES_OF_LEDGER:
            entries = message.getListOfEntriesOfLedgerResponse
            response.ledger_id, response.body = entries.ledgerId, entries.availabilityOfEntriesOfLedger
        case _:
            pass

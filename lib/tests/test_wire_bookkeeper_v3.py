from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.errors import PeerError
from magnetar.wire.bookkeeper import v2, v3
from magnetar.wire.bookkeeper.codes import CODE_OF_V3_STATUS, V3_STATUS, BookieCode
from magnetar.wire.bookkeeper.generated import bookkeeper_protocol_pb2 as pb

from lib.tests import v3_client

KEY = bytes(range(20))
REQUESTS: list[tuple[v3.Operation, v3.RequestBody]] = [
    (v3.Operation.READ_ENTRY, v3.ReadRequest(ledger_id=1, entry_id=-1)),
    (v3.Operation.READ_ENTRY, v3.ReadRequest(ledger_id=1, entry_id=-1, master_key=KEY, fence=True)),
    (
        v3.Operation.READ_ENTRY,
        v3.ReadRequest(ledger_id=1, entry_id=-1, piggyback=True, previous_lac=5, timeout_ms=1000),
    ),
    (v3.Operation.ADD_ENTRY, v3.AddRequest(ledger_id=1, entry_id=2, master_key=KEY, entry=b"entry")),
    (
        v3.Operation.ADD_ENTRY,
        v3.AddRequest(ledger_id=1, entry_id=2, master_key=KEY, entry=b"e", recovery=True, write_flags=1),
    ),
    (v3.Operation.AUTH, v3.AuthRequest(plugin_name="p", payload=b"x")),
    (v3.Operation.WRITE_LAC, v3.WriteLacRequest(ledger_id=1, last_add_confirmed=4, master_key=KEY, packet=b"p")),
    (v3.Operation.READ_LAC, v3.ReadLacRequest(ledger_id=1)),
    (v3.Operation.GET_BOOKIE_INFO, v3.GetBookieInfoRequest(requested=3)),
    (v3.Operation.START_TLS, v3.StartTlsRequest()),
    (v3.Operation.FORCE_LEDGER, v3.ForceLedgerRequest(ledger_id=1)),
    (v3.Operation.GET_LIST_OF_ENTRIES_OF_LEDGER, v3.ListEntriesRequest(ledger_id=1)),
    (v3.Operation.BATCH_READ_ENTRY, v3.UnknownRequest()),
]
RESPONSES = [
    v3.Response(
        operation=v3.Operation.READ_ENTRY,
        transaction_id=2**64 - 1,
        code=BookieCode.EOK,
        ledger_id=1,
        entry_id=-1,
        body=b"entry",
        last_add_confirmed=7,
        lac_updated_ms=8,
    ),
    v3.Response(operation=v3.Operation.ADD_ENTRY, transaction_id=0, code=BookieCode.EFENCED, ledger_id=1, entry_id=2),
    v3.Response(
        operation=v3.Operation.AUTH,
        transaction_id=3,
        code=BookieCode.EOK,
        plugin_name="AuthDisabledPlugin",
        body=b"x",
    ),
    v3.Response(operation=v3.Operation.WRITE_LAC, transaction_id=3, code=BookieCode.EOK, ledger_id=1),
    v3.Response(
        operation=v3.Operation.READ_LAC,
        transaction_id=3,
        code=BookieCode.EOK,
        ledger_id=1,
        lac_packet=b"lac",
        body=b"entry",
    ),
    v3.Response(
        operation=v3.Operation.GET_BOOKIE_INFO,
        transaction_id=3,
        code=BookieCode.EOK,
        total_disk_capacity_bytes=10,
        free_disk_space_bytes=5,
    ),
    v3.Response(operation=v3.Operation.START_TLS, transaction_id=3, code=BookieCode.EOK),
    v3.Response(operation=v3.Operation.FORCE_LEDGER, transaction_id=3, code=BookieCode.EIO, ledger_id=1),
    v3.Response(
        operation=v3.Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
        transaction_id=3,
        code=BookieCode.EOK,
        ledger_id=1,
        body=b"list",
    ),
    v3.Response(operation=v3.Operation.BATCH_READ_ENTRY, transaction_id=3, code=BookieCode.EBADREQ),
]


@pytest.mark.parametrize(("operation", "body"), REQUESTS)
def test_request_round_trip(operation: v3.Operation, body: v3.RequestBody) -> None:
    request = v3.Request(operation=operation, transaction_id=2**64 - 1, priority=v3.HIGH_PRIORITY, body=body)
    framed = v3_client.encode_request(request)
    assert int.from_bytes(framed[:4], "big") == len(framed) - 4
    assert v3.decode_request(framed[4:]) == request


@pytest.mark.parametrize("response", RESPONSES, ids=lambda response: response.operation.name)
def test_response_round_trip(response: v3.Response) -> None:
    framed = v3.encode_response(response)
    assert v3_client.decode_response(framed[4:]) == response


@pytest.mark.parametrize("body", [v3.GetBookieInfoRequest(requested=3), v3.ListEntriesRequest(ledger_id=7)])
def test_what_our_own_clients_ask(body: v3.RequestBody) -> None:
    operation = {type(known): operation for operation, known in REQUESTS}[type(body)]
    request = v3.Request(operation=operation, transaction_id=2**64 - 1, body=body)
    assert v3.encode_request(request) == v3_client.encode_request(request)
    for response in (one for one in RESPONSES if one.operation is operation):
        found = v3.decode_response(v3.encode_response(response)[4:])
        assert (found.operation, found.code, found.body) == (operation, response.code, response.body)
        assert found.free_disk_space_bytes == response.free_disk_space_bytes
        assert found.total_disk_capacity_bytes == response.total_disk_capacity_bytes


def test_a_request_whose_body_is_missing_is_unknown() -> None:
    message = pb.Request()
    message.header.version = pb.VERSION_THREE
    message.header.operation = pb.ADD_ENTRY
    message.header.txnId = 1
    assert v3.decode_request(message.SerializeToString()).body == v3.UnknownRequest()


def test_version_2_frames_are_no_requests_of_version_3() -> None:
    frames = [
        b"".join(v2.encode_add_requests(KEY, [bytes(60)], 0)),
        v2.encode_read_request(1, 1),
        v2.encode_read_request(1, 1, v2.FLAG_FENCE, KEY),
        v2.encode_auth("AuthDisabledPlugin", b""),
        v2.encode_batch_read_request(1, 1, 1, 1, 1),
    ]
    for framed in frames:
        with pytest.raises(PeerError):
            v3.decode_request(framed[4:])
        assert v2.is_version_2(framed, 4, len(framed))


def test_every_code_has_its_status_and_back() -> None:
    for code in BookieCode:
        if code is not BookieCode.UNREACHABLE:
            assert CODE_OF_V3_STATUS[V3_STATUS[code]] is code


@given(body=st.binary(max_size=60))
def test_garbage_raises_peer_error_only(body: bytes) -> None:
    for decode in (v3.decode_request, v3.decode_response, v3_client.decode_response):
        try:
            decode(body)
        except PeerError:
            continue


@given(index=st.integers(0, len(REQUESTS) - 1), at=st.integers(0, 100), value=st.integers(0, 255))
def test_a_changed_byte_raises_peer_error_only(index: int, at: int, value: int) -> None:
    operation, body = REQUESTS[index]
    damaged = bytearray(v3_client.encode_request(v3.Request(operation=operation, transaction_id=1, body=body))[4:])
    damaged[at % len(damaged)] = value
    for decode in (v3.decode_request, v3.decode_response, v3_client.decode_response):
        try:
            decode(bytes(damaged))
        except PeerError:
            continue


def test_answers_to_many_adds_are_those_to_each() -> None:
    added = [(2**64 - 1, 0), (7, 1), (0, 2**40)]
    expected = b"".join(
        v3.encode_response(
            v3.Response(
                operation=v3.Operation.ADD_ENTRY,
                transaction_id=transaction_id,
                code=BookieCode.EFENCED,
                ledger_id=5,
                entry_id=entry_id,
            )
        )
        for transaction_id, entry_id in added
    )
    assert v3.encode_add_responses(BookieCode.EFENCED, 5, added) == expected
    assert v3.encode_add_responses(BookieCode.EOK, 5, []) == b""

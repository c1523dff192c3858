"""Single questions to a bookie in protocol version 3: what version 2, which entries travel in, cannot ask.

Each question has a connection of its own, as they are rare: checks and tools ask them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import PeerError
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX
from magnetar.ledger.bookie_client.tls_link import connect_to_bookie, problem_of
from magnetar.net.connection import Connection
from magnetar.net.tls import ClientTls
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.v3 import (
    INFO_FREE_DISK_SPACE,
    INFO_TOTAL_DISK_CAPACITY,
    GetBookieInfoRequest,
    ListEntriesRequest,
    Operation,
    Request,
    RequestBody,
    Response,
    decode_response,
    encode_request,
)
from magnetar.wire.framing import FrameSplitter

TIMEOUT_SECONDS: Final = 30.0
"""For the connection and the answer together; a list of entries makes the bookie walk its index."""

_TRANSACTION_ID: Final = 1


class V3Queries:
    """Asks bookies. All methods raise `BookieError`; `UNREACHABLE` if there was no answer in time."""

    def __init__(
        self,
        address_of: Callable[[str], tuple[str, int] | None],
        timeout_seconds: float = TIMEOUT_SECONDS,
        tls: ClientTls | None = None,
    ) -> None:
        """`address_of` tells host and port of a bookie's id, such as `TcpBookieConnections.address`; `tls` is that of
        the connections."""
        self._address_of = address_of
        self._tls = tls
        self._timeout_seconds = timeout_seconds

    async def list_entries(self, bookie_id: str, ledger_id: int) -> bytes:
        """Which entries of a ledger the bookie has, in BookKeeper's packed form (AvailabilityOfEntriesOfLedger)."""
        operation = Operation.GET_LIST_OF_ENTRIES_OF_LEDGER
        return (await self.ask(bookie_id, operation, ListEntriesRequest(ledger_id=ledger_id))).body

    async def disk_space(self, bookie_id: str) -> tuple[int, int]:
        """(total, free) bytes of the bookie's ledger disks."""
        wanted = GetBookieInfoRequest(requested=INFO_TOTAL_DISK_CAPACITY | INFO_FREE_DISK_SPACE)
        response = await self.ask(bookie_id, Operation.GET_BOOKIE_INFO, wanted)
        return response.total_disk_capacity_bytes or 0, response.free_disk_space_bytes or 0

    async def ask(self, bookie_id: str, operation: Operation, body: RequestBody) -> Response:
        """One request and its answer, whose code is EOK."""
        address = self._address_of(bookie_id)
        if address is None:
            raise BookieError(BookieCode.UNREACHABLE, f"nobody knows where {bookie_id} is")
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        frame = encode_request(Request(operation=operation, transaction_id=_TRANSACTION_ID, body=body))
        try:
            async with asyncio.timeout(self._timeout_seconds):
                connection = await connect_to_bookie(
                    *address, lambda made: _Answer(made, answer), self._timeout_seconds, self._tls
                )
                try:
                    connection.write_parts([frame])
                    response = await answer
                finally:
                    connection.close()
        except (OSError, TimeoutError, PeerError) as error:
            raise BookieError(BookieCode.UNREACHABLE, f"{bookie_id}: {problem_of(error)}") from error
        if response.code is not BookieCode.EOK:
            raise BookieError(response.code, f"{bookie_id} refused {operation.name}")
        return response


class _Answer:
    """The protocol's side of the connection: a `net` handler that waits for one frame."""

    def __init__(self, connection: Connection, answer: asyncio.Future[Response]) -> None:
        self._connection = connection
        self._answer = answer
        self._splitter = FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX)

    def connection_made(self) -> None:
        """The question is written by whoever asks it."""

    def data_received(self, data: bytes) -> None:
        """The answer, or a part of it."""
        try:
            buffer, bounds = self._splitter.feed(data)
            if bounds and not self._answer.done():
                self._answer.set_result(decode_response(buffer[bounds[0] : bounds[1]]))
        except PeerError as error:
            self._fail(error)
            self._connection.abort()

    def writable_changed(self, writable: bool) -> None:
        """One small frame is written; there is nothing to hold back."""

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        self._fail(error or ConnectionError("the connection was closed"))

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

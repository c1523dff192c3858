"""One client connection of a bookie: frames in, requests as batches, replies out.

The first frames are tried as version 3; the first one that is none makes the connection a version 2 one for good
(BookKeeper: proto/BookieProtoEncoding). Before anything else a client may ask for TLS (START_TLS); who is not
authorized is answered EUA, whatever it asks. Adds go straight to the bookie, grouped by ledger; everything else waits
in one queue per connection, so that all reads of a batch share one trip to the disk and one reply buffer at a time.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.server.request_queue import RequestQueue
from magnetar.bookie.server.requests_v3 import LongPolls, V3Answerer, add_flags, add_problem, reply
from magnetar.bookie.server.security import BookieSecurity
from magnetar.core.errors import PeerError
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX, MIB
from magnetar.net.connection import Connection
from magnetar.net.held_bytes import NOTED_BYTES
from magnetar.wire.bookkeeper import v2, v3
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.framing import FrameSplitter

logger: Final = logging.getLogger(__name__)

ADD_BYTES_IN_FLIGHT_MAX: Final = 16 * MIB
"""Bytes of one connection's entries that are read but not yet durable. Three of the largest frames; a broker has 16
connections."""

TURN_FRAMES_MAX: Final = 500
"""Requests of one connection that are served in one turn of the event loop. They take 2 ms; 30 ms when each is an add
that begins a ledger, for which the index is asked. A read from the socket brings as many entries of 512 bytes."""

PAUSE_ADDS: Final = "adds in flight"
PAUSE_WRITES: Final = "slow reader"
PAUSE_HOLDING: Final = "the disk is behind"
PAUSE_TURN: Final = "others first"


def _nothing() -> None:
    """Nobody is watched."""


class BookieSession:
    """Handler of one connection."""

    def __init__(
        self,
        connection: Connection,
        bookie: Bookie,
        answerer: V3Answerer,
        long_polls: LongPolls,
        security: BookieSecurity,
    ) -> None:
        self._connection = connection
        self._bookie = bookie
        self._long_polls = long_polls
        self._splitter = FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX, frames_max=TURN_FRAMES_MAX)
        """What is left of a read waits there for another turn. Nothing more is read meanwhile."""
        self._loop = asyncio.get_running_loop()
        self._version = 3
        self._security = security
        self._served = security.serves_plain
        """Whether the client may ask anything."""
        self._asked = False
        """Whether it has: TLS comes before."""
        self._tls_asked = False
        self._refused = False
        """Whether requests in clear were answered EUA, which is told once."""
        self._tls_transaction_id = 0
        self._going_on = False
        self._holds_much = False
        self._adds_bytes = 0
        self._requests = RequestQueue(connection, bookie, answerer)
        self._stop_watching: Callable[[], None] = _nothing

    def connection_made(self) -> None:
        """The connection stands."""
        self._stop_watching = self._bookie.watch_holding(self._holding_changed)
        if self._bookie.adds.holding:
            self._connection.pause_reading(PAUSE_HOLDING)

    def data_received(self, data: bytes) -> None:
        """Some bytes. What breaks the protocol ends the connection, with one line in the log."""
        try:
            if self._splitter.has_more:
                self._splitter.keep(data)
            else:
                self._serve(data)
        except PeerError as error:
            self._give_up(error)
        self._tell_what_is_held()

    def writable_changed(self, writable: bool) -> None:
        """The peer has fallen behind or caught up."""
        self._requests.writable_changed(writable)
        if writable:
            self._connection.resume_reading(PAUSE_WRITES)
        else:
            self._connection.pause_reading(PAUSE_WRITES)

    def connection_lost(self, error: Exception | None) -> None:
        """It is over; adds that were taken become durable all the same, only nobody hears of it."""
        del error
        self._stop_watching()
        self._stop_watching = _nothing  # It refers to this.
        self._forget_unserved()
        self._requests.close()
        self._long_polls.lost(self._connection)

    # --- a turn's worth

    def _serve(self, data: bytes) -> None:
        buffer, bounds = self._splitter.feed(data)
        if self._splitter.has_more:
            self._connection.pause_reading(PAUSE_TURN)
            self._go_on_soon()
        if not bounds:
            return
        if self._version == 3:
            self._take_v3(buffer, bounds)
        else:
            self._take_v2(buffer, bounds)

    def _go_on_soon(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        if self._splitter.has_more:
            try:
                self._serve(b"")
            except PeerError as error:
                self._give_up(error)
            except Exception:
                # The edge of a connection: an error of ours must not leave its client waiting for ever.
                logger.exception("closing the connection from %s", self._connection.peer_address)
                self._forget_unserved()
                self._connection.abort()
        if self._splitter.has_more:
            self._go_on_soon()
        else:
            self._connection.resume_reading(PAUSE_TURN)
        self._tell_what_is_held()

    def _give_up(self, error: PeerError) -> None:
        logger.warning("closing the connection from %s: %s", self._connection.peer_address, error)
        self._forget_unserved()
        self._connection.abort()

    def _forget_unserved(self) -> None:
        self._splitter = FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX)

    def _tell_what_is_held(self) -> None:
        held_bytes = self._splitter.pending_bytes
        if held_bytes > NOTED_BYTES or self._holds_much:
            self._holds_much = held_bytes > NOTED_BYTES
            self._connection.hold_incoming(held_bytes if self._holds_much else 0)

    # --- version 2

    def _take_v2(self, buffer: bytes, bounds: Sequence[int]) -> None:
        if not self._served:
            self._refuse_v2(buffer, bounds)
            return
        self._asked = True
        for request in v2.decode_requests(buffer, bounds):
            if isinstance(request, v2.AddGroup):
                size = sum(map(len, request.entries))
                reply = _V2AddReply(self, size)
                self._adds_started(size)
                self._bookie.add_entries(
                    request.ledger_id, request.master_key, request.entry_ids, request.entries, request.flags, reply
                )
            else:
                self._requests.put(request, len(request.payload) if isinstance(request, v2.Auth) else 0)

    def _refuse_v2(self, buffer: bytes, bounds: Sequence[int]) -> None:
        code = BookieCode.EUA
        for request in v2.decode_requests(buffer, bounds):
            if isinstance(request, v2.AddGroup):
                self._connection.write(v2.encode_add_responses(code, request.ledger_id, request.entry_ids))
            elif isinstance(request, v2.Read):
                self._connection.write(v2.encode_read_response(code, request.ledger_id, request.entry_id))
            elif isinstance(request, v2.BatchRead):
                ids = (request.ledger_id, request.first_entry_id, request.request_id)
                self._connection.write_parts(v2.encode_batch_read_response(code, *ids, []))
            else:
                # A certificate is all that authorizes (BookKeeper: proto/AuthHandler closes here as well).
                raise PeerError(f"authentication by {request.plugin_name!r} is not what this bookie does")
        self._tell_not_served()

    def added_v2(self, size: int, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """A group of adds is answered."""
        self._connection.write(v2.encode_add_responses(code, ledger_id, entry_ids))
        self._adds_ended(size)

    # --- version 3

    def _take_v3(self, buffer: bytes, bounds: Sequence[int]) -> None:
        adds: dict[tuple[int, bytes, int], list[v3.Request]] = {}
        for at in range(0, len(bounds), 2):
            start, end = bounds[at], bounds[at + 1]
            try:
                request = v3.decode_request(buffer[start:end])
            except PeerError:
                if not v2.is_version_2(buffer, start, end):
                    raise
                self._version = 2
                self._add_v3(adds)
                self._take_v2(buffer, bounds[at:])
                return
            body = request.body
            if isinstance(body, v3.StartTlsRequest) and self._security.has_tls:
                self._start_tls(request, last=at + 2 == len(bounds))
                continue
            if not self._served:
                self._refuse_v3(request)
                continue
            if not isinstance(body, v3.AuthRequest):
                self._asked = True
            if isinstance(body, v3.AddRequest):
                adds.setdefault((body.ledger_id, body.master_key, add_flags(request, body)), []).append(request)
            elif isinstance(body, v3.ReadRequest) and body.previous_lac is not None:
                # A long poll waits for adds to come, so it must not stand before other requests.
                self._long_polls.start(request, body, self._connection)
            else:
                if adds:
                    self._add_v3(adds)
                    adds = {}
                self._requests.put(request, end - start)
        self._add_v3(adds)

    def _add_v3(self, adds: dict[tuple[int, bytes, int], list[v3.Request]]) -> None:
        for (ledger_id, master_key, flags), requests in adds.items():
            transactions: dict[int, list[int]] = {}
            entries: list[bytes] = []
            entry_ids: list[int] = []
            for request in requests:
                body = request.body
                assert isinstance(body, v3.AddRequest)
                if add_problem(body):
                    refused = [(request.transaction_id, body.entry_id)]
                    self._connection.write(v3.encode_add_responses(BookieCode.EBADREQ, ledger_id, refused))
                    continue
                transactions.setdefault(body.entry_id, []).append(request.transaction_id)
                entries.append(body.entry)
                entry_ids.append(body.entry_id)
            if entries:
                size = sum(map(len, entries))
                self._adds_started(size)
                reply = _V3AddReply(self, size, transactions)
                self._bookie.add_entries(ledger_id, master_key, entry_ids, entries, flags, reply)

    def added_v3(
        self, size: int, code: int, ledger_id: int, entry_ids: Sequence[int], transactions: dict[int, list[int]]
    ) -> None:
        """A group of adds is answered."""
        added = [(transactions[entry_id].pop(0), entry_id) for entry_id in entry_ids]
        self._connection.write(v3.encode_add_responses(BookieCode(code), ledger_id, added))
        self._adds_ended(size)

    # --- TLS, and who is served

    def _start_tls(self, request: v3.Request, last: bool) -> None:
        if self._asked or self._tls_asked:
            # What was said in clear must not go on as if TLS had protected it.
            self._connection.write(v3.encode_response(reply(request, BookieCode.EBADREQ)))
            return
        if not last or self._splitter.pending_bytes:
            raise PeerError("more came behind START_TLS, in clear")
        self._tls_asked = True
        self._tls_transaction_id = request.transaction_id
        self._security.begin(self._connection, self)

    def tls_agreed(self) -> None:
        """Answer that TLS begins."""
        response = v3.Response(
            operation=v3.Operation.START_TLS, transaction_id=self._tls_transaction_id, code=BookieCode.EOK
        )
        self._connection.write(v3.encode_response(response))

    def secured(self, refusal: str) -> None:
        """TLS stands; with a refusal, nothing that the client asks is done."""
        self._served = not refusal

    def _refuse_v3(self, request: v3.Request) -> None:
        refused = reply(request, BookieCode.EUA, getattr(request.body, "ledger_id", -1))
        refused.entry_id = getattr(request.body, "entry_id", -1)
        self._connection.write(v3.encode_response(refused))
        self._tell_not_served()

    def _tell_not_served(self) -> None:
        if not self._tls_asked and not self._refused:
            self._refused = True
            self._security.not_served(self._connection.peer_address, "it did not begin with TLS (START_TLS)")

    # --- both

    def _adds_started(self, size: int) -> None:
        self._adds_bytes += size
        if self._adds_bytes >= ADD_BYTES_IN_FLIGHT_MAX:
            self._connection.pause_reading(PAUSE_ADDS)

    def _adds_ended(self, size: int) -> None:
        before = self._adds_bytes
        self._adds_bytes -= size
        if before >= ADD_BYTES_IN_FLIGHT_MAX > self._adds_bytes:
            self._connection.resume_reading(PAUSE_ADDS)

    def _holding_changed(self, holding: bool) -> None:
        if holding:
            self._connection.pause_reading(PAUSE_HOLDING)
        else:
            self._connection.resume_reading(PAUSE_HOLDING)


class _V2AddReply:
    """Told when a group of adds is durable."""

    __slots__ = ("_session", "_size")

    def __init__(self, session: BookieSession, size: int) -> None:
        self._session = session
        self._size = size

    def __call__(self, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        self._session.added_v2(self._size, code, ledger_id, entry_ids)


class _V3AddReply:
    """Told when a group of adds is durable; knows the transaction of each entry."""

    __slots__ = ("_session", "_size", "_transactions")

    def __init__(self, session: BookieSession, size: int, transactions: dict[int, list[int]]) -> None:
        self._session = session
        self._size = size
        self._transactions = transactions

    def __call__(self, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        self._session.added_v3(self._size, code, ledger_id, entry_ids, self._transactions)

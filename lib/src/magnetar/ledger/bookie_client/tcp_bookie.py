"""One bookie over TCP, protocol version 2.

Connects on first use and again after a loss, not faster than a bounded back-off allows. Version 2 has no request ids:
of two requests that its answers could not tell apart (the same read twice, an add and its recovery) the second waits
here for the first one's answer. A read that gets no answer in time costs the connection, so that no late answer can be
taken for another request's.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from magnetar.core.backoff import Backoff
from magnetar.core.clock import Clock
from magnetar.core.errors import PeerError
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX
from magnetar.core.setting import setting
from magnetar.core.transitions import Transitions
from magnetar.ledger.bookie_client.bookie_connection import READ_FLAG_NONE, AddCallback
from magnetar.ledger.bookie_client.pending_adds import AddBatch, PendingAdds
from magnetar.ledger.bookie_client.tls_link import connect_to_bookie, problem_of
from magnetar.net.connection import Connection
from magnetar.net.tls import ClientTls
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import EntryRun, run_of
from magnetar.wire.framing import FrameBuffer

logger: Final = logging.getLogger(__name__)

TICKS_PER_TIMEOUT: Final = 4
"""How often within a timeout the oldest requests' age is looked at."""

SINGLE_READS_MAX: Final = 16
"""Reads kept outstanding in place of one batch read, for bookies that do not know batch reads."""

BATCH_READ_PAUSE_SECONDS: Final = 60.0
"""How long a bookie that refused a batch read, or closed the connection over one, is read from entry by entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpBookieSettings:
    """Times of the connection to a bookie."""

    connect_timeout_seconds: float = 10.0
    add_timeout_seconds: float = setting("bookkeeperClientTimeoutInSeconds", 30.0, low=1)
    """After this long without an answer an add is answered UNREACHABLE."""
    read_timeout_seconds: float = 30.0
    backoff_seconds_min: float = 0.1
    """A second attempt to connect is not made before; doubled with each failure in a row."""
    backoff_seconds_max: float = 5.0


class LinkState(enum.Enum):
    """How the bookie is reached."""

    IDLE = enum.auto()
    CONNECTING = enum.auto()
    CONNECTED = enum.auto()
    CLOSED = enum.auto()


_S: Final = LinkState

TRANSITIONS: Final = Transitions(
    "the link to a bookie",
    {
        # The end of an attempt that timed out may be told while the next one is under way.
        _S.IDLE: {_S.IDLE, _S.CONNECTING, _S.CONNECTED, _S.CLOSED},
        _S.CONNECTING: {_S.IDLE, _S.CONNECTED, _S.CLOSED},
        _S.CONNECTED: {_S.IDLE, _S.CONNECTED, _S.CLOSED},
        _S.CLOSED: {_S.CLOSED},
    },
)

HeldAdd: TypeAlias = tuple[AddBatch, bytes, Sequence[bytes], int]
"""(batch, master key, entries, flags) of an add that waits for another one of the same entries."""

_EOK: Final = int(BookieCode.EOK)
_UNREACHABLE: Final = int(BookieCode.UNREACHABLE)


class PendingRead:
    """A read and who waits for it; several with the same key wait in line and go out one by one."""

    __slots__ = ("frame", "future", "sent_at_seconds")

    def __init__(self, frame: bytes, future: asyncio.Future[bytes]) -> None:
        self.frame = frame
        self.future = future
        self.sent_at_seconds = float("inf")


class PendingBatchRead:
    """A batch read and who waits for it."""

    __slots__ = ("future", "sent_at_seconds")

    def __init__(self, future: asyncio.Future[EntryRun], now_seconds: float) -> None:
        self.future = future
        self.sent_at_seconds = now_seconds


class BookieLink:
    """The protocol's side of one TCP connection: a `net` handler with memory of its own, as answers may be large."""

    def __init__(self, bookie: TcpBookie, connection: Connection) -> None:
        self._bookie = bookie
        self._connection = connection
        self._frames = FrameBuffer(BOOKKEEPER_FRAME_BYTES_MAX)
        self._answered = False

    def connection_made(self) -> None:
        """Nothing to be said first: version 2 needs no greeting."""

    def room(self) -> memoryview:
        """Memory that the next answers are received into."""
        return self._frames.room()

    def received(self, size_bytes: int) -> None:
        """Answers, in any chunking."""
        try:
            buffer, bounds = self._frames.received(size_bytes)
            responses = v2.decode_responses(buffer, bounds)
        except PeerError as error:
            logger.warning("bookie %s broke the protocol: %s", self._bookie.bookie_id, error)
            self._connection.abort()
            return
        self._answered = self._answered or bool(responses)
        for response in responses:
            self._bookie.answered(response)

    def writable_changed(self, writable: bool) -> None:
        """What is outstanding is bounded by the writers, who wait for confirmations."""

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        self._bookie.disconnected(self._connection, error, self._answered)


class TcpBookie:
    """A `BookieConnection` over TCP."""

    def __init__(
        self,
        bookie_id: str,
        address: Callable[[str], tuple[str, int] | None],
        clock: Clock,
        settings: TcpBookieSettings,
        tls: ClientTls | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        self._address = address
        self._clock = clock
        self._settings = settings
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._state = LinkState.IDLE
        self._connection: Connection | None = None
        self._connect_task: asyncio.Task[None] | None = None
        self._backoff = Backoff(settings.backoff_seconds_min, settings.backoff_seconds_max)
        self._not_before_seconds = 0.0
        # What was asked for while connecting; bounded like the adds themselves, and by the connect timeout.
        self._unsent: list[bytes] = []
        self._adds = PendingAdds()
        self._held_adds: deque[HeldAdd] = deque()
        self._reads: dict[tuple[int, int], deque[PendingRead]] = {}
        self._batch_reads: dict[int, PendingBatchRead] = {}
        self._next_request_id = 0
        self._batch_reads_refused_until_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
    ) -> None:
        """Store whole entries (header, digest and payload, as `wire.bookkeeper.entry` makes them). Never waits. Every
        entry id is answered exactly once, in one or more calls of `done`, never from inside this call."""
        if not entry_ids:
            return
        if not self._reach():
            self._loop.call_soon(done, _UNREACHABLE, ledger_id, entry_ids)
            return
        batch = AddBatch(ledger_id, entry_ids, done, self._clock.monotonic_seconds())
        if self._held_adds or self._adds.overlaps(ledger_id, entry_ids):
            self._held_adds.append((batch, master_key, entries, flags))
        else:
            self._send_add(batch, master_key, entries, flags)
        self._arm_timer()

    def _send_add(self, batch: AddBatch, master_key: bytes, entries: Sequence[bytes], flags: int) -> None:
        self._adds.put(batch)
        self._write(v2.encode_add_requests(master_key, entries, flags))

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = READ_FLAG_NONE, master_key: bytes = b""
    ) -> bytes:
        """One whole entry. Raises `BookieError` with the code. With READ_FLAG_FENCE the ledger is fenced, durably,
        before the answer (also when that is an error such as ENOENTRY)."""
        if not self._reach():
            raise BookieError(BookieCode.UNREACHABLE, self.bookie_id)
        frame = v2.encode_read_request(ledger_id, entry_id, flags, master_key)
        read = PendingRead(frame, self._loop.create_future())
        key = (ledger_id, entry_id)
        line = self._reads.setdefault(key, deque())
        line.append(read)
        if len(line) == 1:
            self._send_read(read)
        self._arm_timer()
        return await read.future

    async def read_each(self, ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | BookieError]:
        """Whole entries that need not be neighbours, each or why there is none. All are asked for at once, so their
        number is the caller's to bound."""
        if not self._reach():
            return [BookieError(BookieCode.UNREACHABLE, self.bookie_id)] * len(entry_ids)
        now = self._clock.monotonic_seconds()
        futures: list[asyncio.Future[bytes]] = []
        frames: list[bytes] = []
        for entry_id in entry_ids:
            read = PendingRead(v2.encode_read_request(ledger_id, entry_id), self._loop.create_future())
            line = self._reads.setdefault((ledger_id, entry_id), deque())
            line.append(read)
            if len(line) == 1:
                read.sent_at_seconds = now
                frames.append(read.frame)
            futures.append(read.future)
        self._write(frames)
        self._arm_timer()
        return await _outcomes(futures)

    def _send_read(self, read: PendingRead) -> None:
        read.sent_at_seconds = self._clock.monotonic_seconds()
        self._write([read.frame])

    async def read_entries(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        """Consecutive whole entries from the first one; stops early at the first missing entry or at the size. At least
        one entry is returned when the first exists, whatever its size. Raises `BookieError`."""
        return (await self.read_run(ledger_id, first_entry_id, count_max, size_bytes_max)).entries()

    async def read_run(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> EntryRun:
        """Consecutive whole entries from the first one, not copied yet. At least one when the first exists, whatever
        its size. Raises `BookieError`."""
        if self._clock.monotonic_seconds() >= self._batch_reads_refused_until_seconds:
            try:
                return await self._read_batch(ledger_id, first_entry_id, count_max, size_bytes_max)
            except BookieError as error:
                refused = self._clock.monotonic_seconds() < self._batch_reads_refused_until_seconds
                if not refused and error.code is not BookieCode.EBADREQ:
                    raise
                self._pause_batch_reads()
        return run_of(await self._read_singly(ledger_id, first_entry_id, count_max, size_bytes_max))

    async def _read_batch(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> EntryRun:
        if not self._reach():
            raise BookieError(BookieCode.UNREACHABLE, self.bookie_id)
        self._next_request_id += 1
        request_id = self._next_request_id
        read = PendingBatchRead(self._loop.create_future(), self._clock.monotonic_seconds())
        self._batch_reads[request_id] = read
        self._write([v2.encode_batch_read_request(ledger_id, first_entry_id, request_id, count_max, size_bytes_max)])
        self._arm_timer()
        return await read.future

    async def _read_singly(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        entry_ids = range(first_entry_id, first_entry_id + min(count_max, SINGLE_READS_MAX))
        results = await asyncio.gather(
            *(self.read_entry(ledger_id, entry_id) for entry_id in entry_ids), return_exceptions=True
        )
        entries: list[bytes] = []
        size_bytes = 0
        for result in results:
            if isinstance(result, BaseException):
                if not entries:
                    raise result
                break
            size_bytes += len(result)
            if entries and size_bytes > size_bytes_max:
                break
            entries.append(result)
        return entries

    async def close(self) -> None:
        """Let go of the connection; outstanding requests answer `BookieCode.UNREACHABLE`. It cannot be used again."""
        self._become(LinkState.CLOSED)
        if self._timer is not None:
            self._timer.cancel()
        if self._connect_task is not None:
            self._connect_task.cancel()
            await asyncio.gather(self._connect_task, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._fail_all()

    def answered(self, response: v2.Response) -> None:
        """An answer came."""
        if isinstance(response, v2.AddResponses):
            self._adds.answered(response.code, response.ledger_id, response.entry_ids)
            if self._held_adds:
                self._send_held_adds()
        elif isinstance(response, v2.ReadResponse):
            self._answer_read(response)
        elif isinstance(response, v2.BatchReadResponse):
            self._answer_batch_read(response)
        else:
            # Nobody asked for authentication; a bookie that wants it will refuse what we ask.
            logger.info("bookie %s speaks of authentication (%s)", self.bookie_id, response.plugin_name)

    def _send_held_adds(self) -> None:
        held = self._held_adds
        while held and not self._adds.overlaps(held[0][0].ledger_id, held[0][0].entry_ids):
            self._send_add(*held.popleft())

    def _answer_read(self, response: v2.ReadResponse) -> None:
        key = (response.ledger_id, response.entry_id)
        line = self._reads.get(key)
        if line is None:
            return
        read = line.popleft()
        if not read.future.done():
            if response.code is BookieCode.EOK:
                read.future.set_result(response.entry)
            else:
                read.future.set_exception(BookieError(response.code, f"{self.bookie_id}, entry {key[0]}:{key[1]}"))
        while line and line[0].future.done():
            line.popleft()
        if line:
            self._send_read(line[0])
        else:
            del self._reads[key]

    def _answer_batch_read(self, response: v2.BatchReadResponse) -> None:
        read = self._batch_reads.pop(response.request_id, None)
        if read is None or read.future.done():
            return
        if response.code is BookieCode.EOK and len(response.run):
            read.future.set_result(response.run)
        else:
            code = BookieCode.ENOENTRY if response.code is BookieCode.EOK else response.code
            where = f"{self.bookie_id}, entry {response.ledger_id}:{response.first_entry_id}"
            read.future.set_exception(BookieError(code, where))

    def _write(self, parts: list[bytes]) -> None:
        if self._connection is not None:
            self._connection.write_parts(parts)
        else:
            self._unsent += parts

    def _reach(self) -> bool:
        """Whether requests may be made now; begins to connect if need be."""
        if self._state is LinkState.IDLE:
            if self._clock.monotonic_seconds() < self._not_before_seconds:
                return False
            address = self._address(self.bookie_id)
            if address is None:
                return False
            self._become(LinkState.CONNECTING)
            self._connect_task = self._loop.create_task(self._connect(*address), name=f"connect to {self.bookie_id}")
        return self._state is not LinkState.CLOSED

    async def _connect(self, host: str, port: int) -> None:
        try:
            connection = await connect_to_bookie(
                host, port, lambda made: BookieLink(self, made), self._settings.connect_timeout_seconds, self._tls
            )
        except (OSError, TimeoutError) as error:
            logger.warning("bookie %s cannot be reached at %s:%d: %s", self.bookie_id, host, port, problem_of(error))
            self._become(LinkState.IDLE)
            self._back_off()
            self._fail_all()
            return
        if connection.closed:
            return
        self._connection = connection
        self._become(LinkState.CONNECTED)
        unsent, self._unsent = self._unsent, []
        connection.write_parts(unsent)

    def disconnected(self, connection: Connection, error: Exception | None, answered: bool) -> None:
        """The TCP connection ended, on which something was `answered` or nothing; everything outstanding is answered
        UNREACHABLE."""
        if self._state is LinkState.CLOSED:
            return
        if self._connection is connection or self._connection is None:
            why = problem_of(error) if error is not None else "closed by the peer"
            if self._tls is not None and not answered:
                # In TLS 1.3 a client's handshake ends before the server has looked at its certificate.
                why += "; the bookie may not trust the certificate that was shown to it, or wants one"
            logger.warning("the connection to bookie %s is lost: %s", self.bookie_id, why)
            self._connection = None
            self._become(LinkState.IDLE)
            self._back_off()
            if self._batch_reads and error is None:
                # Bookies that do not know batch reads may answer one by closing.
                self._pause_batch_reads()
            self._fail_all()

    def _become(self, state: LinkState) -> None:
        self._state = TRANSITIONS.step(self._state, state)

    def _back_off(self) -> None:
        self._not_before_seconds = self._clock.monotonic_seconds() + self._backoff.next_seconds()

    def _pause_batch_reads(self) -> None:
        self._batch_reads_refused_until_seconds = self._clock.monotonic_seconds() + BATCH_READ_PAUSE_SECONDS

    def _fail_all(self) -> None:
        self._unsent = []
        held, self._held_adds = self._held_adds, deque()
        reads, self._reads = self._reads, {}
        batch_reads, self._batch_reads = self._batch_reads, {}
        futures: list[asyncio.Future[bytes] | asyncio.Future[EntryRun]] = []
        futures += [read.future for line in reads.values() for read in line]
        futures += [read.future for read in batch_reads.values()]
        for future in futures:
            if not future.done():
                future.set_exception(BookieError(BookieCode.UNREACHABLE, self.bookie_id))
        self._adds.fail_all()
        for batch, _, _, _ in held:
            batch.done(_UNREACHABLE, batch.ledger_id, batch.entry_ids)

    def _arm_timer(self) -> None:
        if self._timer is None and self._state is not LinkState.CLOSED:
            shortest = min(self._settings.add_timeout_seconds, self._settings.read_timeout_seconds)
            self._timer = self._loop.call_later(shortest / TICKS_PER_TIMEOUT, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.monotonic_seconds()
        if self._adds.expire(now - self._settings.add_timeout_seconds):
            logger.warning("bookie %s does not answer adds", self.bookie_id)
            self._send_held_adds()
        elif self._state is LinkState.CONNECTED:
            self._backoff.reset()  # Answers came in time: the next loss is a first one again.
        if self._oldest_read_seconds() <= now - self._settings.read_timeout_seconds and self._connection is not None:
            logger.warning("bookie %s does not answer reads; the connection is given up", self.bookie_id)
            self._connection.abort()
        if self._adds or self._held_adds or self._reads or self._batch_reads:
            self._arm_timer()

    def _oldest_read_seconds(self) -> float:
        singles = (line[0].sent_at_seconds for line in self._reads.values())
        batches = (read.sent_at_seconds for read in self._batch_reads.values())
        return min(min(singles, default=float("inf")), min(batches, default=float("inf")))


async def _outcomes(futures: Sequence[asyncio.Future[bytes]]) -> list[bytes | BookieError]:
    results: list[bytes | BookieError] = []
    try:
        for future in futures:
            try:
                results.append(await future)
            except BookieError as error:
                results.append(error)
    finally:
        for future in futures[len(results) :]:
            # Whoever waited is gone; an error that comes to one of them later is nobody's.
            future.cancel()
    return results

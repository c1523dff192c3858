"""Answers version 3 requests other than adds, and its long polls for the last add confirmed."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.bookie.availability import encode_availability
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.server.requests_v2 import AUTH_DISABLED_PLUGIN
from magnetar.bookie.storage.directory_storage import NOT_READ
from magnetar.ledger.bookie_client.bookie_connection import ADD_FLAG_HIGH_PRIORITY, ADD_FLAG_NONE, ADD_FLAG_RECOVERY
from magnetar.net.connection import BEHIND_BYTES, Connection
from magnetar.wire.bookkeeper import v3
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import HEADER_BYTES, MASTER_KEY_BYTES

logger: Final = logging.getLogger(__name__)

LONG_POLL_SECONDS_MAX: Final = 300.0
"""However long a client wants to wait; it asks again anyway."""

LONG_POLLS_MAX: Final = 10_000
"""Long polls of all connections; a further one is answered at once, as if its time were over."""

LONG_POLLS_OF_ONE_MAX: Final = LONG_POLLS_MAX // 4
"""Long polls of one connection: it does not lock the others out."""

LONG_POLL_ENTRIES_AT_ONCE: Final = 16
"""Entries being read for long polls: an add may end thousands of them at the same time."""

EXPLICIT_LAC_BYTES: Final = range(16, 16 + 20 + 1)
"""An explicit LAC packet has ledger id and LAC; the digest's size depends on its type, and an HMAC's is the largest
(BookKeeper: MacDigestManager). It stays in memory and in the index, so it is no larger than it says."""

_IDS: Final = struct.Struct(">qq")


def add_flags(request: v3.Request, add: v3.AddRequest) -> int:
    """The flags of an add as `Bookie.add_entries` knows them."""
    flags = ADD_FLAG_RECOVERY if add.recovery else ADD_FLAG_NONE
    return flags | ADD_FLAG_HIGH_PRIORITY if request.priority > 0 else flags


def add_problem(add: v3.AddRequest) -> bool:
    """Whether the entry of an add is not the one that the add speaks of, or one that cannot be: a journal knows its own
    records, a log its map, by negative ids. Nor can its key be a master key that is too long (`Bookie.fence`)."""
    if len(add.entry) < HEADER_BYTES or (add.ledger_id | add.entry_id) < 0 or len(add.master_key) > MASTER_KEY_BYTES:
        return True
    return bool(_IDS.unpack_from(add.entry) != (add.ledger_id, add.entry_id))


def reply(request: v3.Request, code: BookieCode, ledger_id: int = -1) -> v3.Response:
    """A response that echoes what the protocol wants echoed."""
    return v3.Response(
        operation=request.operation, transaction_id=request.transaction_id, code=code, ledger_id=ledger_id
    )


class V3Answerer:
    """Everything that is answered as soon as the disk has been asked."""

    def __init__(self, bookie: Bookie, disk_usage: Callable[[], tuple[int, int]]) -> None:
        self._bookie = bookie
        self._disk_usage = disk_usage

    async def answer(self, requests: Sequence[v3.Request], size_bytes_max: int) -> tuple[list[bytes], list[v3.Request]]:
        """Frames of the replies, and the requests that are left to be answered, in order, since the replies have
        `size_bytes_max` already. Plain reads share one trip to the disk."""
        plain: list[tuple[v3.Request, v3.ReadRequest]] = []
        replies: list[bytes] = []
        left: list[v3.Request] = []
        size = 0
        for at, request in enumerate(requests):
            body = request.body
            if isinstance(body, v3.ReadRequest) and not body.fence and not body.piggyback:
                plain.append((request, body))
                continue
            replies.append(v3.encode_response(await self._answer_one(request)))
            size += len(replies[-1])
            if size >= size_bytes_max:
                left = list(requests[at + 1 :])
                break
        if not plain or size >= size_bytes_max:
            return replies, [*(request for request, _ in plain), *left]
        wanted = [(read.ledger_id, read.entry_id) for _, read in plain]
        unread: list[v3.Request] = []
        for (request, read), result in zip(
            plain, await self._bookie.read_entries(wanted, size_bytes_max - size), strict=True
        ):
            if result is NOT_READ:
                unread.append(request)
            else:
                replies.append(v3.encode_response(await self._read_reply(request, read, result)))
        return replies, [*unread, *left]

    async def _answer_one(self, request: v3.Request) -> v3.Response:
        ledger_id: int = getattr(request.body, "ledger_id", -1)
        try:
            return await self._try_answer(request, ledger_id)
        except BookieError as error:
            failed = reply(request, error.code, ledger_id)
            failed.entry_id = getattr(request.body, "entry_id", -1)
            return failed

    async def _try_answer(self, request: v3.Request, ledger_id: int) -> v3.Response:
        response = reply(request, BookieCode.EOK, ledger_id)
        counters = self._bookie.counters
        match request.body:
            case v3.ReadRequest() as read:
                if read.piggyback:
                    # Piggyback is for long polls, which come with the LAC that the client has.
                    raise BookieError(BookieCode.EBADREQ, "piggyback without previousLAC")
                await counters.timed(counters.fence, self._bookie.fence(ledger_id, read.master_key))
                return await self._read_reply(request, read, await self._bookie.read_entry(ledger_id, read.entry_id))
            case v3.WriteLacRequest() as lac:
                if len(lac.packet) not in EXPLICIT_LAC_BYTES:
                    raise BookieError(BookieCode.EBADREQ, f"an explicit LAC of {len(lac.packet)} bytes")
                written = self._bookie.write_lac(ledger_id, lac.master_key, lac.last_add_confirmed, lac.packet)
                await counters.timed(counters.write_lac, written)
            case v3.ReadLacRequest():
                found = await counters.timed(counters.read_lac, self._bookie.read_lac(ledger_id))
                response.lac_packet, response.body = found
            case v3.ForceLedgerRequest():
                # Every add is acknowledged only once it is on the disk, deferred or not: nothing is left to force.
                pass
            case v3.ListEntriesRequest():
                entry_ids = await counters.timed(counters.list_entries, self._bookie.entry_ids(ledger_id))
                # Millions, in a ledger that is large.
                response.body = await asyncio.to_thread(encode_availability, entry_ids)
            case v3.GetBookieInfoRequest() as wanted:
                self._fill_disk_info(response, wanted.requested)
            case v3.AuthRequest():
                response.plugin_name = AUTH_DISABLED_PLUGIN
            case _:
                raise BookieError(BookieCode.EBADREQ, f"{request.operation.name} is not served")
        return response

    async def _read_reply(self, request: v3.Request, read: v3.ReadRequest, result: bytes | BookieError) -> v3.Response:
        code = result.code if isinstance(result, BookieError) else BookieCode.EOK
        response = reply(request, code, read.ledger_id)
        response.entry_id = read.entry_id
        if not isinstance(result, BookieError):
            response.body = result
            response.last_add_confirmed = await self._bookie.last_add_confirmed(read.ledger_id)
        return response

    def _fill_disk_info(self, response: v3.Response, requested: int) -> None:
        try:
            total, free = self._disk_usage()
        except OSError as error:
            raise BookieError(BookieCode.EIO, str(error)) from None
        if requested & v3.INFO_TOTAL_DISK_CAPACITY:
            response.total_disk_capacity_bytes = total
        if requested & v3.INFO_FREE_DISK_SPACE:
            response.free_disk_space_bytes = free


class LongPolls:
    """Reads that wait for the last add confirmed to grow (BookKeeper: LongPollReadEntryProcessorV3)."""

    def __init__(self, bookie: Bookie, now_ms: Callable[[], int]) -> None:
        self._bookie = bookie
        self._now_ms = now_ms
        self._waiting = 0
        self._waiting_of: Counter[Connection] = Counter()
        self._tasks: dict[Connection, set[asyncio.Task[None]]] = {}
        self._entries = asyncio.Semaphore(LONG_POLL_ENTRIES_AT_ONCE)

    def start(self, request: v3.Request, read: v3.ReadRequest, connection: Connection) -> None:
        """Answer the request on this connection when there is something to say."""
        task = asyncio.get_running_loop().create_task(self._poll(request, read, connection), name="bookie-long-poll")
        self._tasks.setdefault(connection, set()).add(task)
        task.add_done_callback(lambda done: self._ended(connection, done))

    def _ended(self, connection: Connection, task: asyncio.Task[None]) -> None:
        tasks = self._tasks[connection]
        tasks.discard(task)
        if not tasks:
            del self._tasks[connection]

    def lost(self, connection: Connection) -> None:
        """A connection is over: nobody waits on it any more."""
        for task in tuple(self._tasks.get(connection, ())):
            task.cancel()

    async def close(self) -> None:
        """Drop all long polls that wait."""
        tasks = [task for some in self._tasks.values() for task in some]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll(self, request: v3.Request, read: v3.ReadRequest, connection: Connection) -> None:
        response = reply(request, BookieCode.EOK, read.ledger_id)
        response.entry_id = read.entry_id
        try:
            known = await self._news(response, read, connection)
            async with self._entries:
                if not await self._fill_entry(response, read, known, connection):
                    response.code = BookieCode.ETOOMANYREQUESTS
                connection.write(v3.encode_response(response))
        except BookieError as error:
            response.code = error.code
            connection.write(v3.encode_response(response))

    async def _news(self, response: v3.Response, read: v3.ReadRequest, connection: Connection) -> int:
        if read.piggyback and read.entry_id != -1:
            raise BookieError(BookieCode.EBADREQ, "piggyback needs entry id -1")
        assert read.previous_lac is not None
        known = await self._bookie.last_add_confirmed(read.ledger_id)
        if known <= read.previous_lac:
            known = await self._wait(read, known, connection)
        response.last_add_confirmed = known
        response.lac_updated_ms = self._now_ms()
        return known

    async def _fill_entry(
        self, response: v3.Response, read: v3.ReadRequest, known: int, connection: Connection
    ) -> bool:
        """False: there is an entry to be sent, and the client has not taken what it was sent before."""
        assert read.previous_lac is not None
        if read.piggyback and known > read.previous_lac:
            wanted = read.previous_lac + 1
        elif not read.piggyback and read.entry_id >= 0:
            wanted = read.entry_id
        else:
            return True
        if connection.unsent_bytes > BEHIND_BYTES:
            # Without the entry, a piggyback still says how far the ledger is.
            return read.piggyback
        result = (await self._bookie.read_entries([(read.ledger_id, wanted)]))[0]
        if not isinstance(result, BookieError):
            response.entry_id = wanted
            response.body = result
        elif not read.piggyback:
            raise result
        return True

    def _crowded(self, connection: Connection) -> bool:
        return self._waiting >= LONG_POLLS_MAX or self._waiting_of[connection] >= LONG_POLLS_OF_ONE_MAX

    async def _wait(self, read: v3.ReadRequest, known: int, connection: Connection) -> int:
        timeout_seconds = min(max(0, read.timeout_ms or 0) / 1000, LONG_POLL_SECONDS_MAX)
        if timeout_seconds == 0 or connection.closed or self._crowded(connection):
            return known
        grown: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        previous = read.previous_lac if read.previous_lac is not None else known

        def told(last_add_confirmed: int) -> None:
            # Grown, but not beyond what the client has: that is no news yet.
            wait_on = last_add_confirmed <= previous and self._bookie.wait_for_lac(read.ledger_id, told)
            if not wait_on and not grown.done():
                grown.set_result(last_add_confirmed)

        if not self._bookie.wait_for_lac(read.ledger_id, told):
            return known
        self._waiting += 1
        self._waiting_of[connection] += 1
        try:
            async with asyncio.timeout(timeout_seconds):
                return await grown
        except TimeoutError:
            return known
        finally:
            self._bookie.stop_waiting_for_lac(read.ledger_id, told)
            self._waiting -= 1
            self._waiting_of[connection] -= 1
            if not self._waiting_of[connection]:
                del self._waiting_of[connection]

"""etcd's v3 API over gRPC: calls that go to another server when one cannot be reached."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol, TypeVar

import grpc
import grpc.aio
from magnetar.metadata.etcd_access import EtcdAccess
from magnetar.metadata.generated import etcd_pb2 as pb
from magnetar.metadata.silence_limit import SilenceLimit
from magnetar.metadata.store import StoreClosed, StoreUnavailable

logger: Final = logging.getLogger(__name__)

RETRY_DELAY_SECONDS: Final = 0.1
"""Between attempts to find a server that can be reached; the caller's time bounds their number."""

CALL_SECONDS_MAX: Final = 10.0
"""For one attempt: a server that takes longer hangs, and another one may not."""

OPTIONS: Final = [
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),  # A page of keys, or of watch events.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),  # A metadata store stands beside its clients, whatever their environment says.
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
WITH_LEADER: Final = (("hasleader", "true"),)
"""Ends a stream of a server that has lost its cluster's leader. It would keep silent about all that changes there,
while calls go to other servers."""

NOT_SENT: Final = ("failed to connect", "connection refused", "no route to host", "dns resolution failed")
"""What gRPC says when a request never left: such a write may go to another server without being done twice."""


_OF_A_SERVER: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""Statuses that are one server's: another one may do better."""


class ProtobufMessage(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802

    @staticmethod
    def FromString(data: bytes, /) -> Any: ...  # noqa: N802


class Cancellable(Protocol):
    """A call of gRPC's."""

    def cancel(self) -> bool: ...


Answer = TypeVar("Answer", bound=ProtobufMessage)


class EtcdClient:
    """Channels to the servers of one etcd cluster; one of them is in use."""

    def __init__(self, access: EtcdAccess, operation_timeout_ms: int) -> None:
        self._channels = access.channels(OPTIONS)
        self._current = 0
        self._timeout_seconds = operation_timeout_ms / 1000
        self._patience = SilenceLimit(self._give_up)
        self._calls: set[Cancellable] = set()
        """Under way: as many as their callers have."""
        self._closed = False

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """Read the keys of a range."""
        return await self._call("/etcdserverpb.KV/Range", request, pb.RangeResponse, repeatable=True)

    async def transact(self, request: pb.TxnRequest, *, reads_only: bool = False) -> pb.TxnResponse:
        """Compare and do. `StoreUnavailable` if it is not known whether it was done."""
        return await self._call("/etcdserverpb.KV/Txn", request, pb.TxnResponse, repeatable=reads_only)

    async def grant(self, ttl_seconds: int) -> pb.LeaseGrantResponse:
        """A new lease; one that was granted without our hearing of it ends by itself."""
        request = pb.LeaseGrantRequest(TTL=ttl_seconds)
        return await self._call("/etcdserverpb.Lease/LeaseGrant", request, pb.LeaseGrantResponse, repeatable=True)

    async def revoke(self, lease: int) -> None:
        """End a lease and all keys of it."""
        request = pb.LeaseRevokeRequest(ID=lease)
        await self._call("/etcdserverpb.Lease/LeaseRevoke", request, pb.LeaseRevokeResponse, repeatable=True)

    async def keep_alive(self, lease: int, timeout_seconds: float) -> int:
        """Renew once; the seconds that the lease lives from now on, 0 when it has ended. `StoreUnavailable`."""
        asked = self._current
        call = self._channel().stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=pb.LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=pb.LeaseKeepAliveResponse.FromString,
        )(_once(pb.LeaseKeepAliveRequest(ID=lease)), timeout=timeout_seconds, metadata=WITH_LEADER)
        try:
            async for answer in call:
                seconds: int = answer.TTL
                return seconds
        except grpc.aio.AioRpcError as error:
            self._leave(asked)
            raise StoreUnavailable(f"etcd did not renew the lease: {error.details()}") from error
        raise StoreUnavailable("etcd did not renew the lease")

    async def watch(self, create: pb.WatchCreateRequest) -> AsyncIterator[pb.WatchResponse]:
        """What happens in a range, until the stream breaks (`StoreUnavailable`)."""
        wanted: asyncio.Queue[pb.WatchRequest] = asyncio.Queue()
        wanted.put_nowait(pb.WatchRequest(create_request=create))

        async def requests() -> AsyncIterator[pb.WatchRequest]:
            while True:  # The stream ends as soon as its requests do.
                yield await wanted.get()

        asked = self._current
        call = self._channel().stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )(requests(), metadata=WITH_LEADER)
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            self._leave(asked)
            raise StoreUnavailable(f"the watch on etcd broke: {error.details()}") from error
        finally:
            call.cancel()

    def limit_waiting(self, seconds: float) -> None:
        """Once a server that is asked has said nothing for so many seconds, fail all requests with `StoreClosed`. For a
        process that stops: it waits once, and not in each step."""
        self._patience.limit(seconds)

    async def close(self) -> None:
        """Drop the connections."""
        self._closed = True
        self._patience.close()
        for channel in self._channels:
            await channel.close()

    def check_open(self) -> None:
        """`StoreClosed` after `close`, and when a process that stops has given etcd up."""
        if self._closed:
            raise StoreClosed("the metadata store is closed")
        if self._patience.ended:
            raise StoreClosed("etcd says nothing, and this process stops")

    def _channel(self) -> grpc.aio.Channel:
        self.check_open()
        return self._channels[self._current]

    def _give_up(self) -> None:
        logger.warning("etcd says nothing; the stop goes on without")
        for call in self._calls:
            call.cancel()

    def _leave(self, asked: int) -> None:
        """Ask another server than this one, unless that is so already: many calls may fail together."""
        if self._current == asked:
            self._current = (asked + 1) % len(self._channels)

    async def _call(self, method: str, request: ProtobufMessage, answer: type[Answer], *, repeatable: bool) -> Answer:
        self._patience.requests += 1
        try:
            return await self._ask(method, request, answer, repeatable=repeatable)
        finally:
            self._patience.requests -= 1

    async def _ask(self, method: str, request: ProtobufMessage, answer: type[Answer], *, repeatable: bool) -> Answer:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._timeout_seconds
        while True:
            asked = self._current
            verb = self._channel().unary_unary(
                method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
            )
            call = verb(request, timeout=min(CALL_SECONDS_MAX, self._timeout_seconds))
            self._calls.add(call)
            try:
                found: Answer = await call
                self._patience.answered()
                return found
            except grpc.aio.AioRpcError as error:
                self.check_open()
                if not _may_repeat(error, repeatable=repeatable) or loop.time() > give_up:
                    if error.code() in _OF_A_SERVER:
                        self._leave(asked)
                    raise StoreUnavailable(f"etcd: {error.code().name}: {error.details()}") from error
                logger.info("etcd cannot be reached, trying another server: %s", error.details())
            except asyncio.CancelledError:
                self.check_open()  # A channel that closes cancels its calls, and so does the end of patience.
                raise
            finally:
                self._calls.discard(call)
            self._leave(asked)
            await asyncio.sleep(RETRY_DELAY_SECONDS)


def _may_repeat(error: grpc.aio.AioRpcError, *, repeatable: bool) -> bool:
    details = (error.details() or "").lower()
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return repeatable or any(text in details for text in NOT_SENT)
    return repeatable and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def _once(request: pb.LeaseKeepAliveRequest) -> AsyncIterator[pb.LeaseKeepAliveRequest]:
    yield request

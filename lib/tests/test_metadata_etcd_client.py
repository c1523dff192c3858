"""Calls to servers of which one hangs or has lost the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from magnetar.metadata.etcd_access import read_access
from magnetar.metadata.etcd_client import EtcdClient
from magnetar.metadata.generated import etcd_pb2 as pb
from magnetar.metadata.store import StoreUnavailable


class Server:
    """One of etcd's, as far as this needs it."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs
        self.port = 0
        self.metadata: dict[str, str | bytes] = {}
        """Of the last stream."""
        self._server = grpc.aio.server()

    async def start(self) -> Server:
        txn = grpc.unary_unary_rpc_method_handler(
            self._transact, pb.TxnRequest.FromString, pb.TxnResponse.SerializeToString
        )
        watch = grpc.stream_stream_rpc_method_handler(
            self._watch, pb.WatchRequest.FromString, pb.WatchResponse.SerializeToString
        )
        for service, methods in (("etcdserverpb.KV", {"Txn": txn}), ("etcdserverpb.Watch", {"Watch": watch})):
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, methods)])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return self

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _transact(self, request: pb.TxnRequest, context: object) -> pb.TxnResponse:
        del request, context
        if self.hangs:
            await asyncio.Event().wait()
        return pb.TxnResponse(succeeded=True)

    async def _watch(
        self, requests: AsyncIterator[pb.WatchRequest], context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[pb.WatchResponse]:
        del requests
        self.metadata = dict(context.invocation_metadata() or ())
        yield pb.WatchResponse(created=True)


@pytest.fixture
async def servers() -> AsyncIterator[list[Server]]:
    found = [await Server(hangs=hangs).start() for hangs in (True, False)]
    yield found
    for server in found:
        await server.stop()


def client_of(servers: list[Server]) -> EtcdClient:
    url = "etcd:" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return EtcdClient(read_access(url), operation_timeout_ms=2_000)


@pytest.mark.parametrize("together", [1, 2])
async def test_after_writes_without_an_answer_another_server_is_asked(servers: list[Server], together: int) -> None:
    """Whether they were done nobody knows, so they are not repeated. What comes next need not wait for that server."""
    client = client_of(servers)
    outcomes = await asyncio.gather(
        *(client.transact(pb.TxnRequest()) for _ in range(together)), return_exceptions=True
    )
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert (await client.transact(pb.TxnRequest())).succeeded
    await client.close()


async def test_a_watch_wants_a_server_that_has_a_leader(servers: list[Server]) -> None:
    """One that is cut off from its cluster would keep silent for as long as that lasts, and caches would grow old."""
    client = client_of(servers[1:])
    async for answer in client.watch(pb.WatchCreateRequest(key=b"/")):
        assert answer.created
        break
    assert servers[1].metadata["hasleader"] == "true"
    await client.close()

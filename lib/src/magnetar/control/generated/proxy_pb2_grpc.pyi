# ruff: noqa: E501, N802
# fmt: off
from collections.abc import AsyncIterator

import grpc.aio
from magnetar.control.generated import proxy_pb2

class ProxyStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    GetProxyState: grpc.aio.UnaryUnaryMultiCallable[proxy_pb2.GetProxyStateRequest, proxy_pb2.ProxyState]
    DrainProxy: grpc.aio.UnaryStreamMultiCallable[proxy_pb2.DrainProxyRequest, proxy_pb2.ProxyState]

class ProxyServicer:
    async def GetProxyState(self, request: proxy_pb2.GetProxyStateRequest, context: grpc.aio.ServicerContext[proxy_pb2.GetProxyStateRequest, proxy_pb2.ProxyState]) -> proxy_pb2.ProxyState: ...
    def DrainProxy(self, request: proxy_pb2.DrainProxyRequest, context: grpc.aio.ServicerContext[proxy_pb2.DrainProxyRequest, proxy_pb2.ProxyState]) -> AsyncIterator[proxy_pb2.ProxyState]: ...

def add_ProxyServicer_to_server(
    servicer: ProxyServicer, server: grpc.aio.Server
) -> None: ...

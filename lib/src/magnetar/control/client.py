"""Clients of the control port, for the command line and the operator. Importing this module loads gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Self, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # It has no types.
from magnetar.control.errors import ControlRefused, ControlUnavailable, ControlUnserved, RefusalReason
from magnetar.control.generated import bookie_pb2 as messages
from magnetar.control.generated.bookie_pb2_grpc import BookieStub
from magnetar.control.settings import TOKEN_HEADER, TOKEN_SCHEME, ControlClientTls
from magnetar.core.errors import MagnetarError, SettingError

CALL_SECONDS_MAX: Final = 30.0
"""The limit of every call that is no stream; counting underreplicated ledgers may take some seconds."""

TRY_AGAIN: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)

_WITHOUT_PROXY: Final = ("grpc.enable_http_proxy", 0)
"""gRPC would send calls through the environment's proxy, this machine's own too, and their token can be read there."""

RECONNECT_SECONDS_MAX: Final = 5.0
"""Between attempts to connect to a component that is away. gRPC's own pause grows to two minutes, and for so long one
that is back already counts as away."""

_RECONNECT: Final = ("grpc.max_reconnect_backoff_ms", round(RECONNECT_SECONDS_MAX * 1000))

_OPTIONS: Final = (_WITHOUT_PROXY, _RECONNECT)

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class ControlChannel:
    """A connection to one component's control port; made on first use, made again when it breaks."""

    def __init__(self, address: str, *, token: str = "", tls: ControlClientTls | None = None) -> None:
        """`address` is `host:port`. `SettingError` for certificate files that cannot be read."""
        self.address = address
        self.metadata: tuple[tuple[str, str], ...] = ((TOKEN_HEADER, TOKEN_SCHEME + token),) if token else ()
        if tls is None:
            self.channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            named = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
            self.channel = grpc.aio.secure_channel(address, _credentials(tls), options=(*_OPTIONS, *named))

    async def healthy(self, service: str = "") -> bool:
        """What the health service says; an unknown service is not healthy. `ControlUnavailable`."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = await stub.Check(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return False
            raise failure(self.address, error) from None
        serving: bool = answer.status == health_pb2.HealthCheckResponse.SERVING
        return serving

    async def close(self) -> None:
        """Cancel what is under way and let go."""
        await self.channel.close()

    async def ask(self, method: grpc.aio.UnaryUnaryMultiCallable[Request, Answer], request: Request) -> Answer:
        """The answer to a call, or its error as one of ours: `ControlRefused`, `ControlUnavailable`."""
        try:
            return await method(request, timeout=CALL_SECONDS_MAX, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            raise failure(self.address, error) from None

    async def each(
        self, method: grpc.aio.UnaryStreamMultiCallable[Request, Answer], request: Request
    ) -> AsyncIterator[Answer]:
        """The answers of a stream, errors as in `ask`. Leaving the loop cancels the call."""
        call = method(request, metadata=self.metadata)
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise failure(self.address, error) from None
        finally:
            call.cancel()


class ControlClient:
    """One component's control service. Errors: `ControlRefused`, `ControlUnavailable`."""

    def __init__(self, channel: ControlChannel) -> None:
        self.channel = channel

    @classmethod
    def to(cls, address: str, *, token: str = "", tls: ControlClientTls | None = None) -> Self:
        """The control port of a bookie, for an `async with` that closes the channel."""
        return cls(ControlChannel(address, token=token, tls=tls))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()


class BookieControl(ControlClient):
    """One bookie's control service."""

    def __init__(self, channel: ControlChannel) -> None:
        super().__init__(channel)
        self._stub = BookieStub(channel.channel)

    async def storage_state(self) -> messages.StorageState:
        """What it holds, and whether it takes writes."""
        return await self.channel.ask(self._stub.GetStorageState, messages.GetStorageStateRequest())

    async def set_read_only(self, *, read_only: bool) -> messages.StorageState:
        """Switch read-only mode."""
        return await self.channel.ask(self._stub.SetReadOnly, messages.SetReadOnlyRequest(read_only=read_only))

    async def start_drain(self) -> messages.Drain:
        """Begin to move everything off it."""
        return await self.channel.ask(self._stub.StartDrain, messages.StartDrainRequest())

    async def drain(self) -> messages.Drain:
        """How far the drain of the bookie is."""
        return await self.channel.ask(self._stub.GetDrain, messages.GetDrainRequest())

    def watch_drain(self, interval_ms: int = 0) -> AsyncIterator[messages.Drain]:
        """The state now and after each change, until it is done or none runs."""
        return self.channel.each(self._stub.WatchDrain, messages.WatchDrainRequest(interval_ms=interval_ms))

    async def cancel_drain(self) -> messages.Drain:
        """Stop the drain and take writes again."""
        return await self.channel.ask(self._stub.CancelDrain, messages.CancelDrainRequest())

    async def collect_garbage(self, *, force_major: bool | None = None, force_minor: bool | None = None) -> None:
        """Begin a collection; None: compact unless that is suspended."""
        request = messages.TriggerGarbageCollectionRequest()
        if force_major is not None:
            request.force_major = force_major
        if force_minor is not None:
            request.force_minor = force_minor
        await self.channel.ask(self._stub.TriggerGarbageCollection, request)

    async def ledgers(
        self, *, after_ledger_id: int = -1, count_max: int = 0, page_size: int = 0
    ) -> AsyncIterator[messages.StoredLedger]:
        """Ledgers of which it holds entries, ascending; count 0: all."""
        request = messages.ListLedgersRequest(after_ledger_id=after_ledger_id, page_size=page_size, count_max=count_max)
        async for page in self.channel.each(self._stub.ListLedgers, request):
            for ledger in page.ledgers:
                yield ledger

    async def auto_recovery(self) -> messages.AutoRecovery:
        """What AutoRecovery does."""
        return await self.channel.ask(self._stub.GetAutoRecovery, messages.GetAutoRecoveryRequest())

    def watch_auto_recovery(self, interval_ms: int = 0) -> AsyncIterator[messages.AutoRecovery]:
        """Hear the state of AutoRecovery again and again."""
        return self.channel.each(
            self._stub.WatchAutoRecovery, messages.WatchAutoRecoveryRequest(interval_ms=interval_ms)
        )

    async def enable_auto_recovery(self, *, enabled: bool) -> messages.AutoRecovery:
        """Switch it for the whole cluster."""
        if enabled:
            return await self.channel.ask(self._stub.EnableAutoRecovery, messages.EnableAutoRecoveryRequest())
        return await self.channel.ask(self._stub.DisableAutoRecovery, messages.DisableAutoRecoveryRequest())

    async def lost_bookie(self, bookie_id: str) -> messages.LostBookie:
        """What the cluster has of another bookie, which does not run."""
        return await self.channel.ask(self._stub.GetLostBookie, messages.GetLostBookieRequest(bookie_id=bookie_id))

    async def retire_lost_bookie(self, bookie_id: str) -> messages.LostBookie:
        """Take the next step to have that one forgotten; it is when it has no cookie and no ledgers are left."""
        request = messages.RetireLostBookieRequest(bookie_id=bookie_id)
        return await self.channel.ask(self._stub.RetireLostBookie, request)


def failure(address: str, error: grpc.aio.AioRpcError) -> MagnetarError:
    """A failed call as an error of ours."""
    text = error.details() or error.code().name
    if error.code() in TRY_AGAIN:
        return ControlUnavailable(f"{address}: {text}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return ControlUnserved(RefusalReason.INTERNAL, f"the control port {address} does not serve this call")
    known = RefusalReason.__members__
    return ControlRefused(known.get(error.code().name, RefusalReason.INTERNAL), text)


def _credentials(tls: ControlClientTls) -> grpc.ChannelCredentials:
    def content(path: Path | None) -> bytes | None:
        return path.read_bytes() if path is not None else None

    try:
        return grpc.ssl_channel_credentials(
            content(tls.authority_file), content(tls.key_file), content(tls.certificate_file)
        )
    except OSError as error:
        raise SettingError(f"a file of the client's TLS cannot be read: {error}") from None

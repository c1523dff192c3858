"""Connecting to a bookie with TLS: it is asked in clear to begin with TLS, then both go on in it.

The question and its answer are of version 3; what follows may be of version 2 (BookKeeper:
proto/PerChannelBookieClient, START_TLS).
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from magnetar.core.errors import PeerError
from magnetar.net.connection import AnyHandlerFactory, Connection
from magnetar.net.endpoints import connect
from magnetar.net.start_tls import start_tls
from magnetar.net.tls import ClientTls
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.v3 import Operation, Request, Response, StartTlsRequest, decode_response, encode_request
from magnetar.wire.framing import FrameSplitter

ANSWER_BYTES_MAX: Final = 64 * 1024
"""The answer to START_TLS has some twenty bytes."""

_START_TLS: Final = encode_request(Request(operation=Operation.START_TLS, transaction_id=1, body=StartTlsRequest()))


class NoTls(ConnectionError):
    """The bookie does not go on in TLS."""


async def connect_to_bookie(
    host: str,
    port: int,
    make_handler: AnyHandlerFactory,
    timeout_seconds: float,
    tls: ClientTls | None,
) -> Connection:
    """A connection on which requests may be sent, with TLS if given. OSError (bad certificates are such; `NoTls`) or
    TimeoutError; for the log, `problem_of` has words."""
    if tls is None:
        return await connect(host, port, make_handler, timeout_seconds)
    async with asyncio.timeout(timeout_seconds):
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        connection = await connect(host, port, lambda made: _StartTls(made, answer), None)
        try:
            connection.write(_START_TLS)
            await _agreed(answer)
            await start_tls(
                connection,
                tls.context,
                server_side=False,
                server_name=host,
                make_handler=make_handler,
                timeout_seconds=timeout_seconds,
            )
        except BaseException:
            connection.abort()
            raise
    return connection


async def _agreed(answer: asyncio.Future[Response]) -> None:
    try:
        code = (await answer).code
    except PeerError as error:
        raise NoTls(f"the bookie answered START_TLS with something else: {error}") from None
    if code is not BookieCode.EOK:
        raise NoTls(f"the bookie offers no TLS (it answered START_TLS with {code.name})")


def problem_of(error: BaseException | None) -> str:
    """Why a connection to a bookie did not come to stand, or ended; in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message or error}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        return f"TLS failed: {reason}"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return str(error) if error is not None and str(error) else type(error).__name__


class _StartTls:
    """Waits for the answer, after which nothing may come in clear."""

    def __init__(self, connection: Connection, answer: asyncio.Future[Response]) -> None:
        self._connection = connection
        self._answer = answer
        self._splitter = FrameSplitter(ANSWER_BYTES_MAX)

    def connection_made(self) -> None:
        """The question is written by whoever asks it."""

    def data_received(self, data: bytes) -> None:
        """The answer, or a part of it."""
        try:
            buffer, bounds = self._splitter.feed(data)
            if not bounds:
                return
            self._take(buffer, bounds)
        except PeerError as error:
            self._fail(error)
            self._connection.abort()

    def _take(self, buffer: bytes, bounds: list[int]) -> None:
        if len(bounds) > 2 or self._splitter.pending_bytes or self._answer.done():
            raise PeerError("more came behind the answer, in clear")
        answer = decode_response(buffer[bounds[0] : bounds[1]])
        if answer.operation is not Operation.START_TLS:
            raise PeerError(f"an answer to {answer.operation.name}")
        self._answer.set_result(answer)

    def writable_changed(self, writable: bool) -> None:
        """One small frame is written; there is nothing to hold back."""

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        self._fail(error or ConnectionResetError("the bookie closed the connection over START_TLS"))

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

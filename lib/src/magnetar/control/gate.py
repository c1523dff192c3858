"""Every call passes here: the token is checked, and errors become gRPC statuses with texts."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from magnetar.control.errors import ControlRefused, RefusalReason
from magnetar.control.settings import TOKEN_HEADER, TOKEN_SCHEME
from magnetar.control.token import ControlToken
from magnetar.core.errors import PeerError, SettingError, Unavailable

logger: Final = logging.getLogger(__name__)

OPEN_METHOD: Final = "/grpc.health.v1.Health/Check"
"""Probes have no token, and health tells nothing that a connection does not tell. Its `Watch` goes on for ever, and
needs one."""

OPEN_CALLS_MAX: Final = 64
"""Open calls at a time; a kubelet or two ask."""

OPEN_SECONDS_MAX: Final = 2.0
"""For the request of one: it comes with the call's beginning from everybody who means it."""

OUR_METHODS: Final = "/magnetar.control."
"""Methods whose errors are ours; others (reflection, health) answer for themselves."""

_NO_TOKEN: Final = "this port wants a token: send the header authorization: Bearer <token>"  # noqa: S105
_WRONG_TOKEN: Final = "the token is not this component's; take the one of its control token setting"  # noqa: S105

Handler = Any
"""`grpc.RpcMethodHandler`; its methods have no types."""


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """The interceptor of the control server."""

    def __init__(self, token: ControlToken) -> None:
        self._token = token
        self._open_calls = 0

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], details: grpc.HandlerCallDetails
    ) -> Handler:
        """The handler of a call, or one that refuses it."""
        handler = await continuation(details)
        if handler is None:
            return None
        method = str(details.method)
        if method == OPEN_METHOD:
            return self._for_everybody(handler)
        problem = self._problem(details)
        if problem is not None:
            return _refusing(handler, problem)
        return _answering(handler, method) if method.startswith(OUR_METHODS) else handler

    def _for_everybody(self, handler: Handler) -> Handler:
        """The handler of an open call, for callers who may be anybody: few at a time, and each for a moment."""

        async def answer(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            if self._open_calls >= OPEN_CALLS_MAX:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many health checks at a time")
            self._open_calls += 1
            try:
                async with asyncio.timeout(OPEN_SECONDS_MAX):
                    request = await anext(requests)
            except (TimeoutError, StopAsyncIteration):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call without a request")
            finally:
                self._open_calls -= 1
            return await handler.unary_unary(request, context)

        return grpc.stream_unary_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)

    def _problem(self, details: grpc.HandlerCallDetails) -> str | None:
        wanted = self._token.wanted
        if not wanted:
            return None
        shown = next((value for key, value in details.invocation_metadata or () if key == TOKEN_HEADER), "")
        text = shown if isinstance(shown, str) else ""
        if not text.startswith(TOKEN_SCHEME):
            return _NO_TOKEN
        matches = hmac.compare_digest(text.removeprefix(TOKEN_SCHEME).encode("utf-8", "replace"), wanted)
        return None if matches else _WRONG_TOKEN


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """How an error of a servicer is told."""
    match error:
        case ControlRefused():
            return grpc.StatusCode[error.reason.value], str(error)
        case Unavailable():
            return grpc.StatusCode.UNAVAILABLE, f"{error} (try again)"
        case SettingError():
            return grpc.StatusCode.INVALID_ARGUMENT, str(error)
        case PeerError():
            return grpc.StatusCode[RefusalReason.FAILED_PRECONDITION.value], str(error)
        case OSError():
            return grpc.StatusCode.INTERNAL, f"the disk or network of this component failed: {error}"
        case _:
            return grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error} (the component's log says more)"


async def _abort(context: grpc.aio.ServicerContext[Any, Any], method: str, error: Exception) -> None:
    code, text = status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        logger.error("%s failed", method, exc_info=error)
    await context.abort(code, text)


def _answering(handler: Handler, method: str) -> Handler:
    if handler.response_streaming:

        async def stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            try:
                async for message in handler.unary_stream(request, context):
                    yield message
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001  (the edge: whoever calls is told)
                await _abort(context, method, error)

        return grpc.unary_stream_rpc_method_handler(stream, handler.request_deserializer, handler.response_serializer)

    async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await handler.unary_unary(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  (the edge: whoever calls is told)
            await _abort(context, method, error)

    return grpc.unary_unary_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)


def _refusing(handler: Handler, problem: str) -> Handler:
    code = grpc.StatusCode.UNAUTHENTICATED

    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(code, problem)

    # As if requests were streams: those of others are not waited for, as they might never come.
    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return make(refuse, handler.request_deserializer, handler.response_serializer)

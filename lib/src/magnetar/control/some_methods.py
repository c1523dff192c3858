"""A service of the control port of which only some methods are offered. Importing this module loads gRPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from magnetar.control.server import ControlService


@dataclass(frozen=True, slots=True)
class ControlMethod:
    """One method: what is called with a request and gRPC's context, and what a request is."""

    handler: Callable[[Any, object], object]
    """A coroutine function, or for a stream of answers an asynchronous generator."""
    request: type[Message]
    streams: bool = False
    """Whether it answers with a stream."""


def service_of(name: str, methods: Mapping[str, ControlMethod]) -> ControlService:
    """The service; its other methods are answered UNIMPLEMENTED."""

    def encode(message: Message) -> bytes:
        return message.SerializeToString()

    def add_to(server: grpc.aio.Server) -> None:
        handlers = {
            method_name: (
                grpc.unary_stream_rpc_method_handler if method.streams else grpc.unary_unary_rpc_method_handler
            )(method.handler, method.request.FromString, encode)
            for method_name, method in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    return ControlService(name, add_to)

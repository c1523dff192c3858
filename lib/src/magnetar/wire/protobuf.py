"""Reading protobuf messages, from bytes or from text: the rest of the system sees one error and none of the library.

Facts: BookKeeper keeps some records as protobuf text (cookies, old ledger metadata); Pulsar's PROTOBUF_NATIVE schemas
carry a serialised FileDescriptorSet.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from magnetar.wire.errors import BadProtobuf

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

AnyMessage = TypeVar("AnyMessage", bound=Message)


def parse(kind: type[AnyMessage], data: bytes) -> AnyMessage:
    """The message that the bytes are. Raises `BadProtobuf`."""
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise BadProtobuf(f"not a {kind.__name__}: {error}") from error
    if not message.IsInitialized():
        # The library looks at the outermost message alone; what is missing would be told when it is written again.
        raise BadProtobuf(f"not a {kind.__name__}: it lacks what it must have")
    return message


def parse_text(kind: type[AnyMessage], text: str | bytes) -> AnyMessage:
    """The message that protobuf text describes. Raises `BadProtobuf`."""
    try:
        with warnings.catch_warnings():
            # An escape that is none: Python would only warn, Java's library refuses it.
            warnings.simplefilter("error", DeprecationWarning)
            return text_format.Parse(text, kind())
    except (text_format.ParseError, ValueError, RecursionError, DeprecationWarning) as error:
        raise BadProtobuf(f"not a {kind.__name__}: {error}") from error


def to_text(message: Message) -> str:
    """A message as protobuf text, a field a line."""
    return text_format.MessageToString(message)


def defined_name(descriptors: bytes, message_name: str, file_name: str) -> str:
    """The full name of a message that a serialised FileDescriptorSet defines in the file of that name.

    `message_name` is full or relative to the file's package. Raises `BadProtobuf` when the set is damaged, is
    incomplete, imports in a circle or has no such message there."""
    # Few topics have such a schema, and the descriptor classes cost start-up time and memory.
    from google.protobuf import descriptor_pb2, descriptor_pool

    files = {file.name: file for file in parse(descriptor_pb2.FileDescriptorSet, descriptors).file}
    try:
        pool = descriptor_pool.DescriptorPool()
        for name in _in_order(files, file_name):
            pool.Add(files[name])
        package = files[file_name].package
        relative = message_name.removeprefix(f"{package}.") if package else message_name
        message = pool.FindMessageTypeByName(f"{package}.{relative}" if package else relative)
    except (KeyError, TypeError, ValueError) as error:
        raise BadProtobuf(f"no {message_name} is defined in {file_name}: {error}") from error
    if message.file.name != file_name:
        raise BadProtobuf(f"{message_name} is defined in {message.file.name}, not in {file_name}")
    return message.full_name


def _in_order(files: Mapping[str, FileDescriptorProto], root_file: str) -> list[str]:
    """The file and those it depends on, dependencies first. `KeyError` for a missing one, `ValueError` for a circle."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    waiting = [root_file]
    seen = {root_file}
    while waiting:
        name = waiting.pop()
        sorter.add(name, *files[name].dependency)
        waiting.extend(needed for needed in files[name].dependency if needed not in seen)
        seen.update(files[name].dependency)
    return list(sorter.static_order())

"""PROTOBUF_NATIVE: the data is JSON with a serialised FileDescriptorSet and the names of the root message and its file.

PROTOBUF, the older type, carries an Avro schema and is checked as one.

Facts: Pulsar 4.0 ProtobufNativeSchemaUtils, ProtobufNativeSchemaCompatibilityCheck.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Final

from magnetar.broker.schema.errors import IncompatibleSchema, InvalidSchemaData
from magnetar.broker.schema.schema_info import SchemaInfo
from magnetar.broker.schema.strategy import Strategy

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_UNREADABLE: Final = "deserialize ProtobufNative Schema failed"


def check(existing: Sequence[SchemaInfo], new: SchemaInfo, strategy: Strategy) -> None:
    """Hold a new schema against old ones: the root message must keep its name. `IncompatibleSchema`."""
    if strategy is Strategy.ALWAYS_COMPATIBLE or not existing:
        return
    if not strategy.new_reads_old and not strategy.old_reads_new:
        raise IncompatibleSchema(f"Schema compatibility check with strategy {strategy.value}: no change is allowed")
    try:
        new_name = root_message_name(new.data)
        old_names = [root_message_name(schema.data) for schema in existing]
    except InvalidSchemaData as error:
        raise IncompatibleSchema(error.message) from error
    for old_name in old_names:
        if old_name != new_name:
            raise IncompatibleSchema(
                f"Protobuf root message change is not allowed under the '{strategy.value}' strategy. "
                f"Original message name: '{old_name}', new message name: '{new_name}'."
            )


def root_message_name(data: bytes) -> str:
    """The full name of the root message, looked up in the descriptors. `InvalidSchemaData` when that cannot be done."""
    try:
        document = json.loads(data)
        descriptors = base64.b64decode(document["fileDescriptorSet"], validate=True)
        root, root_file = document["rootMessageTypeName"], document["rootFileDescriptorName"]
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error) as error:
        raise InvalidSchemaData(_UNREADABLE) from error
    if not isinstance(root, str) or not isinstance(root_file, str):
        raise InvalidSchemaData(_UNREADABLE)
    return _find_root(descriptors, root, root_file)


def _find_root(descriptors: bytes, root: str, root_file: str) -> str:
    # Few topics have such a schema, and the descriptor classes cost start-up time and memory.
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    try:
        files = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file}
        pool = descriptor_pool.DescriptorPool()
        for name in _in_order(files, root_file):
            pool.Add(files[name])
        package = files[root_file].package
        relative = root.removeprefix(f"{package}.") if package else root
        message = pool.FindMessageTypeByName(f"{package}.{relative}" if package else relative)
    except (DecodeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSchemaData(_UNREADABLE) from error
    if message.file.name != root_file:
        raise InvalidSchemaData(_UNREADABLE)
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

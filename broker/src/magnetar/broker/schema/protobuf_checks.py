"""PROTOBUF_NATIVE: the data is JSON with a serialised FileDescriptorSet and the names of the root message and its file.

PROTOBUF, the older type, carries an Avro schema and is checked as one.

Facts: Pulsar 4.0 ProtobufNativeSchemaUtils, ProtobufNativeSchemaCompatibilityCheck.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Final

from magnetar.broker.schema.errors import IncompatibleSchema, InvalidSchemaData
from magnetar.broker.schema.schema_info import SchemaInfo
from magnetar.broker.schema.strategy import Strategy
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.protobuf import defined_name

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
    try:
        return defined_name(descriptors, root, root_file)
    except BadProtobuf as error:
        raise InvalidSchemaData(_UNREADABLE) from error

"""Refusals that reach clients which understand no ERROR before CONNECTED."""

from __future__ import annotations

import pytest
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    AuthenticationError,
    BaseCommand,
    CommandLookupTopicResponse,
)
from magnetar.wire.pulsar.refusals import heard_at_first_request, refusal_of

CODE = ServerError.AUTHENTICATION_ERROR
WITHOUT_ANSWER = (BaseCommand.PING, BaseCommand.SEND, BaseCommand.FLOW, BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)


@pytest.mark.parametrize(
    ("version", "code", "later"),
    [
        ("Pulsar-CPP-v4.2.0", CODE, True),
        ("Pulsar-CPP-v4.2.0", ServerError.AUTHORIZATION_ERROR, True),
        ("Pulsar-CPP-v4.2.0", ServerError.SERVICE_NOT_READY, False),
        ("Pulsar-Java-v4.0.8", CODE, False),
        ("Pulsar Go version unknown", CODE, False),
        ("", CODE, False),
    ],
)
def test_who_hears_it_when(version: str, code: ServerError, later: bool) -> None:
    assert heard_at_first_request(version, code) is later


def answered(kind: int) -> BaseCommand | None:
    command = BaseCommand(type=BaseCommand.Type.Name(kind))
    body = getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[kind].name)
    if "request_id" in body.DESCRIPTOR.fields_by_name:
        body.request_id = 5
    frame = refusal_of(command, CODE, "no")
    if frame is None:
        return None
    buffer, bounds = command_splitter().feed(frame)
    return messages.decode_command(buffer, bounds[0], bounds[1])


def test_every_request_is_answered_in_its_own_way() -> None:
    lookup, partitions = answered(BaseCommand.LOOKUP), answered(BaseCommand.PARTITIONED_METADATA)
    assert lookup is not None
    assert partitions is not None
    response = lookup.lookupTopicResponse
    assert (response.request_id, response.error, response.response) == (
        5,
        AuthenticationError,
        CommandLookupTopicResponse.Failed,
    )
    assert (partitions.partitionMetadataResponse.request_id, partitions.partitionMetadataResponse.error) == (
        5,
        AuthenticationError,
    )
    for kind in (BaseCommand.PRODUCER, BaseCommand.SUBSCRIBE, BaseCommand.GET_SCHEMA, BaseCommand.GET_LAST_MESSAGE_ID):
        error = answered(kind)
        assert error is not None
        assert (error.type, error.error.request_id, error.error.error) == (BaseCommand.ERROR, 5, AuthenticationError)
    for kind in WITHOUT_ANSWER:
        assert answered(kind) is None

"""Which group of commands serves which: one table for all sessions.

A table for each of ten thousand connections would be most of what the collector of cycles walks through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from magnetar.broker.session.api import ControlCommand, Group, Session
from magnetar.broker.session.consume import ConsumerCommands
from magnetar.broker.session.coordinators import CoordinatorCommands
from magnetar.broker.session.lookup import LookupCommands
from magnetar.broker.session.produce import ProducerCommands
from magnetar.broker.session.schema import SchemaCommands
from magnetar.broker.session.subscription_ends import SubscriptionEndCommands
from magnetar.broker.session.topic_lists import TopicListCommands
from magnetar.broker.session.transaction_ends import TransactionEndCommands
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand
from magnetar.wire.pulsar.topic_lists import TYPE_TOPICS_OF_NAMESPACE
from magnetar.wire.pulsar.topic_requests import TYPE_LOOKUP, TYPE_PARTITIONED_METADATA


class GroupedSession(Session, Protocol):
    """A session with its groups."""

    @property
    def producers(self) -> ProducerCommands: ...
    @property
    def consumers(self) -> ConsumerCommands: ...
    @property
    def lookups(self) -> LookupCommands: ...
    @property
    def topic_lists(self) -> TopicListCommands: ...

    def ping(self) -> None: ...
    def auth_response(self, command: BaseCommand) -> None: ...


def _of(
    group_of: Callable[[GroupedSession], Group], commands: dict[int, ControlCommand[Group]]
) -> dict[int, ControlCommand[GroupedSession]]:
    def of_session(serve: ControlCommand[Group]) -> ControlCommand[GroupedSession]:
        return lambda session, command: serve(group_of(session), command)

    return {kind: of_session(serve) for kind, serve in commands.items()}


COMMANDS: Final[dict[int, ControlCommand[GroupedSession]]] = {
    BaseCommand.PING: lambda session, _: session.ping(),
    BaseCommand.PONG: lambda *_: None,  # That something came has been noted already.
    BaseCommand.AUTH_RESPONSE: lambda session, command: session.auth_response(command),
    BaseCommand.LOOKUP: lambda session, command: session.lookups.serve_lookup(command),
    BaseCommand.PARTITIONED_METADATA: lambda session, command: session.lookups.serve_partitions(command),
    **_of(lambda session: session.producers, ProducerCommands.COMMANDS),
    **_of(lambda session: session.consumers, ConsumerCommands.COMMANDS),
    **_of(lambda session: session.topic_lists, TopicListCommands.COMMANDS),
    **_of(SchemaCommands, SchemaCommands.COMMANDS),
    **_of(CoordinatorCommands, CoordinatorCommands.COMMANDS),
    **_of(TransactionEndCommands, TransactionEndCommands.COMMANDS),
    **_of(SubscriptionEndCommands, SubscriptionEndCommands.COMMANDS),
}

READ_BY_HAND: Final[dict[int, Callable[[GroupedSession, bytes, int, int], bool]]] = {
    TYPE_LOOKUP: lambda session, buffer, start, end: session.lookups.look_up(buffer, start, end),
    TYPE_PARTITIONED_METADATA: lambda session, buffer, start, end: session.lookups.count_partitions(buffer, start, end),
    TYPE_TOPICS_OF_NAMESPACE: lambda session, buffer, start, end: session.topic_lists.list_topics(buffer, start, end),
}
"""What clients ask by the thousand when a broker is gone: these take the buffer and the bounds of the frame. False:
its form is not the usual one, and what it is only protobuf can tell."""

"""Transaction commands of clients: TC_CLIENT_CONNECT, NEW_TXN, ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN, END_TXN.

Pulsar: `ServerCnx.handleTcClientConnectRequest` and what follows it there. A broker without transactions refuses all of
them by ERROR, one that has them answers each in its own words.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, cast

from magnetar.broker.server_errors import server_error_of
from magnetar.broker.session.api import ControlCommand, Session
from magnetar.broker.session.lookup_questions import parse_topic
from magnetar.broker.transactions.api import NOT_ENABLED, Asker, Coordinators
from magnetar.broker.transactions.names import TransactionId
from magnetar.core.errors import MagnetarError, forget_frames
from magnetar.core.ids import signed64
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import frame_of

logger: Final = logging.getLogger(__name__)

NOBODY: Final = Asker("", super_user=False)


class CoordinatorCommands:
    """The commands of one session to transaction coordinators."""

    COMMANDS: ClassVar[dict[int, ControlCommand[CoordinatorCommands]]] = {
        pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST: lambda self, command: self._connect(command.tcClientConnectRequest),
        pb.BaseCommand.NEW_TXN: lambda self, command: self._new(command.newTxn),
        pb.BaseCommand.ADD_PARTITION_TO_TXN: lambda self, command: self._add_partitions(command.addPartitionToTxn),
        pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN: lambda self, command: self._add_subscriptions(
            command.addSubscriptionToTxn
        ),
        pb.BaseCommand.END_TXN: lambda self, command: self._end(command.endTxn),
    }
    """What this group answers."""

    def __init__(self, session: Session) -> None:
        self._session: Session = session

    async def _connect(self, request: pb.CommandTcClientConnectRequest) -> None:
        answer = pb.CommandTcClientConnectResponse(request_id=request.request_id)

        async def work(coordinators: Coordinators) -> None:
            await coordinators.connect(request.tc_id)

        await self._answer(answer, work)

    async def _new(self, request: pb.CommandNewTxn) -> None:
        answer = pb.CommandNewTxnResponse(request_id=request.request_id, txnid_most_bits=request.tc_id)

        async def work(coordinators: Coordinators) -> None:
            # In milliseconds, whatever the field is called; Java's clients and brokers have a long for it.
            timeout_ms = max(0, signed64(request.txn_ttl_seconds))
            begun = await coordinators.new_transaction(request.tc_id, timeout_ms, self._asker())
            answer.txnid_least_bits = begun.sequence

        await self._answer(answer, work)

    async def _add_partitions(self, request: pb.CommandAddPartitionToTxn) -> None:
        answer = pb.CommandAddPartitionToTxnResponse()

        async def work(coordinators: Coordinators) -> None:
            partitions = list(request.partitions)
            _check_topics(partitions)
            await coordinators.add_partitions(_id_of(request), self._asker(), partitions)

        await self._answer(_of_transaction(answer, request), work)

    async def _add_subscriptions(self, request: pb.CommandAddSubscriptionToTxn) -> None:
        answer = pb.CommandAddSubscriptionToTxnResponse()

        async def work(coordinators: Coordinators) -> None:
            subscriptions = [(one.topic, one.subscription) for one in request.subscription]
            _check_topics([topic for topic, _ in subscriptions])
            await coordinators.add_subscriptions(_id_of(request), self._asker(), subscriptions)

        await self._answer(_of_transaction(answer, request), work)

    async def _end(self, request: pb.CommandEndTxn) -> None:
        answer = pb.CommandEndTxnResponse()

        async def work(coordinators: Coordinators) -> None:
            if not request.HasField("txn_action"):
                raise PulsarError(ServerError.NOT_ALLOWED_ERROR, "END_TXN says neither COMMIT nor ABORT")
            await coordinators.end(_id_of(request), self._asker(), commit=request.txn_action == pb.COMMIT)

        await self._answer(_of_transaction(answer, request), work)

    def _asker(self) -> Asker:
        access = self._session.access
        return NOBODY if access is None else Asker(access.role, access.is_known_super_user)

    async def _answer(self, answer: Any, work: Callable[[Coordinators], Awaitable[None]]) -> None:
        """Do the work, and answer; an error goes into the answer's fields."""
        session = self._session
        coordinators = session.context.coordinators
        if coordinators is None:
            session.send_error(answer.request_id, ServerError.NOT_ALLOWED_ERROR, NOT_ENABLED)
            return
        try:
            await work(coordinators)
        except MagnetarError as error:
            if not isinstance(error, PulsarError):
                logger.warning("request %d of %s failed: %s", answer.request_id, session.peer_address, error)
            answer.error = cast("pb.ServerError", int(server_error_of(error)))
            answer.message = error.message if isinstance(error, PulsarError) else str(error) or type(error).__name__
            forget_frames(error)
        session.write(frame_of(answer))


def _id_of(request: Any) -> TransactionId:
    return TransactionId(request.txnid_most_bits, request.txnid_least_bits)


def _of_transaction(answer: Any, request: Any) -> Any:
    answer.request_id = request.request_id
    answer.txnid_least_bits, answer.txnid_most_bits = request.txnid_least_bits, request.txnid_most_bits
    return answer


def _check_topics(topics: list[str]) -> None:
    """`PulsarError`: what can be no topic can never hear of an end."""
    for topic in topics:
        parse_topic(topic)

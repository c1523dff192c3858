"""END_TXN_ON_PARTITION: a coordinator, on whichever broker, ends a transaction on a topic of this one.

Facts: transactions-dedup-compaction 1.5; Pulsar `ServerCnx.handleEndTxnOnPartition`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from magnetar.broker.server_errors import server_error_of
from magnetar.broker.session.lookup_questions import parse_topic
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions.api import NOT_ENABLED
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import signed64
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import TEXT_CHARACTERS_MAX, frame_of

if TYPE_CHECKING:
    from magnetar.broker.session.api import ControlCommand, Session

NO_SUCH_TOPIC: Final = frozenset({ServerError.TOPIC_NOT_FOUND, ServerError.NOT_ALLOWED_ERROR})
"""How it is refused to load what is gone, and what can never be a topic: a name that stands for several partitions, or
for a log of brokers. A coordinator that heard of an error would ask again for ever."""

NO_ACTION: Final = "The end of a transaction says neither COMMIT nor ABORT"

NOT_FOUND: Final = "The transaction is not found, or its coordinator has no right to end it."


def end_of(request: pb.CommandEndTxnOnPartition | pb.CommandEndTxnOnSubscription) -> tuple[bool, int]:
    """Whether to commit, and the low-water mark: -1 while the coordinator's first transaction is open, or without one.
    `PulsarError`: absent, both would read as something else."""
    if not request.HasField("txn_action"):
        raise PulsarError(ServerError.NOT_ALLOWED_ERROR, NO_ACTION)
    given = request.HasField("txnid_least_bits_of_low_watermark")
    return request.txn_action == pb.COMMIT, signed64(request.txnid_least_bits_of_low_watermark) if given else -1


class TransactionEndCommands:
    """What coordinators ask of the topics of this broker."""

    COMMANDS: ClassVar[dict[int, ControlCommand[TransactionEndCommands]]] = {
        pb.BaseCommand.END_TXN_ON_PARTITION: lambda self, command: self._end(command.endTxnOnPartition),
    }
    """What this group answers."""

    def __init__(self, session: Session) -> None:
        self._session: Session = session

    def _end(self, request: pb.CommandEndTxnOnPartition) -> Coroutine[Any, Any, None] | None:
        if not self._session.context.settings.transactions.enabled:
            self._answer(request, ServerError.NOT_ALLOWED_ERROR, NOT_ENABLED)
            return None
        return self._end_and_answer(request)

    async def _end_and_answer(self, request: pb.CommandEndTxnOnPartition) -> None:
        try:
            await self._end_on_topic(request)
        except MagnetarError as error:
            self._answer(request, server_error_of(error), str(error))
            return
        self._answer(request, None, "")

    async def _end_on_topic(self, request: pb.CommandEndTxnOnPartition) -> None:
        session = self._session
        if not session.is_super_user:
            raise PulsarError(ServerError.TRANSACTION_NOT_FOUND, NOT_FOUND)
        commit, low_water_mark = end_of(request)
        name = parse_topic(request.topic)
        try:
            topic = await session.context.service.topic(name, create=False)
        except PulsarError as error:
            if error.code in NO_SUCH_TOPIC:
                return  # It was deleted, and with it what the transaction has written.
            raise
        if not isinstance(topic, PersistentTopic) or topic.buffer is None:
            return  # Messages of transactions are refused there, so that there is nothing to be ended.
        await topic.buffer.end(
            (request.txnid_most_bits, request.txnid_least_bits),
            commit=commit,
            low_water_mark=low_water_mark,
        )

    def _answer(self, request: pb.CommandEndTxnOnPartition, code: ServerError | None, message: str) -> None:
        answer = pb.CommandEndTxnOnPartitionResponse(
            request_id=request.request_id,
            txnid_least_bits=request.txnid_least_bits,
            txnid_most_bits=request.txnid_most_bits,
        )
        if code is not None:
            answer.error, answer.message = cast(pb.ServerError, int(code)), message[:TEXT_CHARACTERS_MAX]
        self._session.write(frame_of(answer))

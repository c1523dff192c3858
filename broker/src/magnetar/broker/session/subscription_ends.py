"""END_TXN_ON_SUBSCRIPTION: a coordinator, here or at another broker, says how a transaction ended (pulsar-protocol
section 10; Pulsar `ServerCnx.handleEndTxnOnSubscription`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar, Final, cast

from magnetar.broker.server_errors import server_error_of
from magnetar.broker.session.lookup_questions import parse_topic
from magnetar.broker.session.transaction_ends import NO_SUCH_TOPIC, end_of
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions.api import NOT_ENABLED
from magnetar.broker.transactions.pending_topic import end_on_subscription
from magnetar.core.errors import MagnetarError, forget_frames
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import TEXT_CHARACTERS_MAX, frame_of

if TYPE_CHECKING:
    from magnetar.broker.session.api import ControlCommand, Session

logger: Final = logging.getLogger(__name__)


class SubscriptionEndCommands:
    """What coordinators ask of the subscriptions of this broker."""

    COMMANDS: ClassVar[dict[int, ControlCommand[SubscriptionEndCommands]]] = {
        pb.BaseCommand.END_TXN_ON_SUBSCRIPTION: lambda self, command: self._answering(command.endTxnOnSubscription),
    }
    """What this group answers."""

    def __init__(self, session: Session) -> None:
        self._session: Session = session

    async def _answering(self, request: pb.CommandEndTxnOnSubscription) -> None:
        answer = pb.CommandEndTxnOnSubscriptionResponse(
            request_id=request.request_id,
            txnid_least_bits=request.txnid_least_bits,
            txnid_most_bits=request.txnid_most_bits,
        )
        try:
            await self._end(request)
        except PulsarError as error:
            answer.error, answer.message = cast("pb.ServerError", int(error.code)), error.message[:TEXT_CHARACTERS_MAX]
            forget_frames(error)
        except MagnetarError as error:
            logger.warning(
                "transaction (%d,%d) is not ended on %s / %s: %s",
                request.txnid_most_bits,
                request.txnid_least_bits,
                request.subscription.topic,
                request.subscription.subscription,
                error,
            )
            answer.error = cast("pb.ServerError", int(server_error_of(error)))
            answer.message = (str(error) or type(error).__name__)[:TEXT_CHARACTERS_MAX]
            forget_frames(error)
        self._session.write(frame_of(answer))

    async def _end(self, request: pb.CommandEndTxnOnSubscription) -> None:
        """Returns when it is ended, or there is nothing to be ended."""
        transaction = (request.txnid_most_bits, request.txnid_least_bits)
        if not self._session.context.settings.transactions.enabled:
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, NOT_ENABLED)
        if not self._session.is_super_user:
            raise PulsarError(
                ServerError.TRANSACTION_NOT_FOUND,
                f"Transaction {transaction} is not found, or its coordinator has no right to end it",
            )
        commit, low_water_mark = end_of(request)
        name = parse_topic(request.subscription.topic)
        topic = await self._topic(name)
        if topic is not None:
            subscription = request.subscription.subscription
            await end_on_subscription(topic, subscription, transaction, commit=commit, low_water_mark=low_water_mark)

    async def _topic(self, name: TopicName) -> PersistentTopic | None:
        """The topic; None when it is gone, or stores nothing. One that is elsewhere, or cannot be loaded now, is an
        error: the coordinator looks it up and asks again."""
        service = self._session.context.service
        try:
            topic = await service.topic(name, create=False)
        except PulsarError as error:
            if error.code not in NO_SUCH_TOPIC:
                raise
            if error.code == ServerError.TOPIC_NOT_FOUND and await service.exists(name):
                raise PulsarError(ServerError.SERVICE_NOT_READY, f"The topic {name} is not exist in broker.") from error
            return None
        return topic if isinstance(topic, PersistentTopic) else None

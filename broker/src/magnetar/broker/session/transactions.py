"""What transaction coordinators ask of topics and subscriptions, which this broker refuses: none takes part yet.

The refusals are those of an Apache broker with `transactionCoordinatorEnabled=false`, which is its default
(`ServerCnx.checkTransactionEnableAndSendError`), so that coordinators see what they would see there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from magnetar.broker.transactions.api import NOT_ENABLED
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import frame_of

if TYPE_CHECKING:
    from magnetar.broker.session.api import ControlCommand, Session


class TransactionCommands:
    """Refuses the ends of transactions that one session tells of."""

    COMMANDS: ClassVar[dict[int, ControlCommand[TransactionCommands]]] = {
        pb.BaseCommand.END_TXN_ON_PARTITION: lambda self, command: self._refuse_end(
            command.endTxnOnPartition, pb.CommandEndTxnOnPartitionResponse()
        ),
    }
    """What this group answers."""

    def __init__(self, session: Session) -> None:
        self._session: Session = session

    def _refuse_end(
        self,
        request: pb.CommandEndTxnOnPartition,
        answer: pb.CommandEndTxnOnPartitionResponse,
    ) -> None:
        answer.request_id = request.request_id
        answer.txnid_least_bits, answer.txnid_most_bits = request.txnid_least_bits, request.txnid_most_bits
        answer.error, answer.message = pb.NotAllowedError, NOT_ENABLED
        self._session.write(frame_of(answer))

"""Transaction commands that this broker refuses: it has no transaction coordinator.

The refusals are those of an Apache broker with `transactionCoordinatorEnabled=false`, which is its default
(`ServerCnx.checkTransactionEnableAndSendError`), so that clients report what they would report there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from magnetar.broker.session.api import ControlCommand, Session

NOT_ENABLED: Final = "Transactions are not enabled."


class TransactionCommands:
    """Refuses the transaction commands of one session."""

    COMMANDS: ClassVar[dict[int, ControlCommand[TransactionCommands]]] = {
        pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST: lambda self, command: self._refuse(
            command.tcClientConnectRequest.request_id
        ),
        pb.BaseCommand.NEW_TXN: lambda self, command: self._refuse(command.newTxn.request_id),
        pb.BaseCommand.ADD_PARTITION_TO_TXN: lambda self, command: self._refuse(command.addPartitionToTxn.request_id),
        pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN: lambda self, command: self._refuse(
            command.addSubscriptionToTxn.request_id
        ),
        pb.BaseCommand.END_TXN: lambda self, command: self._refuse(command.endTxn.request_id),
    }
    """What this group answers."""

    def __init__(self, session: Session) -> None:
        self._session: Session = session

    def _refuse(self, request_id: int) -> None:
        self._session.send_error(request_id, ServerError.NOT_ALLOWED_ERROR, NOT_ENABLED)

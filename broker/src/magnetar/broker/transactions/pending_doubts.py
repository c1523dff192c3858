"""Acknowledgements of transactions that may have ended before their subscription came to this broker.

Such an acknowledgement is held and stored as any other, so that those behind it need not wait, and answered when its
coordinator has said that the transaction is open. One that is over lets go of it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from magnetar.broker.subscriptions.entry_reader import Spawn
from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.transactions.pending_state import HeldAcknowledgements
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.transactions.standings import TransactionStandings

logger: Final = logging.getLogger(__name__)

AckDone = Callable[[MagnetarError | None], None]
Abort = Callable[[TransactionBits], Awaitable[None]]

WAITING_MAX: Final = 10_000
"""Acknowledgements of one subscription whose answers wait, as many as may wait to be stored; a few hundred bytes each.
Further ones are refused."""


def ended(transaction: TransactionBits) -> PulsarError:
    """The answer to an acknowledgement that comes too late."""
    return PulsarError(ServerError.TRANSACTION_CONFLICT, f"Transaction {transaction} has been ended")


class PendingDoubts:
    """The questions about the transactions of one subscription. Without `standings` nothing is in doubt."""

    __slots__ = ("_asked", "_held", "_since", "_spawn", "_standings", "_waiting")

    def __init__(self, held: HeldAcknowledgements, standings: TransactionStandings | None, spawn: Spawn) -> None:
        self._held = held
        self._standings = standings
        self._since = 0 if standings is None else standings.moment()
        self._spawn = spawn
        self._asked: dict[TransactionBits, asyncio.Future[PulsarError | None]] = {}
        self._waiting = 0

    @property
    def full(self) -> bool:
        """Whether so many answers wait that nothing more is taken."""
        return self._waiting >= WAITING_MAX

    def until_known(self, transaction: TransactionBits, done: AckDone, abort: Abort) -> AckDone:
        """For an acknowledgement that is about to be held: `done`, which hears later if its transaction is in doubt.
        `abort` has what one that is over holds let go of."""
        asked = self._asked.get(transaction)
        if asked is None:
            if self._standings is None or not self._held.in_doubt(transaction):
                return done
            asked = self._asked[transaction] = asyncio.get_running_loop().create_future()
            self._spawn(self._ask(self._standings, transaction, asked, abort))
        self._waiting += 1
        return partial(self._stored, asked, done)

    def _stored(self, asked: asyncio.Future[PulsarError | None], done: AckDone, error: MagnetarError | None) -> None:
        if error is not None:
            self._tell(done, error)
        else:
            asked.add_done_callback(lambda answer: self._tell(done, answer.result()))

    def _tell(self, done: AckDone, error: MagnetarError | None) -> None:
        self._waiting -= 1
        done(error)

    async def _ask(
        self,
        standings: TransactionStandings,
        transaction: TransactionBits,
        asked: asyncio.Future[PulsarError | None],
        abort: Abort,
    ) -> None:
        refusal: PulsarError | None = None
        try:
            is_open = await standings.is_open(transaction, self._since, self._held.earlier)
            # Else its end has come meanwhile, and with it that of what it holds here.
            if not is_open and not self._held.has_ended(transaction):
                refusal = ended(transaction)
                await abort(transaction)
        except (MagnetarError, TimeoutError) as error:
            # It is held, and asked about again as all that stays open for long (`inquiry`).
            logger.info("whether transaction (%d,%d) is open is not known now: %r", *transaction, error)
        finally:
            del self._asked[transaction]
            asked.set_result(refusal)

"""Asks coordinators about transactions that stay open on a topic or a subscription.

A coordinator runs once a client connects to it. When its broker goes, and its clients go too, nobody would end what it
has decided, or abort what has lasted too long: what topics and subscriptions hold would be held for ever. Nor would
anybody end a transaction that no coordinator ever began. So whoever holds something for long has the coordinator run,
and asks it whether there is such a transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.transactions.names import TransactionId, coordinator_topic
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar import requests

if TYPE_CHECKING:
    from magnetar.broker.peers.peer_client import PeerClient
    from magnetar.client.client import PulsarClient

logger: Final = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
"""How often each topic is looked at; what is the oldest at two looks is asked about. Most transactions are over by
then: clients give a minute unless they say another time."""

ANSWER_SECONDS_MAX: Final = 30.0
"""For one question: the coordinator may have to read its log first."""

METADATA: Final = "/admin/v3/transactions/transactionMetadata"

NOT_FOUND: Final = 404

LARGEST: Final = (1 << 63) - 1
"""Coordinators count in Java longs."""


class Doubt(NamedTuple):
    """A transaction that has been open for long."""

    transaction: TransactionId
    where: str
    """The topic or the subscription, as logs call it."""
    abort: Callable[[], Awaitable[None]]
    """Has what it holds there let go of."""


class Inquiries:
    """The questions of one broker."""

    def __init__(
        self,
        client: Callable[[], PulsarClient],
        peers: PeerClient,
        count: Callable[[], Awaitable[int | None]],
    ) -> None:
        """`count`: how many coordinators the cluster has."""
        self._client = client
        self._peers = peers
        self._count = count

    async def settle(self, doubts: Sequence[Doubt]) -> None:
        """Ask about each, and abort those that no coordinator will end. What cannot be asked now is asked again at the
        next look."""
        for doubt in doubts:
            try:
                if await self.is_over(doubt.transaction):
                    logger.warning(
                        "%s: transaction %s is known to no coordinator: aborted", doubt.where, doubt.transaction
                    )
                    await doubt.abort()
            except (MagnetarError, TimeoutError) as error:
                logger.info("%s: nobody tells yet of transaction %s: %r", doubt.where, doubt.transaction, error)

    async def is_over(self, transaction: TransactionId) -> bool:
        """Whether nobody will end it any more: its coordinator has told all that it knows to take part, or it never
        began. Its coordinator runs then, and ends what is due. Raises why that cannot be said now."""
        count = await self._count()
        if not count:
            return False
        coordinator, sequence = transaction
        if not 0 <= coordinator < count or not 0 <= sequence <= LARGEST:
            return True
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            await self._client().ask(
                coordinator_topic(coordinator),
                lambda request_id: requests.tc_client_connect(request_id, coordinator),
            )
            # Not by the protocol: there, who has no right to a transaction hears the same as of one that is over.
            try:
                await self._peers.call("GET", f"{METADATA}/{coordinator}/{sequence}")
            except AdminRefused as refusal:
                # The coordinator may have gone again; both kinds of brokers say then what was not found.
                if refusal.status == NOT_FOUND and not is_of_coordinator(refusal):
                    return True
                raise
        return False


def is_of_coordinator(refusal: AdminRefused) -> bool:
    """Whether it is the coordinator that was not found; else it is the transaction."""
    return "coordinator" in str(refusal).lower()

"""Asks coordinators whether transactions are open that a topic or a subscription of this broker sees first.

What a topic knows of ended transactions goes with its owner, but for what markers and records say that the next one
reads. A message or an acknowledgement that comes later than the end of its transaction would open that again, and
whoever aborts it then hides what was committed. So the next owner asks before it stores such a message, and before it
answers such an acknowledgement; not about transactions that began after it came (`earlier`), and once for each. That
is a request for each coordinator after a topic is loaded, and one for each transaction that was under way meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.states import CoordinatorState, TransactionState
from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.transactions.earlier import EarlierTransactions
from magnetar.broker.transactions.inquiry import ANSWER_SECONDS_MAX, LARGEST, METADATA, NOT_FOUND, is_of_coordinator
from magnetar.broker.transactions.names import TransactionId, coordinator_topic
from magnetar.core.errors import PeerError, Unavailable
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.admin_client.client import AdminAnswer
    from magnetar.broker.peers.peer_client import PeerClient
    from magnetar.broker.transactions.api import CoordinatorService
    from magnetar.client.client import PulsarClient

Answer = TypeVar("Answer")

STATS: Final = "/admin/v3/transactions/coordinatorStats"

AT_ONCE_MAX: Final = 20
"""Questions of one broker under way. A coordinator answers some hundreds in a second, and has other work."""


class NoAnswerYet(Unavailable):
    """The coordinator does not run, or is just being read."""


class NoAnswer(PeerError):
    """A broker answers something else than it was asked."""


class TransactionStandings(Protocol):
    """How transactions stand, as topics and subscriptions ask."""

    def moment(self) -> int:
        """Now: what coordinators are asked after this is news to whoever begins now."""
        ...

    async def is_open(self, transaction: TransactionBits, since: int, earlier: EarlierTransactions) -> bool:
        """Whether a transaction may go on; teaches `earlier`, which began at the moment `since`, what began later.
        Raises a `MagnetarError` or `TimeoutError` when nobody can tell."""
        ...


class CoordinatorStandings:
    """The questions of one broker, a `TransactionStandings`. All topics share what is asked of a coordinator."""

    def __init__(
        self,
        client: Callable[[], PulsarClient],
        peers: PeerClient,
        count: Callable[[], Awaitable[int | None]],
        here: CoordinatorService,
    ) -> None:
        """`count`: how many coordinators the cluster has. `here`: those that this broker runs."""
        self._client = client
        self._peers = peers
        self._count = count
        self._here = here
        self._moment = 0
        self._newest: dict[int, tuple[int, int]] = {}
        """By coordinator: after which moment it was asked, and its newest number then."""
        self._asking: dict[int, asyncio.Lock] = {}
        self._places = asyncio.Semaphore(AT_ONCE_MAX)

    def moment(self) -> int:
        """Now; an earlier moment is smaller."""
        self._moment += 1
        return self._moment

    async def is_open(self, transaction: TransactionBits, since: int, earlier: EarlierTransactions) -> bool:
        """Whether its coordinator says so. One that nobody began yet counts as open, too: `inquiry` sees to it."""
        coordinator, number = transaction
        count = await self._count()
        if not count:
            return True
        if coordinator >= count or number > LARGEST:
            return False
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            earlier.began_since(coordinator, await self._newest_of(coordinator, since))
            if not earlier.includes(transaction):
                return True
            one = TransactionId(coordinator, number)
            async with self._places:
                return await self._ask(coordinator, lambda: self._is_open_here(one), lambda: self._is_open_there(one))

    async def _newest_of(self, coordinator: int, since: int) -> int:
        async with self._asking.setdefault(coordinator, asyncio.Lock()):
            known = self._newest.get(coordinator)
            if known is None or known[0] < since:
                moment = self._moment
                newest = await self._ask(
                    coordinator, lambda: self._here.newest(coordinator), lambda: self._newest_there(coordinator)
                )
                known = self._newest[coordinator] = moment, newest
        return known[1]

    async def _ask(
        self, coordinator: int, here: Callable[[], Awaitable[Answer]], there: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        for last in (False, True):
            try:
                return await here()
            except PulsarError as error:
                if error.code != ServerError.TRANSACTION_COORDINATOR_NOT_FOUND:
                    raise
            try:
                return await there()
            except NoAnswerYet:
                if last:
                    raise
            # It runs once somebody connects to it, and answers this when its log is read.
            await self._client().ask(
                coordinator_topic(coordinator), lambda request_id: requests.tc_client_connect(request_id, coordinator)
            )
        raise AssertionError("the last attempt returns or raises")

    async def _is_open_here(self, transaction: TransactionId) -> bool:
        try:
            return (await self._here.details(transaction)).state == TransactionState.OPEN.name
        except PulsarError as error:
            if error.code != ServerError.TRANSACTION_NOT_FOUND:
                raise
            return False

    async def _is_open_there(self, transaction: TransactionId) -> bool:
        try:
            answer = await self._peers.call("GET", f"{METADATA}/{transaction.coordinator}/{transaction.sequence}")
        except AdminRefused as refusal:
            if refusal.status != NOT_FOUND:
                raise
            if is_of_coordinator(refusal):
                raise NoAnswerYet(str(refusal)) from refusal
            return False
        return bool(_field(answer, "status") == TransactionState.OPEN.name)

    async def _newest_there(self, coordinator: int) -> int:
        try:
            answer = await self._peers.call("GET", STATS, query={"coordinatorId": str(coordinator)})
        except AdminRefused as refusal:
            if refusal.status != NOT_FOUND:
                raise
            raise NoAnswerYet(str(refusal)) from refusal
        # While it reads its log it knows but a part of its numbers.
        if (state := _field(answer, "state")) != CoordinatorState.READY.value:
            raise NoAnswerYet(f"transaction coordinator {coordinator} is {state}")
        newest = _field(answer, "leastSigBits")
        if not isinstance(newest, int):
            raise NoAnswer(f"the newest transaction of coordinator {coordinator} is {newest!r}")
        return newest


def _field(answer: AdminAnswer, name: str) -> Any:
    """A field of a JSON document. `NoAnswer`"""
    try:
        return answer.json()[name]
    except (ValueError, LookupError, TypeError) as error:
        raise NoAnswer(f"an answer about transactions lacks {name!r}") from error

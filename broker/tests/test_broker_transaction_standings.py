"""What coordinators are asked about transactions, how often, and what their answers mean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from magnetar.admin_client.client import AdminAnswer
from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.transactions.api import coordinator_not_found
from magnetar.broker.transactions.coordinator_table import transaction_not_found
from magnetar.broker.transactions.earlier import EarlierTransactions
from magnetar.broker.transactions.inquiry import ANSWER_SECONDS_MAX
from magnetar.broker.transactions.names import TransactionId, coordinator_topic
from magnetar.broker.transactions.standings import AT_ONCE_MAX, CoordinatorStandings, NoAnswer, NoAnswerYet
from magnetar.core.errors import MagnetarError
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

STATS = "/admin/v3/transactions/coordinatorStats"
NO_COORDINATOR = AdminRefused(404, "Transaction coordinator not found! coordinator id : 1")
NO_TRANSACTION = AdminRefused(404, "The transaction (1,7) was not found")


class Details:
    def __init__(self, state: str) -> None:
        self.state = state


class Cluster:
    """Four coordinators, here or elsewhere: they have given ids up to `newest`, and these transactions are not over."""

    def __init__(self, *, here: bool = False, states: Mapping[int, str] | None = None) -> None:
        self.here = here
        self.states = dict(states or {})
        self.newest_id = 10
        self.state = "Ready"
        self.runs = True
        self.asked: list[str] = []
        self.failure: MagnetarError | None = None
        self.seconds = 0.0
        self.at_once = 0
        self.at_once_max = 0

    def standings(self) -> CoordinatorStandings:
        async def count() -> int:
            return 4

        cluster: Any = self
        return CoordinatorStandings(lambda: cluster, cluster, count, cluster)

    # --- a client, by which a coordinator is run

    async def ask(self, topic: object, build: Any) -> None:
        assert topic == coordinator_topic(1)
        assert build(5)
        self.asked.append("connect")
        self.runs, self.state = True, "Ready"

    # --- the coordinators of this broker

    async def newest(self, coordinator: int) -> int:
        if not self.here or not self.runs:
            raise coordinator_not_found(coordinator)
        self.asked.append("newest")
        return self.newest_id

    async def details(self, transaction: TransactionId) -> Details:
        if not self.here or not self.runs:
            raise coordinator_not_found(transaction.coordinator)
        if transaction.sequence not in self.states:
            raise transaction_not_found(transaction)
        return Details(self.states[transaction.sequence])

    # --- the admin API of others

    async def call(self, method: str, path: str, *, query: Mapping[str, str] | None = None) -> AdminAnswer:
        assert method == "GET"
        self.asked.append(path.rsplit("/", 1)[-1])
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        await asyncio.sleep(self.seconds)
        self.at_once -= 1
        if self.failure is not None:
            raise self.failure
        if not self.runs or self.here:
            raise NO_COORDINATOR
        if path == STATS:
            assert query == {"coordinatorId": "1"}
            document: Any = {"state": self.state, "leastSigBits": self.newest_id}
        else:
            number = int(path.rsplit("/", 1)[-1])
            if number not in self.states:
                raise NO_TRANSACTION
            document = {"status": self.states[number]}
        return AdminAnswer(200, json.dumps(document).encode())


@pytest.mark.parametrize("here", [True, False])
async def test_only_what_is_open_may_go_on(*, here: bool) -> None:
    cluster = Cluster(here=here, states={5: "OPEN", 6: "COMMITTING", 7: "ABORTING"})
    standings, earlier = cluster.standings(), EarlierTransactions()
    since = standings.moment()
    assert [number for number in range(12) if await standings.is_open((1, number), since, earlier)] == [5, 11]
    assert (earlier.includes((1, 10)), earlier.includes((1, 11))) == (True, False)
    assert not await standings.is_open((4, 5), since, earlier)
    assert not await standings.is_open((1, 1 << 63), since, earlier)
    assert earlier.includes((4, 5))


async def test_without_coordinators_nothing_is_known() -> None:
    async def count() -> None:
        return None

    nobody: Any = None
    standings = CoordinatorStandings(nobody, nobody, count, nobody)
    assert await standings.is_open((0, 1), standings.moment(), EarlierTransactions())


async def test_what_one_topic_has_asked_others_that_were_there_know() -> None:
    cluster = Cluster()
    cluster.seconds = 1.0
    standings = cluster.standings()
    topics = [(standings.moment(), EarlierTransactions()) for _ in range(50)]
    await asyncio.gather(*(standings.is_open((1, 11), since, earlier) for since, earlier in topics))
    assert cluster.asked == ["coordinatorStats"]
    # Who comes later may not go by that: there may have been more before it came.
    cluster.newest_id = 20
    since, earlier = standings.moment(), EarlierTransactions()
    assert not await standings.is_open((1, 15), since, earlier)
    assert cluster.asked == ["coordinatorStats", "coordinatorStats", "15"]
    assert not earlier.includes((1, 21))


@pytest.mark.parametrize("here", [True, False])
async def test_a_coordinator_that_does_not_run_is_run(*, here: bool) -> None:
    cluster = Cluster(here=here, states={5: "OPEN"})
    cluster.runs = False
    standings = cluster.standings()
    assert await standings.is_open((1, 5), standings.moment(), EarlierTransactions())
    assert cluster.asked[1] == "connect"


async def test_a_coordinator_that_reads_its_log_says_nothing_yet() -> None:
    cluster = Cluster(states={5: "OPEN"})
    cluster.state = "Initializing"
    standings = cluster.standings()
    assert await standings.is_open((1, 5), standings.moment(), EarlierTransactions())
    assert cluster.asked == ["coordinatorStats", "connect", "coordinatorStats", "5"]


@pytest.mark.parametrize("failure", [AdminRefused(401, "no"), AdminRefused(500, "no")])
async def test_a_refusal_is_no_answer(failure: MagnetarError) -> None:
    cluster = Cluster(states={5: "OPEN"})
    cluster.failure = failure
    standings, earlier = cluster.standings(), EarlierTransactions()
    with pytest.raises(AdminRefused):
        await standings.is_open((1, 5), standings.moment(), earlier)
    assert earlier.includes((1, 1_000))


async def test_a_coordinator_that_is_never_there_is_no_answer() -> None:
    cluster = Cluster()
    cluster.failure = NO_COORDINATOR
    standings = cluster.standings()
    with pytest.raises(NoAnswerYet):
        await standings.is_open((1, 5), standings.moment(), EarlierTransactions())


@pytest.mark.parametrize("newest", ["many", None, [1]])
async def test_an_answer_of_another_kind_is_none(newest: Any) -> None:
    cluster = Cluster()
    cluster.newest_id = newest
    standings = cluster.standings()
    with pytest.raises(NoAnswer):
        await standings.is_open((1, 5), standings.moment(), EarlierTransactions())


async def test_a_question_ends() -> None:
    cluster = Cluster()
    cluster.seconds = 10 * ANSWER_SECONDS_MAX
    standings = cluster.standings()
    before = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await standings.is_open((1, 5), standings.moment(), EarlierTransactions())
    assert asyncio.get_running_loop().time() - before == ANSWER_SECONDS_MAX


async def test_so_many_questions_are_asked_at_once() -> None:
    cluster = Cluster(states={5: "OPEN"})
    cluster.newest_id = 1_000
    standings, earlier = cluster.standings(), EarlierTransactions()
    since = standings.moment()
    cluster.seconds = 0.01
    await asyncio.gather(*(standings.is_open((1, number), since, earlier) for number in range(100)))
    assert cluster.at_once_max == AT_ONCE_MAX


# --- which may have ended, pure


def test_nothing_is_known_before_a_coordinator_has_said_its_newest() -> None:
    earlier = EarlierTransactions()
    earlier.forget((1, 5))
    assert earlier.includes((1, 6))
    earlier.began_since(1, 5)
    assert [earlier.includes((1, number)) for number in (5, 6)] == [True, False]
    assert earlier.includes((2, 6))


def test_what_is_forgotten_is_earlier_and_nothing_older_than_that_is_certain() -> None:
    earlier = EarlierTransactions()
    earlier.began_since(1, 5)
    earlier.forget((1, 9))
    earlier.forget((1, 7))
    earlier.began_since(1, 6)
    assert [earlier.includes((1, number)) for number in (8, 9, 10)] == [True, True, False]

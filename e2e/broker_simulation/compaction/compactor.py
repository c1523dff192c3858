"""Asks brokers to compact topics, by the admin API: at any time, and in the end until each of them has done so."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from magnetar.admin_client.client import AdminAnswer, AdminLimits
from magnetar.admin_client.errors import AdminUnreachable

from e2e.broker_simulation.admin import ADMIN_PORT, SimulatedAdminClient
from e2e.broker_simulation.clients import Client
from e2e.broker_simulation.consumers import Goal
from e2e.broker_simulation.drawn.compaction import CompactionParameters

POLL_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 10.0
"""How long a compaction may take before it is asked for again."""


async def _anywhere(asked: str, url: str) -> None:
    """Redirects lead where they will."""


class Compactor:
    """A `Program` of its host."""

    def __init__(
        self, client: Client, brokers: list[str], topics: list[str], parameters: CompactionParameters, goal: Goal
    ) -> None:
        self._client = client
        self._brokers = brokers
        self._topics = topics
        self._parameters = parameters
        self._goal = goal
        self._admin = SimulatedAdminClient(AdminLimits(connections_max=1), may_follow=_anywhere)

    def reborn(self) -> None:
        """See `Program.reborn`: it remembers nothing."""

    async def run(self) -> None:
        """Until the last compaction of each topic is done."""
        chance, parameters = self._client.chance, self._parameters
        while not self._goal.drain:
            await asyncio.sleep(min(chance.expovariate(1 / parameters.pause_seconds), 2.0))
            topic = chance.choice(self._topics)
            await self._start(topic)
            if chance.random() < parameters.insistent_share:
                await self._start(topic)
        for topic in self._topics:
            while not await self._compacted(topic):  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(POLL_SECONDS)

    async def start_each(self) -> None:
        """Ask for a compaction of each topic, once, and wait for none."""
        for topic in self._topics:
            await self._start(topic)

    async def _start(self, topic: str) -> int:
        """Ask for a compaction; the status of the answer, 0 without one."""
        self._client.history.on_compaction()
        answer = await self._ask("PUT", topic)
        return 0 if answer is None else answer.status

    async def _compacted(self, topic: str) -> bool:
        """Whether all that is there now was compacted."""
        history = self._client.history.topics[topic]
        told = max((receipt.position for receipt in history.receipts if receipt.position), default=(-1, -1))
        if not 200 <= await self._start(topic) < 300:
            return False
        deadline = self._client.now() + PATIENCE_SECONDS
        while self._client.now() < deadline:
            answer = await self._ask("GET", topic)
            status: Any = {} if answer is None or answer.status != 200 else answer.json()
            if status.get("status") in ("SUCCESS", "ERROR", "NOT_RUN"):
                self._client.note(f"hears of {topic}: {status}")
                if status["status"] != "SUCCESS":
                    return False
                history.compacted_up_to = told
                return True
            await asyncio.sleep(POLL_SECONDS)
        return False

    async def _ask(self, method: str, topic: str) -> AdminAnswer | None:
        broker = self._client.chance.choice(self._brokers)
        path = topic.replace("://", "/")
        url = f"http://{broker}:{ADMIN_PORT}/admin/v2/{path}/compaction"
        try:
            answer = await self._admin.ask(method, url)
        except AdminUnreachable as error:
            self._client.note(f"{method} for {topic}: {type(error).__name__}")
            return None
        self._client.note(f"{method} for {topic}: {answer.status}")
        return answer

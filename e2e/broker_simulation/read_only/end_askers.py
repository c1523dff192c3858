"""Who asks a broker that only reads for the last message of a topic, right after each receipt of its producers."""

from __future__ import annotations

from typing import Final

from magnetar.wire.pulsar import requests

from e2e.broker_simulation.clients import Client, position_of
from e2e.broker_simulation.history import EndTold
from e2e.broker_simulation.protocol import Link
from e2e.broker_simulation.readers import Reader

LOOK_SECONDS: Final = 0.002
"""Between two looks at receipts: much less than it takes until a broker that only reads hears of an entry by itself."""


class EndAsker(Reader):
    """Asks, and reads nothing: it grants no permits."""

    def __init__(self, client: Client, topic: str, name: str) -> None:
        super().__init__(client, topic, name, [])
        self._history = client.history.topics[topic]
        self._receipts_seen = len(self._history.receipts)

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        while self.link is link:
            if len(self._history.receipts) > self._receipts_seen:
                self._receipts_seen = len(self._history.receipts)
                await self._ask(link)
            elif self.leave_when_done:
                self.finished = True
                await self.leave()
            else:
                await self.wait(LOOK_SECONDS)

    async def _ask(self, link: Link) -> None:
        asked_at, end_id = self.client.now(), self.id
        answer = await link.ask(lambda request_id: requests.get_last_message_id(request_id, end_id))
        position = position_of(answer.last_message_id)
        self.client.note(f"is told that {position} is the last message")
        self._history.ends_told.append(EndTold(position, link.broker, asked_at))

"""Notices of a topic's end: what a broker that only reads is told of each topic that it follows.

Bookies learn that an entry is confirmed from the next one only, so that a follower of a topic cannot know it of the
last one. The owner tells it. A consumer with `END_NOTICES_KEY` in its metadata is answered with the last confirmed
entry, whether that is a message or not. Its first GET_LAST_MESSAGE_ID is answered twice at once, and again whenever
that entry is another one. Other brokers answer once, by which the client knows that it has to ask.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from magnetar.wire.pulsar import messages

if TYPE_CHECKING:
    from magnetar.broker.topics.topic import PersistentTopic
    from magnetar.core.ids import Position
    from magnetar.net.connection import Connection

END_NOTICES_KEY: Final = "magnetar.end-notices"
"""In the metadata of a consumer that wants them; the value says who it is."""

PAUSE_SECONDS: Final = 0.005
"""Between two notices: a busy topic costs two hundred a second, and a silent one nothing."""


class EndNotices:
    """Those of one consumer. Each is sent at once, or when the pause after the last one is over."""

    def __init__(self, connection: Connection, topic: PersistentTopic, request_id: int) -> None:
        """Sends the first one."""
        self._connection = connection
        self._topic = topic
        self._request_id = request_id
        self._told: Position | None = None
        self._pause: asyncio.TimerHandle | None = None
        topic.ledger.appends.on_appended.append(self.moved)
        self.moved()

    def stop(self) -> None:
        """The consumer is gone, or its topic is."""
        on_appended = self._topic.ledger.appends.on_appended
        if self.moved in on_appended:
            on_appended.remove(self.moved)
        if self._pause is not None:
            self._pause.cancel()

    def moved(self) -> None:
        """The end is another one, or the peer reads again."""
        if self._pause is None:
            self._tell()

    def _tell(self) -> None:
        self._pause = None
        position = self._topic.ledger.last_confirmed
        if position == self._told or not self._connection.writable:
            return
        self._told = position
        self._connection.write(messages.end_notice(self._request_id, position, self._topic.name.partition_index))
        self._pause = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._tell)

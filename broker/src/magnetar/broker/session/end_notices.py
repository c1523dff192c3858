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

PAUSE_SECONDS_EACH: Final = 0.001
"""At least so long for each consumer of the connection that was told: a broker that reads has one, and who has
thousands gets no more than a thousand notices of a topic a second."""


class EndNotices:
    """Those of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._of_topics: dict[PersistentTopic, TopicEndNotices] = {}
        self._of_consumers: dict[int, TopicEndNotices] = {}

    def begin(self, consumer_id: int, topic: PersistentTopic, request_id: int) -> None:
        """A consumer that wants them has asked, and has its first answer; if it has asked before, nothing happens."""
        if consumer_id in self._of_consumers:
            return
        notices = self._of_topics.get(topic)
        if notices is None:
            notices = self._of_topics[topic] = TopicEndNotices(self._connection, topic)
        self._of_consumers[consumer_id] = notices
        notices.begin(consumer_id, request_id)

    def stop(self, consumer_id: int) -> None:
        """The consumer is gone, or its topic is. Unknown ones are no error: few want notices."""
        notices = self._of_consumers.pop(consumer_id, None)
        if notices is not None:
            notices.stop(consumer_id)
            if not notices.wanted:
                del self._of_topics[notices.topic]

    def writable_again(self) -> None:
        """The peer reads again."""
        for notices in self._of_topics.values():
            notices.moved()


class TopicEndNotices:
    """Those of one topic to the consumers of one connection. Each is sent at once, or when the pause after the last one
    is over."""

    def __init__(self, connection: Connection, topic: PersistentTopic) -> None:
        self.topic = topic
        self._connection = connection
        self._asked: dict[int, int] = {}
        """Requests by the consumers that made them."""
        self._untold: set[int] = set()
        """Consumers that have had no notice."""
        self._told: Position | None = None
        self._pause: asyncio.TimerHandle | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is a consumer that wants them."""
        return bool(self._asked)

    def begin(self, consumer_id: int, request_id: int) -> None:
        """One more consumer wants them."""
        if not self._asked:
            self.topic.ledger.appends.on_appended.append(self.moved)
        self._asked[consumer_id] = request_id
        self._untold.add(consumer_id)
        self.moved()

    def stop(self, consumer_id: int) -> None:
        """A consumer wants them no more. Nothing is left behind by the last one."""
        del self._asked[consumer_id]
        self._untold.discard(consumer_id)
        if self._asked:
            return
        self.topic.ledger.appends.on_appended.remove(self.moved)
        if self._pause is not None:
            self._pause.cancel()

    def moved(self) -> None:
        """The end is another one, or somebody may be told who was not."""
        if self._pause is None:
            self._tell()

    def _tell(self) -> None:
        self._pause = None
        position = self.topic.ledger.last_confirmed
        listeners = self._untold if position == self._told else self._asked
        if not listeners or not self._connection.writable:
            return
        partition = self.topic.name.partition_index
        for consumer_id in listeners:
            self._connection.write(messages.end_notice(self._asked[consumer_id], position, partition))
        pause_seconds = max(PAUSE_SECONDS, PAUSE_SECONDS_EACH * len(listeners))
        self._told = position
        self._untold.clear()
        self._pause = asyncio.get_running_loop().call_later(pause_seconds, self._tell)

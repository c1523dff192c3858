"""Where the source of a shadow topic ends, as the broker knows it that writes the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.errors import Unavailable

if TYPE_CHECKING:
    from magnetar.broker.topics.topic import Topic
    from magnetar.core.ids import Position
    from magnetar.core.topic_name import TopicName
    from magnetar.managed.following.api import EndTeller


class SourceEnd:
    """An `EndTeller`: asks this broker if it has the source loaded, else whichever has."""

    def __init__(
        self,
        source: TopicName,
        topics: Mapping[str, Topic],
        elsewhere: Callable[[TopicName], EndTeller] | None,
        closed: Callable[[], None],
    ) -> None:
        """`topics` are those that are loaded here; `elsewhere` finds who knows of others, None: nobody is asked.
        `closed` is told once."""
        self._source = source
        self._topics = topics
        self._elsewhere = elsewhere
        self._closed: Callable[[], None] | None = closed
        self._remote: EndTeller | None = None

    async def last_confirmed(self) -> Position:
        """The last entry that the source's owner has confirmed. `Unavailable`, or what it answers instead."""
        here = self._topics.get(str(self._source))
        if isinstance(here, PersistentTopic) and not here.closing:
            return here.ledger.last_confirmed
        if self._elsewhere is None or self._closed is None:
            raise Unavailable(f"{self._source} is not served here")
        if self._remote is None:
            self._remote = self._elsewhere(self._source)
        return await self._remote.last_confirmed()

    def listen(self, heard: Callable[[Position | None], None]) -> None:
        """Nothing: the source's replicator tells of its end, as an owner does here."""

    @property
    def has_notices(self) -> bool:
        """The replicator's are not the owner's: whether it runs is not known here."""
        return False

    async def close(self) -> None:
        """Ask nobody any more."""
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()
        remote, self._remote = self._remote, None
        if remote is not None:
            await remote.close()

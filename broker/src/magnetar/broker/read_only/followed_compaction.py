"""The compaction of a followed topic, as its owner tells of it: consumers that want it read it from the bookies.

The owner has it in the cursor `__compaction`: the mark is the horizon, a property names the ledger. Here a cursor of
that name stands in its place, without being kept anywhere.
"""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

from magnetar.core.errors import PeerError
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.ack_state import AckState
from magnetar.managed.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.following.followed_ledger import FollowedLedger

_POSITION: Final = re.compile(r"(\d{1,18}):(-1|\d{1,18})", re.ASCII)


class CompactionTeller(Protocol):
    """Who knows the topic's cursors: `RemoteTopicOwner`."""

    async def cursor(self, name: str) -> dict[str, Any] | None:
        """A cursor as `internalStats` tells of it; None: there is none. Raises a `MagnetarError`."""
        ...


async def learn_compaction(topic: TopicName, ledger: FollowedLedger, owner: CompactionTeller) -> None:
    """Know the newest compaction. `PeerError` for an answer that makes no sense, `Unavailable` while there is none: a
    view without what compaction left would be another one."""
    document = await owner.cursor(COMPACTION_CURSOR)
    found = None if document is None else _compaction(document, topic)
    if found is None:
        ledger.cursors.pop(COMPACTION_CURSOR, None)
        return
    ledger_id, horizon = found
    known = ledger.cursors.get(COMPACTION_CURSOR)
    if known is not None and known.properties.get(LEDGER_PROPERTY) == ledger_id:
        return
    await ledger.confirmed_at_least(horizon)
    cursor = Cursor(ledger, COMPACTION_CURSOR, AckState(ledger.ledgers, ledger.ledgers.normalised_mark(horizon)))
    cursor.properties[LEDGER_PROPERTY] = ledger_id
    ledger.cursors[COMPACTION_CURSOR] = cursor


def _compaction(document: dict[str, Any], topic: TopicName) -> tuple[int, Position] | None:
    """The compacted ledger and the horizon; None: there was no compaction yet."""
    properties, mark = document.get("properties"), document.get("markDeletePosition")
    ledger_id = properties.get(LEDGER_PROPERTY) if isinstance(properties, dict) else None
    if ledger_id is None:
        return None
    match = _POSITION.fullmatch(mark) if isinstance(mark, str) else None
    if match is None or not isinstance(ledger_id, int) or isinstance(ledger_id, bool) or ledger_id < 0:
        raise PeerError(f"{topic}: its owner tells of a compaction that makes no sense: {mark!r}, ledger {ledger_id!r}")
    return ledger_id, (int(match[1]), int(match[2]))

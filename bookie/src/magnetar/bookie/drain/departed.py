"""The end of a drain whose bookie was killed after its cookie was removed, and before that was noted."""

from __future__ import annotations

import logging
from typing import Final

from magnetar.bookie.drain.paths import intention_path
from magnetar.core.errors import PeerError
from magnetar.metadata.store import MetadataStore, Node, VersionConflict

logger: Final = logging.getLogger(__name__)


async def finish_departure(store: MetadataStore, bookie_id: str, cookie: Node | None, now_ms: int) -> None:
    """Note that a drain is done when its last step, the removal of the cookie, has been made.

    Nobody else does: with its data the bookie does not start any more, and a new bookie of its name would count as
    leaving for ever. To be called before the bookie writes a cookie, with the one that was found; not with one of an
    earlier look, as it may be removed in between. `Unavailable`."""
    path = intention_path(bookie_id)
    node = await store.get(path)
    if node is None:
        return
    # It loads a codec, which takes a twentieth of a start.
    from magnetar.bookie.drain.state import Phase, decode_intention, encode_intention

    try:
        intention = decode_intention(node.value)
    except PeerError as error:
        # Whoever drains it tells what to do.
        logger.warning("whether the drain of bookie %s was about to end is not known: %s", bookie_id, error)
        return
    if not intention.has_removed(cookie):
        return
    done = intention.moved_to(Phase.DONE, now_ms)
    try:
        await store.put(path, encode_intention(done), node.stat.version)
    except VersionConflict:
        logger.info("another process has noted just now how far the drain of bookie %s is", bookie_id)
    else:
        logger.warning("the drain of bookie %s is done: its cookie is removed", bookie_id)

"""Where drains stand in the metadata store. Apart from `state.py`, which loads a codec: each start asks for these."""

from __future__ import annotations

from typing import Final

DRAINS_PATH: Final = "/magnetar/drain"
DRAIN_LOCKS_PATH: Final = "/magnetar/drain-lock"


def intention_path(bookie_id: str) -> str:
    """The node of a bookie's drain. It stays when the drain is done, to be read by whoever asks later."""
    return f"{DRAINS_PATH}/{bookie_id}"


def lock_path(bookie_id: str) -> str:
    """The ephemeral node of whoever drains a bookie now."""
    return f"{DRAIN_LOCKS_PATH}/{bookie_id}"

"""How closely a managed ledger is followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magnetar.core.limits import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowSettings:
    """The pauses and bounds of one followed managed ledger."""

    look_pause_seconds_min: float = 0.005
    """After a look that brought nothing; twice as long after each further one."""
    look_pause_seconds_max: float = 0.05
    """So long at most, while anybody reads: what an idle topic costs, and by how much its next entry is late."""
    longest_pause_seconds: Callable[[], float] | None = None
    """Between two looks at a silent topic, as things are now: whoever follows few may look more often. None: it is
    `look_pause_seconds_max`."""
    rarer_with_notices: float = 20.0
    """So many times as long are the longest pauses while the owner tells of its end; looks find what it did not."""
    look_pause_seconds_with_notices_max: float = 5.0
    """So long at most: by so much is the first entry late of an owner that is gone without a word."""
    wants_notices: bool = False
    """Whether the owner is asked before there is anything to ask about: it may tell of its end by itself then."""
    notice_seconds_max: float = 1.0
    """An entry that was seen, and of which no notice told for so long, is asked about."""
    ask_pause_seconds_min: float = 0.01
    """Between two questions to the owner; twice as long after each answer that did not help."""
    ask_pause_seconds_max: float = 1.0
    """An entry that is never confirmed, as its writer has died, costs one question in so long."""
    retry_seconds_min: float = 0.1
    """After the owner, the bookies or the store could not answer; twice as long after each further failure."""
    retry_seconds_max: float = 2.0
    """So long at most."""
    ask_seconds_max: float = 10.0
    """What is not answered by then is a failure of the owner."""
    catch_up_seconds_max: float = 10.0
    """How long a new cursor waits until what the owner vouches for is seen here."""
    look_bytes_max: int = 1 * MIB
    """What one look asks for; the loop takes a turn at other things between two of them."""
    unconfirmed_bytes_max: int = 4 * MIB
    """Entries that were seen and are not known to be confirmed: beyond this no further ones are read, and bookies are
    asked for the last confirmed one instead."""

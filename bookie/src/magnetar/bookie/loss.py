"""What becomes of a start that finds acknowledged entries damaged or gone: whoever runs the bookie decides."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import Unavailable

logger: Final = logging.getLogger(__name__)

WHAT_TO_DO: Final = (
    "Put a copy back that is not damaged. Or start without what is lost: `magnetar bookie run --set "
    "dataIntegrityChecking=true` fetches it from the other bookies and denies nothing until it is back; "
    "`--accept-loss` (also of `magnetar standalone`) gives it up for good"
)

NOT_FOR_COOKIES: Final = "--accept-loss gives up entries that are lost; it has no effect on cookies."
"""What is told of a cookie that does not fit, where somebody may expect `--accept-loss` to help."""


def without_advice(text: str) -> str:
    """What is damaged, without what to do about it: a standalone cluster has no other bookies."""
    return text.partition(WHAT_TO_DO)[0].rstrip(". ")


class OnLoss(enum.Enum):
    """What a start does about damage."""

    REFUSE = enum.auto()
    """Stop with an error: somebody may have a copy."""
    HEAL = enum.auto()
    """Go on in limbo: nothing is denied until the other bookies have given back what is missing."""
    ACCEPT = enum.auto()
    """Go on; what is missing is denied from here on."""


class Losses:
    """The damage that one start has found, in order."""

    def __init__(self, on_loss: OnLoss, begin_healing: Callable[[], None] = lambda: None) -> None:
        """`begin_healing` is called before the first damage that is to be healed is passed over."""
        self.on_loss = on_loss
        self.told: list[str] = []
        """A line for each file at the most, without what to do."""
        self._begin_healing = begin_healing

    def tell(self, damage: Unavailable) -> None:
        """Raise the damage, or note it in the log and go on. Any thread, one at a time."""
        if self.on_loss is OnLoss.REFUSE:
            raise damage
        if self.on_loss is OnLoss.HEAL and not self.told:
            self._begin_healing()
        self.told.append(without_advice(str(damage)))
        logger.error("going on without what is lost: %s", self.told[-1])

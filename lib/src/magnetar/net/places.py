"""Places for few at a time, which whoever waits for somebody slow does not keep from the others."""

from __future__ import annotations

import asyncio
from typing import Final

PATIENT_SECONDS: Final = 1.0
"""How long others wait for a place of whoever waits himself. Stores that are well answer within milliseconds."""


class Places:
    """So many are taken at a time. Whoever waits for long gives his place back, as long as few are late already: the
    others have one soon, and all together are bounded."""

    def __init__(self, count: int, late_max: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._late_max = late_max
        self.late = 0
        """How many go on without a place."""

    async def take(self) -> TakenPlace:
        """Wait for one."""
        await self._free.acquire()
        return TakenPlace(self)

    def give_back(self) -> None:
        """One is free."""
        self._free.release()

    def make_room(self) -> bool:
        """Whether one who is late may go on without his place."""
        if self.late >= self._late_max:
            return False
        self.late += 1
        self._free.release()
        return True


class TakenPlace:
    """One of them. `leave` it in any case."""

    __slots__ = ("_late", "_places", "_timer")

    def __init__(self, places: Places) -> None:
        self._places = places
        self._late = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> TakenPlace:
        """Wait for somebody from here on."""
        self._timer = asyncio.get_running_loop().call_later(PATIENT_SECONDS, self._be_late)
        return self

    def __exit__(self, *_: object) -> None:
        """The wait is over; the place is kept, or done without."""
        if self._timer is not None:
            self._timer.cancel()

    def leave(self) -> None:
        """It is others'."""
        if self._late:
            self._places.late -= 1
        else:
            self._places.give_back()

    def _be_late(self) -> None:
        self._late = self._places.make_room()

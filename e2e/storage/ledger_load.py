"""Writers on our own ledger client that keep what they were told, and the check that nothing confirmed is missing.

Each writer appends to one ledger until it is rolled or fails, then goes on with a new one, as a broker does. What every
entry holds follows from its ledger and its id, so that a reader knows what must be there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from dataclasses import dataclass, field
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerOptions, LedgerWriter
from magnetar.ledger.client import BookKeeperClient

logger: Final = logging.getLogger(__name__)

OUTSTANDING_MAX: Final = 200
"""Entries on their way per writer: enough to be in the middle of something whenever a bookie dies."""
RETRY_SECONDS: Final = 0.2
OPEN_ATTEMPTS_MAX: Final = 60
READ_ENTRIES: Final = 500


def payload(seed: int, ledger_id: int, entry_id: int, size_bytes: int) -> bytes:
    """What an entry holds: its own address, repeated to the size."""
    head = hashlib.sha256(f"{seed}:{ledger_id}:{entry_id}".encode()).digest()
    return (head * (size_bytes // len(head) + 1))[:size_bytes]


@dataclass(slots=True)
class LedgerHistory:
    """What a writer was told about one ledger."""

    ledger_id: int
    sizes_bytes: list[int] = field(default_factory=list)
    """Of every entry that was appended."""
    confirmed: int = -1
    error: str = ""

    def took(self, last_add_confirmed: int) -> None:
        """The last add confirmed grew; going back would be a lie of the client."""
        assert last_add_confirmed > self.confirmed, (self.ledger_id, last_add_confirmed, self.confirmed)
        self.confirmed = last_add_confirmed


class _Listener:
    def __init__(self) -> None:
        self.history: LedgerHistory | None = None
        self.failed_with: MagnetarError | None = None
        self.progress = asyncio.Event()

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        assert self.history is not None
        self.history.took(last_add_confirmed)
        self.progress.set()

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        self.failed_with = error
        self.progress.set()


class LedgerLoad:
    """Some writers, until told to stop."""

    def __init__(self, client: BookKeeperClient, options: LedgerOptions, seed: int, *, rate_per_s: float) -> None:
        """`rate_per_s` bounds the entries of each writer."""
        self.histories: list[LedgerHistory] = []
        self._client = client
        self._options = options
        self._seed = seed
        self._rate_per_s = rate_per_s
        self._stopping = False

    @property
    def confirmed(self) -> int:
        """Entries confirmed so far, of all ledgers."""
        return sum(history.confirmed + 1 for history in self.histories)

    def stop(self) -> None:
        """Let the writers finish what they have."""
        self._stopping = True

    async def write(self, number: int) -> None:
        """One writer; runs until `stop`."""
        rng = random.Random(f"{self._seed}:{number}")
        while not self._stopping:
            listener = _Listener()
            try:
                writer = await self._client.create(self._options, listener)
            except MagnetarError as error:
                logger.info("writer %d: no new ledger: %s", number, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            history = listener.history = LedgerHistory(writer.ledger_id)
            self.histories.append(history)
            try:
                await self._fill(writer, listener, rng)
                # Some ledgers are left open: their recovery must find the same end.
                if rng.random() < 0.7:
                    await writer.close()
            except MagnetarError as error:
                history.error = str(error)

    async def _fill(self, writer: LedgerWriter, listener: _Listener, rng: random.Random) -> None:
        history = listener.history
        assert history is not None
        entries_max = rng.randrange(50, 5_000)
        while not self._stopping and len(history.sizes_bytes) < entries_max:
            if listener.failed_with is not None:
                raise listener.failed_with
            if len(history.sizes_bytes) - 1 - history.confirmed >= OUTSTANDING_MAX:
                listener.progress.clear()
                await listener.progress.wait()
                continue
            first = len(history.sizes_bytes)
            sizes = [rng.choice((10, 100, 1_000, 10_000)) for _ in range(rng.randrange(1, 20))]
            payloads = [payload(self._seed, writer.ledger_id, first + at, size) for at, size in enumerate(sizes)]
            assert writer.append(payloads) == first
            history.sizes_bytes += sizes
            await asyncio.sleep(len(sizes) / self._rate_per_s)


async def check(client: BookKeeperClient, seed: int, history: LedgerHistory) -> list[str]:
    """Recover a ledger and read all of it; what is wrong with it."""
    name = f"ledger {history.ledger_id}"
    for attempt in range(OPEN_ATTEMPTS_MAX):
        try:
            reader = await client.open(history.ledger_id, recover=True)
            break
        except MagnetarError as error:
            if attempt + 1 == OPEN_ATTEMPTS_MAX:
                return [f"{name} cannot be opened: {error}"]
            await asyncio.sleep(1.0)
    last = reader.last_add_confirmed
    problems: list[str] = []
    if last < history.confirmed:
        problems.append(f"{name} ends at {last}, yet {history.confirmed} was confirmed")
    if last >= len(history.sizes_bytes):
        problems.append(f"{name} ends at {last}, yet only {len(history.sizes_bytes)} entries were ever appended")
    entry_id = 0
    end = min(last, len(history.sizes_bytes) - 1)
    while entry_id <= end:
        try:
            found = await reader.read(entry_id, min(end, entry_id + READ_ENTRIES - 1))
        except MagnetarError as error:
            return [*problems, f"{name}: entry {entry_id} cannot be read: {error}"]
        for content in found:
            if content != payload(seed, history.ledger_id, entry_id, history.sizes_bytes[entry_id]):
                problems.append(f"{name}: entry {entry_id} holds something else")
            entry_id += 1
    await reader.close()
    return problems

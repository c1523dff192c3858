"""What tests of garbage collection share: a metadata store that lists ledgers, and entries to collect."""

from __future__ import annotations

from collections.abc import AsyncIterator

from magnetar.core.errors import Unavailable
from magnetar.wire.bookkeeper.entry import EntryCodec


class ListedLedgers:
    """The metadata store. While it is `away` it answers nothing."""

    def __init__(self, *ledger_ids: int) -> None:
        self.ids = set(ledger_ids)
        self.away = False

    async def catch_up(self) -> None:
        """Nothing lags. `Unavailable` while it is away."""
        if self.away:
            raise Unavailable("the store is away")

    async def ledger_ids(self) -> AsyncIterator[int]:
        for ledger_id in sorted(self.ids):
            yield ledger_id

    async def exists(self, ledger_id: int) -> bool:
        return ledger_id in self.ids

    async def belongs_to(self, ledger_id: int, bookie_id: str) -> bool | None:
        return True


def entry(ledger_id: int, entry_id: int) -> bytes:
    payload = b"%d:%d " % (ledger_id, entry_id) * 20
    return EntryCodec(ledger_id, "CRC32C").encode_many(entry_id, entry_id - 1, 0, [payload])[0]

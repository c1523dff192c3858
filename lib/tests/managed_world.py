"""Owners of a managed ledger over a metadata store that loses answers."""

from __future__ import annotations

from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.info_codec import decode_cursor_info, decode_ledger_info
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import ManagedWorld
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore

NAME = "public/default/persistent/topic"
UNSURE = [RequestFate.REFUSED, RequestFate.LOST, RequestFate.LATE]
POLICY = ManagedLedgerSettings(retention_time_ms=-1, retention_size_bytes=-1)


class World(ManagedWorld):
    """A world whose owners have a store that treats requests as it is told, by verb and path."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: dict[tuple[str, str], list[RequestFate]] = {}
        self.sessions: list[FaultyStore] = []

    def next_fates(self, path: str, *fates: RequestFate, verb: str = "put") -> None:
        """Of the next requests."""
        self.fates[verb, path] = list(fates)

    async def owner(self, policy: ManagedLedgerSettings = POLICY) -> ManagedLedger:
        """Another owner opens the topic."""
        return await self.another().open(NAME, policy)

    def another(self) -> ManagedLedgerFactory:
        """A factory with a session of its own."""
        session = FaultyStore(self.store, self._fate, late_seconds=5.0)
        self.sessions.append(session)
        return self.factory(POLICY, store=session)

    def copy(self) -> World:
        """The world as it is, for another owner to look at without disturbing this one."""
        copied = World()
        copied.store = MemoryMetadataStore(self.store.copy_of_tree())
        copied.ledgers = self.ledgers.copy()
        return copied

    async def named(self) -> set[int]:
        """Every ledger that a node names."""
        found: set[int] = set()
        node = await self.store.get(ledger_path(NAME))
        if node is not None:
            found.update(record.ledger_id for record in decode_ledger_info(node.value).records)
        for child in await self.store.children(ledger_path(NAME)):
            cursor = await self.store.get(f"{ledger_path(NAME)}/{child}")
            assert cursor is not None
            found.add(decode_cursor_info(cursor.value).cursorsLedgerId)
        return found - {-1}

    async def nothing_left_over(self) -> bool:
        """Whether every ledger is named, once the work in the background is done."""
        await self.settle()
        return set(self.ledgers.stored) == await self.named()

    def _fate(self, verb: str, path: str) -> RequestFate:
        fates = self.fates.get((verb, path))
        return fates.pop(0) if fates else RequestFate.DONE

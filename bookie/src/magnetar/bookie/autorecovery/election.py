"""Which process audits: one auditor at a time, as far as an election can promise it.

Apache has two elections. BookKeeper's own ZooKeeper driver counts votes: sequential nodes, of which the lowest wins.
Pulsar's metadata-store driver has one leader's node. Which one a bookie takes part in follows from its
`metadataServiceUri`: `metadata-store:…` means the leader's node; `zk+…://…`, and none but `zkServers`, as Pulsar's
`bookkeeper.conf` comes, mean votes. Bookies of both kinds in one cluster have an auditor each.

Two auditors do no harm, be it for that reason or because one has not yet noticed that its session is over. An audit
writes nothing but marks. Marking is a compare-and-set that adds names to what stands there, so two auditors that find
the same write it once; a mark that is wrong, or set again just after a repair, costs a worker one look at the ledger.
The marks of the last checks only say when the next one is due.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.bookie.autorecovery import paths
from magnetar.core.errors import PeerError
from magnetar.metadata.coordination import LeaderElection, LeaderState, NodeKeeper
from magnetar.metadata.paths import name_of
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    MetadataStore,
    NodeNotFound,
    StoreUnavailable,
    VersionConflict,
)
from magnetar.wire.bookkeeper.under_replication import decode_vote, encode_vote

logger: Final = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Between attempts to take part in the second of two elections while the store cannot be reached."""

METADATA_STORE_SCHEME: Final = "metadata-store:"


class ElectionKind(enum.Enum):
    """The election to take part in."""

    VOTES = "votes"
    """BookKeeper's own election, by sequential nodes in ZooKeeper: the lowest vote wins."""
    LEADER = "leader"
    """The election of Pulsar's metadata-store driver: whoever makes its ephemeral node is the auditor."""
    BOTH = "both"
    """Audit only as the winner of both: one auditor beside Apache's bookies of either kind."""


def election_of_uri(metadata_service_uri: str) -> ElectionKind:
    """The election of Apache's bookies that are set up with this `metadataServiceUri`; empty: with `zkServers`."""
    return ElectionKind.LEADER if metadata_service_uri.startswith(METADATA_STORE_SCHEME) else ElectionKind.VOTES


class Election(Protocol):
    """A candidacy. `on_change`, given to the constructor, is called on the loop after each change of `leading`; a
    lost session ends `leading` at once."""

    leading: bool

    async def start(self) -> None:
        """Take part from now on. `StoreUnavailable` if the store cannot be reached."""
        ...

    async def close(self) -> None:
        """Take part no more."""
        ...


def election(kind: ElectionKind, store: MetadataStore, bookie_id: str, on_change: Callable[[], None]) -> Election:
    """A candidacy of this kind. The bookie's id must be used by one candidate only."""
    match kind:
        case ElectionKind.VOTES:
            return VoteElection(store, bookie_id, on_change)
        case ElectionKind.LEADER:
            return LeaderNodeElection(store, bookie_id, on_change)
        case ElectionKind.BOTH:
            return DoubleElection(store, bookie_id, on_change)


async def current_auditor(store: MetadataStore, kind: ElectionKind) -> str | None:
    """The id of the bookie that audits, by this election; None if there is none. `StoreUnavailable`, `PeerError`."""
    if kind is ElectionKind.VOTES:
        votes = await store.children(paths.VOTES)
        node = await store.get(f"{paths.VOTES}/{min(votes, key=_number_of_vote)}") if votes else None
        return None if node is None else decode_vote(node.value)
    node = await store.get(paths.LEADER)
    return None if node is None else _leader_of(node.value)


class VoteElection:
    """Sequential votes; the lowest one that stands wins (BookKeeper: meta/ZkLedgerAuditorManager)."""

    def __init__(self, store: MetadataStore, bookie_id: str, on_change: Callable[[], None]) -> None:
        self.leading = False
        self._store = store
        self._value = encode_vote(bookie_id)
        self._on_change = on_change
        self._keeper = NodeKeeper(store, paths.VOTES, self._settle, self._doubt)

    async def start(self) -> None:
        """Take part from now on. `StoreUnavailable` if the store cannot be reached."""
        await self._keeper.start()

    async def close(self) -> None:
        """Take part no more. The vote is withdrawn."""
        await self._keeper.stop()
        self._become(leading=False)
        try:
            for vote in await self._own_votes(await self._store.children(paths.VOTES)):
                await self._withdraw(vote)
        except StoreUnavailable as error:
            logger.info("the vote was not withdrawn, the end of the session does it: %s", error)

    async def _settle(self) -> None:
        doubts = self._keeper.doubts
        votes = await self._store.children(paths.VOTES)
        own = await self._own_votes(votes)
        if not own:
            stat = await self._store.put(
                paths.VOTE_PREFIX, self._value, MUST_NOT_EXIST, ephemeral=True, sequential=True
            )
            own = [name_of(stat.path)]
            votes = await self._store.children(paths.VOTES)
        for vote in own[1:]:
            # Of a request that seemed to fail.
            await self._withdraw(vote)
        leading = bool(votes) and min(votes, key=_number_of_vote) == own[0]
        if leading and not self.leading:
            # Nobody reads it but people.
            await self._store.put(paths.VOTES, self._value)
        if self._keeper.doubts == doubts:
            self._become(leading=leading)

    async def _own_votes(self, votes: list[str]) -> list[str]:
        """Those of our session, the lowest first."""
        nodes = await asyncio.gather(*(self._store.get(f"{paths.VOTES}/{vote}") for vote in votes))
        found = [vote for vote, node in zip(votes, nodes, strict=True) if node and node.stat.owned_by_this_session]
        return sorted(found, key=_number_of_vote)

    async def _withdraw(self, vote: str) -> None:
        try:
            await self._store.delete(f"{paths.VOTES}/{vote}")
        except (NodeNotFound, VersionConflict):
            return

    def _doubt(self) -> None:
        self._become(leading=False)

    def _become(self, *, leading: bool) -> None:
        if leading is not self.leading:
            self.leading = leading
            self._on_change()


class LeaderNodeElection:
    """One node with the leader's id as a JSON string (Pulsar: PulsarLedgerAuditorManager, LeaderElectionImpl)."""

    def __init__(self, store: MetadataStore, bookie_id: str, on_change: Callable[[], None]) -> None:
        self.leading = False
        self._on_change = on_change
        value = json.dumps(bookie_id).encode("utf-8")
        self._election = LeaderElection(store, paths.LEADER, value, self._state_changed)

    async def start(self) -> None:
        """Take part from now on. `StoreUnavailable` if the store cannot be reached."""
        await self._election.start()

    async def close(self) -> None:
        """Take part no more."""
        await self._election.close()

    def _state_changed(self, state: LeaderState) -> None:
        leading = state is LeaderState.LEADING
        if leading is not self.leading:
            self.leading = leading
            self._on_change()


class DoubleElection:
    """The votes first, and as their winner the leader's node: in this order always, so that no two candidates wait
    for each other."""

    def __init__(self, store: MetadataStore, bookie_id: str, on_change: Callable[[], None]) -> None:
        self.leading = False
        self._store = store
        self._bookie_id = bookie_id
        self._on_change = on_change
        self._votes = VoteElection(store, bookie_id, self._changed)
        self._leader: LeaderNodeElection | None = None
        self._wake_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take part from now on. `StoreUnavailable` if the store cannot be reached."""
        await self._votes.start()
        self._task = asyncio.create_task(self._run(), name="auditor election")

    async def close(self) -> None:
        """Take part no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._leave()
        await self._votes.close()

    async def _run(self) -> None:
        while True:
            await self._wake_up.wait()
            self._wake_up.clear()
            if not self._votes.leading:
                await self._leave()
            elif self._leader is None:
                leader = LeaderNodeElection(self._store, self._bookie_id, self._changed)
                try:
                    await leader.start()
                except StoreUnavailable as error:
                    logger.warning("the election of the auditor cannot go on: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
                    self._wake_up.set()
                    continue
                self._leader = leader
                self._changed()

    async def _leave(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            await leader.close()

    def _changed(self) -> None:
        self._wake_up.set()
        leading = self._votes.leading and self._leader is not None and self._leader.leading
        if leading is not self.leading:
            self.leading = leading
            self._on_change()


def _number_of_vote(name: str) -> int:
    digits = name.rpartition("_")[2]
    # What is no vote does not win.
    return int(digits) if digits.lstrip("-").isdecimal() else 2**63


def _leader_of(value: bytes) -> str:
    try:
        leader = json.loads(value)
    except ValueError as error:
        raise PeerError(f"{paths.LEADER} names no leader: {error}") from None
    if not isinstance(leader, str):
        raise PeerError(f"{paths.LEADER} names no leader: {value[:100]!r}")
    return leader

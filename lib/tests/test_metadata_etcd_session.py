"""A session with an etcd that is slow, silent or breaks off, on virtual time and without the server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from magnetar.metadata.etcd_access import EtcdAccess
from magnetar.metadata.etcd_client import EtcdClient
from magnetar.metadata.etcd_session import EtcdSession
from magnetar.metadata.generated import etcd_pb2 as pb
from magnetar.metadata.store import SessionEvent, StoreUnavailable
from magnetar.sim.loop import SimulatedLoop
from magnetar.sim.trace import Trace

TTL_SECONDS = 30


class ScriptedEtcd(EtcdClient):
    """Gives each watch the answers that are next, then breaks; renews leases as it is told."""

    def __init__(self) -> None:
        super().__init__(EtcdAccess(addresses=(), credentials=()), operation_timeout_ms=1_000)
        self.watches: list[list[pb.WatchResponse]] = []
        self.watched_from: list[int] = []
        self.renew: Callable[[float], Coroutine[Any, Any, int]] = self.renew_at_once
        self.granted = 0

    async def grant(self, ttl_seconds: int) -> pb.LeaseGrantResponse:
        self.granted += 1
        return pb.LeaseGrantResponse(ID=self.granted, TTL=ttl_seconds)

    async def revoke(self, lease: int) -> None:
        del lease

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        del request
        return pb.RangeResponse(header=pb.ResponseHeader(revision=5))

    async def keep_alive(self, lease: int, timeout_seconds: float) -> int:
        del lease
        return await self.renew(timeout_seconds)

    async def renew_at_once(self, timeout_seconds: float) -> int:
        del timeout_seconds
        return TTL_SECONDS

    async def watch(self, create: pb.WatchCreateRequest) -> AsyncIterator[pb.WatchResponse]:
        self.watched_from.append(create.start_revision)
        if not self.watches:
            await asyncio.get_running_loop().create_future()
        for answer in self.watches.pop(0):
            yield answer
        raise StoreUnavailable("broken off")


def answer(revision: int, *changed: int, created: bool = False) -> pb.WatchResponse:
    """Of a watch: the store's revision, and what changed at which revisions."""
    events = [pb.Event(kv=pb.KeyValue(key=b"/a", mod_revision=one)) for one in changed]
    return pb.WatchResponse(header=pb.ResponseHeader(revision=revision), created=created, events=events)


def run(work: Callable[[ScriptedEtcd, list[int], list[tuple[float, SessionEvent]]], Coroutine[Any, Any, None]]) -> None:
    """Run a test on virtual time."""
    loop = SimulatedLoop(random.Random(1), Trace(keep=False), steps_max=100_000, seconds_max=1_000.0)
    try:
        loop.run_until_complete(work(ScriptedEtcd(), [], []))
    finally:
        loop.close()


def session_with(
    etcd: ScriptedEtcd, seen: list[int], told: list[tuple[float, SessionEvent]], ttl_seconds: int = TTL_SECONDS
) -> EtcdSession:
    """A session that notes at which revisions it saw changes, and when it was told what."""
    loop = asyncio.get_running_loop()
    return EtcdSession(
        etcd,
        ttl_seconds * 1000,
        lambda event: seen.append(event.kv.mod_revision),
        lambda event: told.append((loop.time(), event)),
    )


@pytest.mark.parametrize(
    ("answers", "again_from"),
    [
        ([answer(100, created=True)], 6),
        ([answer(100, created=True), answer(100, 6, 7)], 8),
        ([answer(5, created=True), answer(9, 9)], 10),
        ([answer(5, created=True), answer(20)], 21),
    ],
    ids=["only-begun", "behind", "up-to-date", "progress"],
)
def test_a_watch_that_breaks_goes_on_where_it_was(answers: list[pb.WatchResponse], again_from: int) -> None:
    """What is behind the store gets its revision with answers that come before the changes up to it."""

    async def work(etcd: ScriptedEtcd, seen: list[int], told: list[tuple[float, SessionEvent]]) -> None:
        etcd.watches = [answers]
        session = session_with(etcd, seen, told)
        await session.start()
        await asyncio.sleep(1.0)
        assert etcd.watched_from == [6, again_from]
        await session.close()

    run(work)


def test_a_watch_that_etcd_ends_tells_that_changes_may_have_been_missed() -> None:
    """What etcd has compacted nobody hears of any more: whoever remembers nodes has to read them again."""

    async def work(etcd: ScriptedEtcd, seen: list[int], told: list[tuple[float, SessionEvent]]) -> None:
        etcd.watches = [[pb.WatchResponse(header=pb.ResponseHeader(revision=60), canceled=True, compact_revision=50)]]
        session = session_with(etcd, seen, told)
        await session.start()
        await asyncio.sleep(1.0)
        assert [event for _, event in told] == [SessionEvent.RECONNECTED]
        assert etcd.watched_from == [6, 61]
        await session.close()

    run(work)


def test_who_hears_nothing_gives_up_before_the_lease_ends() -> None:
    async def work(etcd: ScriptedEtcd, seen: list[int], told: list[tuple[float, SessionEvent]]) -> None:
        loop = asyncio.get_running_loop()
        asked: list[float] = []

        async def renew_slowly_then_never(timeout_seconds: float) -> int:
            asked.append(loop.time())
            if len(asked) == 1:
                # etcd renews when it is asked; the answer is long on its way.
                await asyncio.sleep(timeout_seconds - 1)
                return TTL_SECONDS
            await asyncio.sleep(timeout_seconds)
            raise StoreUnavailable("silent")

        etcd.renew = renew_slowly_then_never
        session = session_with(etcd, seen, told)
        await session.start()
        while not any(event is SessionEvent.SESSION_LOST for _, event in told):
            await asyncio.sleep(0.1)
        lost = next(when for when, event in told if event is SessionEvent.SESSION_LOST)
        assert lost <= asked[0] + TTL_SECONDS
        await session.close()

    run(work)

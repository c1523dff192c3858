from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from magnetar.operator import leader as module
from magnetar.operator.kubernetes.errors import ServerUnavailable
from magnetar.operator.leader import LEASE_SECONDS, RENEW_WITHIN_SECONDS, Leader
from magnetar.sim.virtual_time import VirtualTimeLoop
from operator_fakes.small_kubernetes import SettableClock, SmallApiServer

new_event_loop = VirtualTimeLoop


@pytest.fixture
def api() -> SmallApiServer:
    return SmallApiServer()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SettableClock:
    monkeypatch.setattr(module, "LOOK_EVERY_SECONDS", 0.001)
    monkeypatch.setattr(module, "RENEW_EVERY_SECONDS", 0.001)
    return SettableClock()


def leader(api: SmallApiServer, clock: SettableClock, identity: str) -> Leader:
    return Leader(api, clock, namespace="system", name="operator", identity=identity)


def lease(api: SmallApiServer) -> dict[str, Any]:
    spec: dict[str, Any] = api.objects["Lease", "system", "operator"]["spec"]
    return spec


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.001)


async def test_the_first_one_leads(api: SmallApiServer, clock: SettableClock) -> None:
    first = leader(api, clock, "a")
    assert not first.leads()
    await first.acquire()
    assert first.leads()
    assert lease(api)["holderIdentity"] == "a"
    assert lease(api)["leaseDurationSeconds"] == LEASE_SECONDS
    assert lease(api)["renewTime"] == "2025-10-09T08:53:20.000000Z"


async def test_the_second_one_waits_until_the_first_is_silent(api: SmallApiServer, clock: SettableClock) -> None:
    first, second = leader(api, clock, "a"), leader(api, clock, "b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    looks = len(api.calls)
    await until(lambda: len(api.calls) > looks + 3)
    clock.advance(LEASE_SECONDS - 1)
    looks = len(api.calls)
    await until(lambda: len(api.calls) > looks + 3)
    assert not waiting.done()
    assert not first.leads(), "it stops before others may begin"
    clock.advance(2)
    await waiting
    assert second.leads()
    assert (lease(api)["holderIdentity"], lease(api)["leaseTransitions"]) == ("b", 1)


async def test_renewals_keep_others_waiting(api: SmallApiServer, clock: SettableClock) -> None:
    first, second = leader(api, clock, "a"), leader(api, clock, "b")
    await first.acquire()
    keeping, waiting = asyncio.create_task(first.keep()), asyncio.create_task(second.acquire())
    for _ in range(10):
        renewed = lease(api)["renewTime"]
        clock.advance(5)
        await until(lambda renewed=renewed: lease(api)["renewTime"] != renewed)  # type: ignore[misc]  # A lambda's default.
        looks = len(api.calls)
        await until(lambda looks=looks: len(api.calls) > looks + 6)  # type: ignore[misc]  # A lambda's default.
    assert first.leads()
    assert not waiting.done()
    for task in (keeping, waiting):
        task.cancel()


async def test_without_renewals_it_is_lost_in_time(
    api: SmallApiServer, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader(api, clock, "a")
    await first.acquire()
    api.failures["patch", "Lease"] = [ServerUnavailable("down")]
    clock.advance(RENEW_WITHIN_SECONDS - 0.5)
    assert "down" in await first.keep()


async def test_a_server_that_says_nothing_does_not_hold_it_up(
    api: SmallApiServer, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> Any:
        await asyncio.sleep(60)

    first = leader(api, clock, "a")
    await first.acquire()
    monkeypatch.setattr(api, "patch", hang)
    clock.advance(RENEW_WITHIN_SECONDS - 0.01)
    async with asyncio.timeout(30):
        assert "no answer in time" in await first.keep()


async def test_taken_by_another_it_is_lost_at_once(api: SmallApiServer, clock: SettableClock) -> None:
    first, second = leader(api, clock, "a"), leader(api, clock, "b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    looks = len(api.calls)
    await until(lambda: len(api.calls) > looks + 2)
    clock.advance(LEASE_SECONDS + 1)
    await waiting
    first._renewed_seconds = clock.monotonic_seconds()
    assert "another operator" in await first.keep()


async def test_a_renewal_whose_answer_was_lost_is_its_own(api: SmallApiServer, clock: SettableClock) -> None:
    first = leader(api, clock, "a")
    await first.acquire()
    api.put(api.objects["Lease", "system", "operator"])
    await first._renew()
    assert first.leads()


async def test_a_lease_that_is_gone_is_lost(api: SmallApiServer, clock: SettableClock) -> None:
    first = leader(api, clock, "a")
    await first.acquire()
    api.objects.clear()
    assert "another operator" in await first.keep()


async def test_let_go_the_next_one_need_not_wait(api: SmallApiServer, clock: SettableClock) -> None:
    first, second = leader(api, clock, "a"), leader(api, clock, "b")
    await first.acquire()
    await first.release()
    assert not first.leads()
    await second.acquire()
    assert lease(api)["holderIdentity"] == "b"
    await first.release()
    assert lease(api)["holderIdentity"] == "b"


async def test_letting_go_does_not_wait_for_a_server_that_says_nothing(
    api: SmallApiServer, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is told to stop has half a minute."""
    monkeypatch.setattr(module, "RELEASE_SECONDS_MAX", 0.005)
    first = leader(api, clock, "a")
    await first.acquire()

    async def hang(*_: object, **__: object) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(api, "get", hang)
    async with asyncio.timeout(1):
        await first.release()
    assert not first.leads()


async def test_a_restarted_container_takes_its_own_lease_back(api: SmallApiServer, clock: SettableClock) -> None:
    await leader(api, clock, "a").acquire()
    again = leader(api, clock, "a")
    await again.acquire()
    assert again.leads()
    assert lease(api)["leaseTransitions"] == 0


async def test_errors_are_waited_out(api: SmallApiServer, clock: SettableClock) -> None:
    api.failures["get", "Lease"] = [ServerUnavailable("down")]
    first = leader(api, clock, "a")
    assert not first.in_contact()
    await first.acquire()
    assert first.leads()
    assert first.in_contact()


async def test_a_loop_that_does_nothing_any_more_is_stuck(api: SmallApiServer, clock: SettableClock) -> None:
    first = leader(api, clock, "a")
    await first.acquire()
    assert not first.stuck()
    clock.advance(121)
    assert first.stuck()

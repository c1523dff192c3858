"""Bookies of one machine drain as one, through the supervisor's control port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

import pytest
from magnetar.bookie.admin.control import serve_bookie
from magnetar.bookie.admin.testing import FakeOperations
from magnetar.bookie.operations import BookieDrainState, BookieDrainStep
from magnetar.bookie.process import group_drain
from magnetar.bookie.process.group_drain import drain_services
from magnetar.control.client import BookieControl, ControlChannel
from magnetar.control.errors import ControlRefused, ControlUnavailable, RefusalReason
from magnetar.control.generated import bookie_pb2 as messages
from magnetar.control.server import ControlServer
from magnetar.control.settings import ControlSettings
from magnetar.metadata.store import StoreUnavailable

HOST: Final = "127.0.0.1"
SETTINGS: Final = ControlSettings(host=HOST, stop_grace_seconds=0.5)


class Machine:
    """Two bookies with a control port each, and the one of both."""

    def __init__(self) -> None:
        self.bookies = [FakeOperations(), FakeOperations()]
        for number, bookie in enumerate(self.bookies, 1):
            bookie.drain_state = BookieDrainState(bookie_id=f"b{number}")
        self.servers: list[ControlServer] = []

    def steps(self) -> list[BookieDrainStep]:
        return [bookie.drain_state.step for bookie in self.bookies]

    def go_to(self, *steps: BookieDrainStep) -> None:
        for number, (bookie, step) in enumerate(zip(self.bookies, steps, strict=True), 1):
            bookie.drain_state = replace(
                bookie.drain_state, step=step, ledgers_total=5, ledgers_left=number, blockers=((number, "open"),)
            )


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    made = Machine()
    for operations in made.bookies:
        server = ControlServer(SETTINGS)
        await serve_bookie(server, operations.all())
        made.servers.append(server)
    yield made
    for server in made.servers:
        await server.close()


@pytest.fixture
async def control(machine: Machine) -> AsyncIterator[BookieControl]:
    async with AsyncExitStack() as opened:
        channels = [ControlChannel(f"{HOST}:{server.port}") for server in machine.servers]
        for channel in channels:
            opened.push_async_callback(channel.close)
        server = ControlServer(SETTINGS)
        await server.start(drain_services(channels, server.stopping))
        opened.push_async_callback(server.close)
        yield await opened.enter_async_context(BookieControl.to(f"{HOST}:{server.port}"))


async def test_all_begin_and_are_as_far_as_the_one_that_is_least_far(machine: Machine, control: BookieControl) -> None:
    begun = await control.start_drain()
    assert (begun.bookie_id, begun.step, begun.ledgers_total) == ("b1, b2", messages.DRAIN_STEP_READ_ONLY, 10)
    machine.go_to(BookieDrainStep.DONE, BookieDrainStep.REPLICATE)
    found = await control.drain()
    assert (found.step, found.ledgers_left) == (messages.DRAIN_STEP_REPLICATE, 3)
    assert [blocker.ledger_id for blocker in found.blockers] == [1, 2]
    machine.go_to(BookieDrainStep.DONE, BookieDrainStep.NONE)
    assert (await control.drain()).step == messages.DRAIN_STEP_NONE
    machine.go_to(BookieDrainStep.DONE, BookieDrainStep.DONE)
    assert [each.step async for each in control.watch_drain(100)] == [messages.DRAIN_STEP_DONE]


async def test_watching_tells_each_change(machine: Machine, control: BookieControl) -> None:
    await control.start_drain()
    steps = []
    async for found in control.watch_drain(100):
        steps.append(found.step)
        machine.go_to(*[BookieDrainStep.VERIFY if len(steps) == 1 else BookieDrainStep.DONE] * 2)
    assert steps == [messages.DRAIN_STEP_READ_ONLY, messages.DRAIN_STEP_VERIFY, messages.DRAIN_STEP_DONE]


async def test_who_is_away_is_named_and_a_watch_bears_that_it_is_started_again(
    machine: Machine, control: BookieControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    await control.start_drain()
    watched = control.watch_drain(100)
    assert (await anext(watched)).step == messages.DRAIN_STEP_READ_ONLY
    away = StoreUnavailable("gone")

    def drain() -> BookieDrainState:
        raise away

    machine.go_to(BookieDrainStep.DONE, BookieDrainStep.VERIFY)
    monkeypatch.setattr(machine.bookies[1], "drain", drain)
    with pytest.raises(ControlUnavailable, match=r"bookie process 2 of 2 is away: .*gone"):
        await control.drain()
    next_step = asyncio.ensure_future(anext(watched))
    await asyncio.sleep(0.3)
    assert not next_step.done()
    monkeypatch.undo()
    assert (await next_step).step == messages.DRAIN_STEP_VERIFY
    monkeypatch.setattr(group_drain, "AWAY_SECONDS_MAX", 0.0)
    monkeypatch.setattr(machine.bookies[0], "drain", drain)
    with pytest.raises(ControlUnavailable, match="bookie process 1 of 2 is away"):
        await anext(watched)


async def test_none_begins_when_one_is_refused_and_who_drained_before_goes_on(
    machine: Machine, control: BookieControl
) -> None:
    machine.bookies[1].failure = StoreUnavailable("gone")
    with pytest.raises(ControlUnavailable, match="gone"):
        await control.start_drain()
    assert machine.steps() == [BookieDrainStep.NONE] * 2
    machine.go_to(BookieDrainStep.REPLICATE, BookieDrainStep.NONE)
    with pytest.raises(ControlUnavailable, match="gone"):
        await control.start_drain()
    assert machine.steps() == [BookieDrainStep.REPLICATE, BookieDrainStep.NONE]


async def test_all_are_cancelled_and_what_is_about_one_bookie_is_not_offered(
    machine: Machine, control: BookieControl
) -> None:
    await control.start_drain()
    assert (await control.cancel_drain()).step == messages.DRAIN_STEP_NONE
    assert machine.steps() == [BookieDrainStep.NONE] * 2
    with pytest.raises(ControlRefused, match="does not serve this call"):
        await control.storage_state()


async def test_one_that_cannot_be_asked_keeps_no_other_from_being_cancelled(
    machine: Machine, control: BookieControl
) -> None:
    await control.start_drain()
    await machine.servers[0].close()
    with pytest.raises(ControlUnavailable):
        await control.cancel_drain()
    assert machine.steps() == [BookieDrainStep.READ_ONLY, BookieDrainStep.NONE]


async def test_all_who_are_away_are_named_but_a_refusal_comes_first(
    machine: Machine, control: BookieControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> BookieDrainState:
        raise StoreUnavailable("gone")

    def refusing() -> BookieDrainState:
        raise ControlRefused(RefusalReason.FAILED_PRECONDITION, "never")

    monkeypatch.setattr(machine.bookies[0], "drain", away)
    monkeypatch.setattr(machine.bookies[1], "drain", refusing)
    with pytest.raises(ControlRefused, match="never"):
        _ = [each async for each in control.watch_drain(100)]
    monkeypatch.setattr(machine.bookies[1], "drain", away)
    with pytest.raises(ControlUnavailable, match=r"process 1 of 2 is away: .*; bookie process 2 of 2 is away: "):
        await control.drain()


async def test_a_drain_that_is_cancelled_as_it_begins_goes_on_nowhere(
    machine: Machine, control: BookieControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the bookie that had not begun when it was cancelled, and to whoever began it that is said."""
    asked, go_on = asyncio.Event(), asyncio.Event()
    second = machine.bookies[1]
    start_drain = second.start_drain

    async def slowly() -> BookieDrainState:
        asked.set()
        await go_on.wait()
        return await start_drain()

    monkeypatch.setattr(second, "start_drain", slowly)
    starting = asyncio.ensure_future(control.start_drain())
    await asked.wait()
    assert machine.steps() == [BookieDrainStep.READ_ONLY, BookieDrainStep.NONE]
    assert (await control.cancel_drain()).step == messages.DRAIN_STEP_NONE
    go_on.set()
    with pytest.raises(ControlRefused, match="cancelled as it began"):
        await starting
    assert machine.steps() == [BookieDrainStep.NONE] * 2


async def test_two_watches_hear_the_same_and_the_end_of_one_does_not_end_the_other(
    machine: Machine, control: BookieControl
) -> None:
    await control.start_drain()
    watches = [control.watch_drain(100), control.watch_drain(100)]
    for watch in watches:
        assert (await anext(watch)).step == messages.DRAIN_STEP_READ_ONLY
    gone = watches.pop()
    assert isinstance(gone, AsyncGenerator)
    await gone.aclose()
    machine.go_to(BookieDrainStep.VERIFY, BookieDrainStep.VERIFY)
    assert (await anext(watches[0])).step == messages.DRAIN_STEP_VERIFY
    await control.cancel_drain()
    assert [each.step async for each in watches[0]] == [messages.DRAIN_STEP_NONE]

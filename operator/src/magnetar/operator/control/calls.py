"""`Controls` over gRPC, HTTP and TCP."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from magnetar.balance.model import LoadSnapshot
from magnetar.control.broker_client import BrokerControl
from magnetar.control.client import BookieControl, ControlChannel
from magnetar.control.errors import ControlUnavailable
from magnetar.core.clock import Clock
from magnetar.core.errors import PeerError
from magnetar.operator.control import facts
from magnetar.operator.control.controls import ASK_SECONDS_MAX, ASKED_AT_ONCE_MAX, COUNT_SECONDS_MAX, Driver
from magnetar.operator.control.metrics_page import MetricsPages
from magnetar.operator.plan.facts import (
    BookieFacts,
    BrokerFacts,
    EnsembleFacts,
    LostBookieFacts,
    ReadOnlyBrokerFacts,
    ZookeeperFacts,
)
from magnetar.operator.resources.cluster import BundleMove

CHANNELS_MAX: Final = 256
"""Open at a time: some 20 kB each. Beyond it the one not used for longest is closed."""
CHANNEL_IDLE_SECONDS: Final = 300.0
"""Not used for so long, a channel belongs to a pod that is gone."""
ANSWER_BYTES_MAX: Final = 65_536
"""Bytes of ZooKeeper's answer to `srvr`, which has some hundred."""
MOVES_MAX: Final = 10
"""Moves of bundles that one answer may tell, as many as a status lists."""


@dataclass(slots=True, eq=False)
class _Line:
    """A channel, and who uses it."""

    channel: ControlChannel
    users: int = 0
    used_seconds: float = 0.0
    dropped: bool = False


class ControlCalls:
    """Channels are kept, since a handshake costs more than a call. `close` it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: OrderedDict[tuple[str, str], _Line] = OrderedDict()
        """By address and token, the one not used for longest first."""
        self._metrics = MetricsPages(clock)

    async def close(self) -> None:
        """Close all channels."""
        for key in list(self._lines):
            await self._drop(key, self._lines[key])

    async def bookie(self, address: str, token: str) -> BookieFacts:
        """What a bookie says of itself."""
        async with self._bookie(address, token) as control:
            state, drain = await asyncio.gather(control.storage_state(), control.drain())
        return facts.bookie(state, drain)

    async def start_bookie_drain(self, address: str, token: str) -> None:
        """Begin; no error while it runs."""
        async with self._bookie(address, token) as control:
            await control.start_drain()

    async def cancel_bookie_drain(self, address: str, token: str) -> None:
        """Take writes again. `ControlRefused` once the cookie is removed."""
        async with self._bookie(address, token) as control:
            await control.cancel_drain()

    async def lost_bookie(self, address: str, token: str, bookie_id: str) -> LostBookieFacts:
        """What the bookie at the address says of another one that does not run. Walks the metadata."""
        async with self._bookie(address, token, COUNT_SECONDS_MAX) as control:
            return facts.lost_bookie(await control.lost_bookie(bookie_id))

    async def retire_lost_bookie(self, address: str, token: str, bookie_id: str) -> LostBookieFacts:
        """Have that one's ledgers marked as lacking replicas, and its cookie dropped once none names it.
        `ControlRefused` if it is up. Walks the metadata."""
        async with self._bookie(address, token, COUNT_SECONDS_MAX) as control:
            return facts.lost_bookie(await control.retire_lost_bookie(bookie_id))

    async def under_replicated_ledgers(self, address: str, token: str) -> int:
        """How many ledgers of the whole cluster lack replicas, as the bookie at the address counts. Walks the
        metadata."""
        async with self._bookie(address, token, COUNT_SECONDS_MAX) as control:
            return (await control.auto_recovery()).ledgers_left

    async def broker(self, address: str, token: str) -> BrokerFacts:
        """What a broker says of itself."""
        async with self._broker(address, token) as control:
            report, drain = await asyncio.gather(control.load_report(), control.drain_state())
        return facts.broker(report, drain)

    async def largest_ensemble(self, address: str, token: str) -> EnsembleFacts:
        """The largest ensemble that the broker at the address knows of. It may have to read many policies."""
        async with self._broker(address, token, COUNT_SECONDS_MAX) as control:
            found = await control.largest_ensemble()
        return EnsembleFacts(size=found.ensemble_size, wanted_by=found.wanted_by)

    async def start_broker_drain(self, address: str, token: str) -> None:
        """Begin; no error while it runs. It goes on without us. `ControlRefused` if there is no other broker."""
        async with self._broker(address, token) as control:
            states = control.drain()
            try:
                # The first state says that it has begun; it goes on without anybody who watches.
                await anext(states)
            finally:
                if isinstance(states, AsyncGenerator):
                    await states.aclose()

    async def cancel_broker_drain(self, address: str, token: str) -> None:
        """Keep what is left, take bundles again."""
        async with self._broker(address, token) as control:
            await control.cancel_drain()

    async def moves(self, address: str, token: str) -> Sequence[BundleMove]:
        """What the broker at the address decided as the leader, the latest first, ten at most."""
        async with self._broker(address, token) as control:
            decisions = (await control.decisions(MOVES_MAX)).decisions
        return [facts.move(decision) for decision in reversed(decisions)][:MOVES_MAX]

    async def driver(self, address: str, token: str) -> Driver:
        """Who moves and splits bundles in the whole cluster."""
        async with self._broker(address, token) as control:
            return facts.driver(await control.driver())

    async def set_driver(self, address: str, token: str, driver: Driver) -> None:
        """Choose who moves and splits bundles in the whole cluster."""
        async with self._broker(address, token) as control:
            await control.set_driver(driver)

    async def load_snapshot(self, addresses: Sequence[str], token: str) -> LoadSnapshot:
        """What all brokers do now; those that do not answer are missing in it."""
        turns = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def ask(address: str) -> facts.BrokerReport | None:
            try:
                async with turns, self._broker(address, token) as control:
                    return await asyncio.gather(control.load_report(), control.bundles(), control.drain_state())
            except (ControlUnavailable, PeerError):
                # Missing in the snapshot: the balancer leaves alone what it does not see.
                return None

        answers = await asyncio.gather(*(ask(address) for address in addresses))
        now_ms = int(self._clock.monotonic_seconds() * 1000)
        return facts.load_snapshot([answer for answer in answers if answer is not None], now_ms)

    async def transfer_bundle(self, address: str, token: str, bundle: str, destination_broker_id: str) -> None:
        """Hand a bundle of the broker at the address to another one. `ControlRefused` if it does not own it."""
        async with self._broker(address, token, COUNT_SECONDS_MAX) as control:
            await control.transfer_bundle(bundle, destination_broker_id)

    async def split_bundle(
        self, address: str, token: str, bundle: str, *, algorithm: str, boundaries: Sequence[int] = ()
    ) -> None:
        """Cut a bundle of the broker at the address, which keeps the parts. `ControlRefused` if it does not own it."""
        async with self._broker(address, token, COUNT_SECONDS_MAX) as control:
            await control.split_bundle(bundle, algorithm=algorithm, boundaries=boundaries)

    async def read_only_broker(self, address: str) -> ReadOnlyBrokerFacts:
        """What the metrics of a read-only broker say, some seconds old perhaps. The address is of its web port."""
        return await self._metrics.read_only_broker(address)

    async def zookeeper(self, address: str) -> ZookeeperFacts:
        """What a ZooKeeper server answers to `srvr`."""
        try:
            async with asyncio.timeout(ASK_SECONDS_MAX):
                return facts.zookeeper(await _four_letter_word(address, b"srvr"))
        except (OSError, TimeoutError) as error:
            raise ControlUnavailable(f"{address}: {str(error) or 'no answer in time'}") from None

    @asynccontextmanager
    async def _bookie(
        self, address: str, token: str, seconds_max: float = ASK_SECONDS_MAX
    ) -> AsyncIterator[BookieControl]:
        async with self._line(address, token, seconds_max) as channel:
            yield BookieControl(channel)

    @asynccontextmanager
    async def _broker(
        self, address: str, token: str, seconds_max: float = ASK_SECONDS_MAX
    ) -> AsyncIterator[BrokerControl]:
        async with self._line(address, token, seconds_max) as channel:
            yield BrokerControl(channel)

    @asynccontextmanager
    async def _line(self, address: str, token: str, seconds_max: float) -> AsyncIterator[ControlChannel]:
        """A channel for one call. One that did not answer is made anew for the next: gRPC waits for up to two minutes
        before it tries an address again."""
        key = (address, token)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(ControlChannel(address, token=token))
        self._lines.move_to_end(key)
        line.users += 1
        line.used_seconds = self._clock.monotonic_seconds()
        try:
            async with asyncio.timeout(seconds_max):
                yield line.channel
        except TimeoutError:
            line.dropped = True
            raise ControlUnavailable(f"{address}: no answer within {seconds_max:.0f} s") from None
        except ControlUnavailable:
            line.dropped = True
            raise
        finally:
            line.users -= 1
            if line.dropped:
                await self._drop(key, line)
            await self._sweep()

    async def _sweep(self) -> None:
        """Close what nobody uses: of pods that are gone, and beyond the bound."""
        long_ago = self._clock.monotonic_seconds() - CHANNEL_IDLE_SECONDS
        for key, line in self._too_old(long_ago):
            await self._drop(key, line)

    def _too_old(self, long_ago: float) -> Iterable[tuple[tuple[str, str], _Line]]:
        surplus = len(self._lines) - CHANNELS_MAX
        unused = [(key, line) for key, line in self._lines.items() if not line.users]
        return [pair for number, pair in enumerate(unused) if number < surplus or pair[1].used_seconds < long_ago]

    async def _drop(self, key: tuple[str, str], line: _Line) -> None:
        line.dropped = True
        if self._lines.get(key) is line:
            del self._lines[key]
        if not line.users:
            await line.channel.close()


async def _four_letter_word(address: str, word: bytes) -> str:
    """ZooKeeper's answer; it closes the connection after it."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        writer.write(word)
        answer = bytearray()
        while len(answer) < ANSWER_BYTES_MAX and (piece := await reader.read(ANSWER_BYTES_MAX)):
            answer += piece
        return answer.decode(errors="replace")
    finally:
        writer.close()

"""Brokers tell each other what they use of resource groups, by the topic that Apache's use for it, and share the limits
by what they hear.

A broker reads its own reports, too: by that it knows that the others hear them. While it does not, it uses an even part
of each limit, so that the parts of all brokers never add up to more than the limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.broker.policies.system_topics import SYSTEM_READER
from magnetar.broker.resource_groups.usage_message import decode_reports, encode_reports
from magnetar.broker.slices import TimeSlice
from magnetar.core.errors import MagnetarError, PeerError
from magnetar.core.topic_name import TopicName
from magnetar.net.throttled_report import ThrottledReport

if TYPE_CHECKING:
    from magnetar.broker.peers.addresses import BrokerAddresses
    from magnetar.broker.resource_groups.group import ResourceGroup
    from magnetar.broker.resource_groups.groups import ResourceGroups
    from magnetar.client.client import PulsarClient
    from magnetar.client.message import Message
    from magnetar.client.reader import ReaderOptions
    from magnetar.core.clock import Clock

logger: Final = logging.getLogger(__name__)

USAGE_TOPIC: Final = TopicName.parse("non-persistent://pulsar/system/resource-usage")
"""Pulsar: `ResourceUsageTopicTransportManager.RESOURCE_USAGE_TOPIC_NAME`."""

TICK_SECONDS: Final = 1.0
"""How often parts are computed, and changes told: ten of these are the ten seconds over which limits hold."""

SETTLE_SECONDS: Final = 2.0
"""After the first report of a group was heard, for the answers of other brokers that have topics of the group."""

ECHO_SECONDS_MAX: Final = 10.0
"""How long the own reports may be on their way; then nobody is known to hear anything."""

SILENT_INTERVALS: Final = 2.5
"""After so many intervals without a word of a group a broker has no topics of it any more."""

WRITE_SECONDS_MAX: Final = 10.0
"""For one report (Apache's send timeout)."""

RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0
"""Between attempts to reach the topic: doubled with each one that fails."""

GROUPS_PER_MESSAGE: Final = 1_000
"""Some 100 kB; more are told with the next message."""

MESSAGE_BYTES_MAX: Final = 256 * 1024
"""Of a report that is read: three thousand groups of one broker. Two hundred may wait, so 50 MB at most."""

MESSAGES_PER_SECOND_MAX: Final = 500
"""Reports that are read in a second: those of as many brokers. What comes beyond that the topic drops by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeParts:
    """The collaborators of the exchange."""

    own: BrokerAddresses
    brokers: Callable[[], Mapping[str, BrokerAddresses]]
    """Those that are alive, by id."""
    client: Callable[[], PulsarClient]
    """Asked for once there are other brokers to tell."""
    clock: Clock
    interval_seconds: Callable[[], float]
    """How often what has not changed is told."""


class UsageExchange:
    """From `start` to `close`; alone in its cluster a broker opens nothing."""

    def __init__(self, groups: ResourceGroups, parts: ExchangeParts) -> None:
        self.failures = 0
        """How often in a row the topic could not be read or written."""
        self._groups = groups
        self._parts = parts
        self._own_url = parts.own.service_url or parts.own.service_url_tls or ""
        self._due: dict[str, None] = {}
        self._news = asyncio.Event()
        self._others: Collection[str] = frozenset()
        """Names of the other brokers."""
        self._measured_seconds = parts.clock.monotonic_seconds()
        self._unheard_seconds: float | None = None
        """When the first report was due that this broker has not read itself."""
        self._ticking: asyncio.Task[None] | None = None
        self._transport: list[asyncio.Task[None]] = []
        self._damaged = ThrottledReport(self._tell_damaged)
        self._last_damage = ""
        groups.brokers = self._count

    def start(self) -> None:
        """Measure and share from now on."""
        self._ticking = asyncio.get_running_loop().create_task(self._tick_on(), name="resource-groups")

    async def close(self) -> None:
        """Tell and hear nothing more; the parts stay as they are."""
        ticking, self._ticking = self._ticking, None
        tasks = [*self._transport, *([ticking] if ticking is not None else [])]
        self._transport = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _count(self) -> int:
        return max(1, len(self._parts.brokers()))

    # --- once a second

    async def _tick_on(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self.tick()
            except Exception:
                logger.exception("resource groups are not shared anew this time")

    async def tick(self) -> None:
        """Measure what passed, have told what has changed, and use the parts that follow from what was heard."""
        parts = self._parts
        now = parts.clock.monotonic_seconds()
        seconds, self._measured_seconds = max(now - self._measured_seconds, 0.001), now
        self._others = self._urls_of_others()
        interval_seconds = parts.interval_seconds()
        silent_since = now - SILENT_INTERVALS * interval_seconds
        turn = TimeSlice()
        for group in self._groups.in_use():
            group.measure(seconds, now)
            group.forget(self._others, silent_since)
            self._share(group, now)
            if self._others and any(group.limits) and group.due(now, interval_seconds):
                self._due[group.name] = None
            if turn.over:
                await turn.pause()
        if self._due:
            self._begin()
            if self._unheard_seconds is None:
                self._unheard_seconds = now
            self._news.set()

    def _urls_of_others(self) -> Collection[str]:
        own_id = self._parts.own.broker_id
        return {
            url
            for broker_id, broker in self._parts.brokers().items()
            if broker_id != own_id
            for url in (broker.service_url, broker.service_url_tls)
            if url
        }

    def _share(self, group: ResourceGroup, now: float) -> None:
        if not self._others:
            group.understood_seconds = None
            group.use_even_parts(1)
        elif not self.heard(now) or group.understood_seconds is None or now < group.understood_seconds + SETTLE_SECONDS:
            group.use_even_parts(self._count())
        else:
            group.share()

    def heard(self, now_seconds: float) -> bool:
        """Whether the others hear this broker, as far as it knows."""
        return self._unheard_seconds is None or now_seconds < self._unheard_seconds + ECHO_SECONDS_MAX

    # --- telling and hearing

    def _begin(self) -> None:
        if not self._transport:
            loop = asyncio.get_running_loop()
            self._transport = [
                loop.create_task(self._again_and_again(self._write), name="resource-usage-writer"),
                loop.create_task(self._again_and_again(self._read), name="resource-usage-reader"),
            ]

    async def _again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        pause_seconds = RETRY_SECONDS
        while True:
            began_seconds = self._parts.clock.monotonic_seconds()
            try:
                await work()
            except (MagnetarError, TimeoutError) as error:
                self.failures += 1
                if self.failures & (self.failures - 1) == 0:
                    logger.warning(
                        "%s is not reached, attempt %d, limits are held by even parts: %s",
                        USAGE_TOPIC, self.failures, str(error) or "it takes too long",
                    )  # fmt: skip
            if self._parts.clock.monotonic_seconds() - began_seconds > RETRY_SECONDS_MAX:
                pause_seconds = RETRY_SECONDS
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, RETRY_SECONDS_MAX)

    async def _write(self) -> None:
        from magnetar.client.message import OutgoingMessage

        producer = await self._parts.client().producer(USAGE_TOPIC)
        self._ask_for_all()
        try:
            while True:
                await self._news.wait()
                payload = self._next_message()
                if payload is None:
                    self._news.clear()
                    continue
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await producer.send(OutgoingMessage(payload))
        finally:
            await producer.close()

    def _next_message(self) -> bytes | None:
        """The next message with reports that are due, of as many groups as fit; None when none is due."""
        now = self._parts.clock.monotonic_seconds()
        names = list(self._due)[:GROUPS_PER_MESSAGE]
        for name in names:
            del self._due[name]
        found = [group for name in names if (group := self._groups.get(name)) is not None]
        if not found:
            return None
        reports = [group.report(now) for group in found]
        return encode_reports(self._own_url, reports, self._parts.interval_seconds())

    async def _read(self) -> None:
        reader = await self._parts.client().reader(USAGE_TOPIC, reader_options())
        self._ask_for_all()
        try:
            turn = TimeSlice()
            while True:
                second = self._parts.clock.monotonic_seconds() + 1.0
                for _ in range(MESSAGES_PER_SECOND_MAX):
                    self.take(await reader.receive())
                    if turn.over:
                        await turn.pause()
                await asyncio.sleep(max(0.0, second - self._parts.clock.monotonic_seconds()))
        finally:
            await reader.close()

    def _ask_for_all(self) -> None:
        """Marks all groups to be reported anew: earlier reports may be lost, or were not read by this broker."""
        for group in self._groups.in_use():
            group.asked = True

    def take(self, message: Message) -> None:
        """A report of any broker. Those of brokers that are not of the cluster, and of groups that no topic here is in,
        are passed over."""
        now = self._parts.clock.monotonic_seconds()
        try:
            broker, reports = decode_reports(message.payload, self._parts.interval_seconds())
        except PeerError as error:
            self._last_damage = str(error)
            self._damaged.happened()
            return
        if broker == self._own_url:
            self.failures = 0
            self._unheard_seconds = None
            for report in reports:
                own = self._groups.get(report.group)
                if own is not None and own.understood_seconds is None:
                    own.understood_seconds = now
        elif broker in self._others:
            for report in reports:
                group = self._groups.get(report.group)
                if group is not None:
                    group.take(broker, report, now)

    def _tell_damaged(self, count: int) -> None:
        logger.warning("%s: %d messages are passed over, the last one is %s", USAGE_TOPIC, count, self._last_damage)


def reader_options() -> ReaderOptions:
    """From now on; each message is one report and hardly compressed."""
    from magnetar.client.message import LATEST_ID, EntryBounds
    from magnetar.client.reader import ReaderOptions

    bounds = EntryBounds(messages_max=GROUPS_PER_MESSAGE, size_bytes_max=MESSAGE_BYTES_MAX)
    return ReaderOptions(start=LATEST_ID, create_topic=True, subscription_prefix=SYSTEM_READER, bounds=bounds)

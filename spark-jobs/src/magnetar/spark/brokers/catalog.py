"""Topics as brokers tell of them, for clusters whose metadata store is out of reach.

The binary protocol is enough: it tells partitions, the topics of a namespace, the end of each topic, and schemas. The
admin API, where option `admin.url` names it, tells ledgers with their sizes as well, so that tasks can be cut by size.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from magnetar.client.client import PulsarClient
from magnetar.client.connection import BrokerConnection
from magnetar.client.consumer import Receiver
from magnetar.client.message import LATEST_ID, Message, MessageId
from magnetar.client.topic_end import ClientParts
from magnetar.core.topic_name import InvalidTopicName, TopicName, java_url_encode
from magnetar.spark.assembly.compaction import CompactedLedger, compaction_in_stats
from magnetar.spark.bounded_gather import bounded_gather
from magnetar.spark.brokers.admin_api import AdminApi
from magnetar.spark.brokers.errors import is_missing, patiently
from magnetar.spark.errors import AccessRefused, BadOption, ClusterUnreachable, TopicMissing
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.options.topic_patterns import parse_pattern
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.topics import CLOSED_AT_UNKNOWN_TIME, TopicLedger, TopicSelection, TopicState
from magnetar.spark.values.api import SchemaDefinition
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

T = TypeVar("T")

logger: Final = logging.getLogger(__name__)

READERS_KEPT_MAX: Final = 10_000
"""Topics whose end is asked for without opening a reader anew; beyond, those that were asked longest ago are closed,
which for a table of still more topics is each of them each time. Each is some kilobytes here and in a broker."""

ASKED_AT_ONCE_MAX: Final = 64
"""Topics, so that a table of thousands does not keep brokers from serving others."""

SILENT_SECONDS: Final = 30.0
"""How long it is done without a topic's broker that has not answered: trying takes as long."""

SCHEMA_VERSIONS_MAX: Final = 1_000
"""The newest ones; older ones are asked for when a message needs them."""

NO_OPTIONS: Final = ConnectionOptions(service_url="")


class BrokerCatalog:
    """A `TopicCatalog`. The client and the admin API are the caller's and stay open.

    For each topic it keeps a reader without permits, which has no subscription that stays and makes no topic; as long
    as it is open, brokers refuse to delete the topic without force."""

    def __init__(self, options: ConnectionOptions, client: PulsarClient, admin: AdminApi | None = None) -> None:
        """Without `admin` nobody tells ledgers."""
        self._options = options
        self._client = client
        self._admin = admin
        self._readers: dict[str, _EndReader] = {}
        """Those that were asked longest ago first."""
        self._ends: dict[str, MessagePosition] = {}
        """The furthest end seen, of topics that have readers."""
        self._closed_ms: dict[str, dict[int, int]] = {}
        """For each topic, when its ledgers were closed: that never changes."""
        self._silent_until: dict[str, float] = {}
        """Topics that no broker has answered for."""
        self._places = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def topics(self, selection: TopicSelection) -> list[str]:
        """Complete names of the selected topics and partitions that brokers tell of, sorted. Raises
        `ClusterUnreachable` and `AccessRefused`."""
        if selection.pattern:
            return await self._matching(selection.pattern)
        found = await bounded_gather(self._places, selection.names, self._partitions)
        return sorted({name for names in found for name in names})

    async def states(self, topics: Sequence[str]) -> dict[str, TopicState]:
        """Each topic as it is now, some at a time; those that are no more are left out. Without the admin API
        `ledgers_known` is False. Raises `ClusterUnreachable` and `AccessRefused`."""
        found = await bounded_gather(self._places, topics, self._state)
        return {state.topic: state for state in found if state is not None}

    async def ends(self, topics: Sequence[str]) -> dict[str, MessagePosition]:
        """Right behind the last message of each that a consumer may get; `BEGINNING` where there is none and never was
        one as far as this catalog knows. Topics that are no more are left out, and so are those that no broker answers
        for; they are not asked about again for a while."""
        now = asyncio.get_running_loop().time
        give_up_seconds = now() + self._options.operation_timeout_seconds
        self._silent_until = {topic: until for topic, until in self._silent_until.items() if until > now()}
        failures: list[ClusterUnreachable] = []

        async def one(topic: str) -> MessagePosition | None:
            if topic in self._silent_until or (failures and now() > give_up_seconds):
                return None
            try:
                return await self._end(topic)
            except ClusterUnreachable as error:
                failures.append(error)
                self._silent_until[topic] = now() + SILENT_SECONDS
                return None

        found = await bounded_gather(self._places, topics, one)
        if failures:
            logger.warning("no broker says how far %d topics go: %s", len(failures), failures[0])
        return {topic: end for topic, end in zip(topics, found, strict=True) if end is not None}

    async def ledger_ids(self, topic: str) -> frozenset[int] | None:
        """Ledgers that the topic has now; None: only the admin API knows, and there is none or it may not be asked."""
        if self._admin is None:
            return None
        try:
            stats = await self._admin.internal_stats(TopicName.parse(topic))
        except AccessRefused:
            return None
        return frozenset(int(each["ledgerId"]) for each in stats.get("ledgers", ()))

    async def trimmed_entries(self, topic: str, subscription: str = "") -> dict[int, int]:
        """How many entries ledgers had that the topic has no more, of those of which that is certain: the ledger that
        the topic's last entry was in, while nothing came since; and the one that a durable subscription has come to:
        brokers trim no ledger before all of it is acknowledged. Only the admin API knows; nothing without it.

        Ask after the topic's ledgers were asked for: what is trimmed later is no concern of those."""
        return trimmed_entries(await self._stats_if_told(topic), subscription)

    async def compaction(self, topic: str) -> CompactedLedger | None:
        """The topic's newest compaction, as its broker has it in memory. Only the admin API knows; None without it."""
        found = compaction_in_stats(await self._stats_if_told(topic))
        return None if found is None else found[0]

    async def _stats_if_told(self, topic: str) -> dict[str, Any]:
        """Internal stats; empty where there is no admin API, it may not be asked, or the topic has just gone."""
        if self._admin is None:
            return {}
        try:
            return await self._admin.internal_stats(TopicName.parse(topic))
        except (AccessRefused, TopicMissing):
            return {}

    async def close(self) -> None:
        """Close the readers that ask for ends. The client and the admin API are the caller's and stay open."""
        readers, self._readers = list(self._readers.values()), {}
        await asyncio.gather(*(reader.close() for reader in readers))

    # --- which topics

    async def _partitions(self, name: str) -> list[str]:
        topic = parse_topic(name)
        count = await self._ask_or_missing(
            lambda: self._client.lookup.partitions_of(topic, create=False), f"looking for the partitions of {topic}"
        )
        if count is None:
            return []
        if count:
            return [str(topic.partition(index)) for index in range(count)]
        # Older brokers answer 0 for what is not there as well.
        return [str(topic)] if await self._end(str(topic)) is not None else []

    async def _matching(self, text: str) -> list[str]:
        pattern = parse_pattern(text)
        what = f"listing the topics of namespace {pattern.namespace}"
        names = await patiently(lambda: self._client.lookup.topics_of(pattern.namespace), what, self._options)
        return sorted(str(name) for name in names if pattern.means(name))

    # --- one topic

    async def _state(self, topic: str) -> TopicState | None:
        end = await self._end(topic)
        if end is None:
            return None
        # After the end, so that every message before the end is in a ledger of the list.
        try:
            ledgers = await self._ledgers(topic)
        except TopicMissing:
            return None
        if ledgers is None:
            return TopicState(topic=topic, ledgers=_ledger_of_end(end), end=end, ledgers_known=False)
        if end == BEGINNING and ledgers:
            end = MessagePosition(ledgers[0].ledger_id, 0)
        return TopicState(topic=topic, ledgers=tuple(ledgers), end=end)

    async def _ledgers(self, topic: str) -> list[TopicLedger] | None:
        if self._admin is None:
            return None
        name = TopicName.parse(topic)
        try:
            stats = await self._admin.internal_stats(name)
        except AccessRefused as error:
            logger.warning("tasks are not cut by size: %s", error)
            return None
        known = self._closed_ms.get(topic, {})
        listed = [int(each["ledgerId"]) for each in stats.get("ledgers", ())]
        if any(ledger_id not in known for ledger_id in listed[:-1]):
            known = await self._closing_times(name)
            known.update((ledger_id, CLOSED_AT_UNKNOWN_TIME) for ledger_id in listed[:-1] if ledger_id not in known)
        self._closed_ms[topic] = {ledger_id: known[ledger_id] for ledger_id in listed[:-1]}
        return ledgers_of(stats, known)

    async def _closing_times(self, name: TopicName) -> dict[int, int]:
        assert self._admin is not None
        try:
            info = await self._admin.internal_info(name)
        except AccessRefused as error:
            logger.info("it is not known when ledgers of %s were closed: %s", name, error)
            return {}
        times = {int(each["ledgerId"]): int(each.get("timestamp") or 0) for each in info.get("ledgers", ())}
        return {ledger_id: time_ms for ledger_id, time_ms in times.items() if time_ms > 0}

    async def _end(self, topic: str) -> MessagePosition | None:
        what = f"looking for the end of {topic}"
        last = await self._ask_or_missing(partial(self._last, topic), what)
        if last is None:
            self._ends.pop(topic, None)
            return None
        end = BEGINNING if last.entry_id < 0 else MessagePosition(last.ledger_id, last.entry_id + 1)
        # Retention may have taken everything away: what was the end once stays behind all that is still to come.
        end = max(end, self._ends.get(topic, BEGINNING))
        if topic in self._readers:
            self._ends[topic] = end
        return end

    async def _last(self, topic: str) -> MessageId:
        reader = self._readers.pop(topic, None)
        if reader is not None and reader.failure is not None:
            await reader.close()
            reader = None
        if reader is None:
            reader = await self._client.attach(partial(_EndReader, topic=TopicName.parse(topic)))
        try:
            return await reader.last_message_id()
        finally:
            await self._keep(topic, reader)

    async def _keep(self, topic: str, reader: _EndReader) -> None:
        spare = self._readers.pop(topic, None)
        self._readers[topic] = reader
        if spare is None and len(self._readers) > READERS_KEPT_MAX:
            longest_ago = next(iter(self._readers))
            spare = self._readers.pop(longest_ago)
            self._ends.pop(longest_ago, None)
        if spare is not None:
            await spare.close()

    async def _ask_or_missing(self, call: Callable[[], Awaitable[T]], what: str) -> T | None:
        try:
            return await patiently(call, what, self._options)
        except TopicMissing:
            return None


class _EndReader(Receiver):
    """Holds on to a topic to ask for its last message, and gets none: it gives no permits."""

    def __init__(self, parts: ClientParts, topic: TopicName) -> None:
        super().__init__(parts, topic)
        self._subscription = f"reader-{parts.rng.getrandbits(40):010x}"

    def _subscribe_request(self) -> requests.SubscribeRequest:
        return requests.SubscribeRequest(
            topic=str(self.topic),
            subscription=self._subscription,
            durable=False,
            start_message_id=LATEST_ID.to_wire(),
            create_topic=False,
        )

    def _has_attached(self, connection: BrokerConnection) -> None:
        """Give no permits: no message is wanted."""

    def _wanted(self, messages: list[Message]) -> list[Message]:
        return messages


def parse_topic(name: str) -> TopicName:
    """The topic of a complete name. `BadOption`."""
    try:
        return TopicName.parse(name)
    except InvalidTopicName as error:
        raise BadOption(f"{name!r} is no topic's name: {error}") from None


def ledgers_of(stats: dict[str, Any], closed_ms: dict[int, int]) -> list[TopicLedger]:
    """The ledgers of `internalStats`, which shows the one in use without entries; `closed_ms` has all others' times."""
    listed = stats.get("ledgers", ())
    last_ledger, _, last_entry = str(stats.get("lastConfirmedEntry", "-1:-1")).partition(":")
    found: list[TopicLedger] = []
    for index, each in enumerate(listed):
        ledger_id = int(each["ledgerId"])
        entries, size_bytes = max(int(each.get("entries", 0)), 0), max(int(each.get("size", 0)), 0)
        in_use = index == len(listed) - 1
        if in_use:
            if ledger_id == int(last_ledger):
                entries = max(entries, int(last_entry) + 1)
            size_bytes = max(size_bytes, int(stats.get("currentLedgerSize", 0)))
        found.append(
            TopicLedger(
                ledger_id=ledger_id,
                entries=entries,
                size_bytes=size_bytes,
                closed_ms=0 if in_use else closed_ms.get(ledger_id, CLOSED_AT_UNKNOWN_TIME),
                offloaded=bool(each.get("offloaded", False)),
            )
        )
    return found


def trimmed_entries(stats: dict[str, Any], subscription: str) -> dict[int, int]:
    """By ledger that the topic has no more, how many entries it had, where the last confirmed entry or the cursor of
    `subscription` still tells that. `stats`: the admin API's internal stats."""
    cursors = stats.get("cursors", {})
    # Apache's brokers show names encoded.
    named = {subscription, java_url_encode(subscription)} & set(cursors)
    places = [stats.get("lastConfirmedEntry"), *(cursors[name].get("markDeletePosition") for name in named)]
    listed = {int(each["ledgerId"]) for each in stats.get("ledgers", ())}
    found: dict[int, int] = {}
    for place in places:
        ledger_id, _, entry_id = str(place or "-1:-1").partition(":")
        if int(ledger_id) >= 0 and int(ledger_id) not in listed:
            found[int(ledger_id)] = max(int(entry_id) + 1, found.get(int(ledger_id), 0))
    return found


def _ledger_of_end(end: MessagePosition) -> tuple[TopicLedger, ...]:
    if end == BEGINNING:
        return ()
    return (TopicLedger(ledger_id=end.ledger_id, entries=end.entry_id, size_bytes=0),)


async def schema_definitions(
    client: PulsarClient,
    topic: TopicName,
    options: ConnectionOptions = NO_OPTIONS,
    *,
    versions_max: int = SCHEMA_VERSIONS_MAX,
) -> list[SchemaDefinition]:
    """The newest versions of a topic's schema, the newest last; none when it has no schema. Of the options its patience
    is taken, and what texts name.

    Raises `ClusterUnreachable` or `AccessRefused`."""
    name = topic.partitioned_name()
    newest = await _schema(client, name, None, options)
    if newest is None:
        return []

    def older_one(number: int) -> Awaitable[SchemaDefinition | None]:
        return _schema(client, name, number.to_bytes(8, "big"), options)

    number = int.from_bytes(newest.version[:8], "big") if len(newest.version) >= 8 else 0
    numbers = range(max(0, number - versions_max + 1), number)
    older = await bounded_gather(asyncio.Semaphore(ASKED_AT_ONCE_MAX), numbers, older_one)
    return [*(each for each in older if each is not None), newest]


async def definition_of_version(
    client: PulsarClient, topic: TopicName, version: bytes, options: ConnectionOptions = NO_OPTIONS
) -> SchemaDefinition | None:
    """One version; None: there is no such. Raises as `schema_definitions`."""
    return await _schema(client, topic.partitioned_name(), version, options)


async def _schema(
    client: PulsarClient, name: TopicName, version: bytes | None, options: ConnectionOptions
) -> SchemaDefinition | None:
    what = f"looking for the schema of {name}"

    async def ask() -> tuple[Schema, bytes] | None:
        try:
            return await client.lookup.versioned_schema_of(name, version)
        except PulsarError as error:
            if is_missing(error):
                return None
            raise

    found = await patiently(ask, what, options)
    if found is None:
        return None
    schema, registered = found
    return SchemaDefinition.registered(schema, registered or version or b"")

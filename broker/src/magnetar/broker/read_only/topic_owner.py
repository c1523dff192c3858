"""The broker that writes a topic, as a broker that only reads knows it: asked by the binary protocol and the admin API,
so that any Pulsar broker will do.

Where a subscription stands when it is taken comes from two answers. Its mark is in GET_LAST_MESSAGE_ID's
`consumer_mark_delete_position` (`ServerCnx.handleGetLastMessageId`: the cursor's mark-delete position; of a
subscription that was just made, the entry before the one that it begins with). What is acknowledged beyond the mark
only internalStats tells. Apache's tells all of it, ours up to 10 000 stretches of a subscription: what is left out
comes again. Parts of batches nobody tells: these batches come again as a whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from magnetar.admin_client.client import AdminAnswer
from magnetar.broker.peers.large_json import decoded_in_turns
from magnetar.broker.read_only.keep_settings import KeepSettings, RoundTimes
from magnetar.broker.read_only.kept_position import KeepingParts, KeptPosition, Taken
from magnetar.broker.read_only.one_request import OneRequest
from magnetar.broker.read_only.position_text import BadPositionText, stretches_of
from magnetar.broker.session.acknowledge import HOLD_KEY
from magnetar.broker.session.end_notices import END_NOTICES_KEY
from magnetar.broker.topics.partitioned_topics import admin_path
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ClientConsumer, ConsumerOptions
from magnetar.client.errors import TimedOut
from magnetar.client.hold import HeldSubscription, SubscriptionHold
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, PeerError, Unavailable
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.topic_name import TopicName, java_url_encode
from magnetar.managed.cursors.internal_properties import without_internal
from magnetar.managed.info_codec import BrokenMetadata, decode_cursor_info
from magnetar.managed.paths import cursor_path
from magnetar.metadata.store import MetadataStore
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

Stretches: TypeAlias = list[tuple[Position, Position]]


class OwnerAdmin(Protocol):
    """The admin API of the brokers that write; follows redirects to a topic's owner."""

    async def call(self, method: str, path: str, *, body: object = None) -> AdminAnswer:
        """`AdminRefused`, `AdminUnreachable`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerParts:
    """What a broker lends to all its `RemoteTopicOwner`s."""

    client: Callable[[], PulsarClient]
    """Of the brokers that write."""
    admin: OwnerAdmin
    store: MetadataStore
    """Of the cluster; read only."""
    clock: Clock
    broker_id: str
    """Of this broker: what consumers at the owner are called by."""
    asker: str = "read-only broker"
    """What comes before it in their names."""
    asks_for: str = ""
    """What comes behind it, where several topics of this broker ask about the same one: each has a subscription of its
    own, which it alone consumes."""
    settings: KeepSettings = field(default_factory=KeepSettings)


class RemoteTopicOwner:
    """Implements `magnetar.managed.following.api.TopicOwner` for one topic."""

    def __init__(
        self,
        topic: TopicName,
        parts: OwnerParts,
        on_lost: Callable[[str, MagnetarError], None],
        schema_of: Callable[[str], Schema | None] = lambda subscription: None,
    ) -> None:
        """`on_lost` is told the subscription that is not held any more, and why. `schema_of`: what a subscription's
        consumers read by, where the owner is to check it."""
        self._topic = topic
        self._parts = parts
        self._on_lost = on_lost
        self._schema_of = schema_of
        self._last = OneRequest(f"the last message of {topic}", self._ask_last)
        self._stats = OneRequest(f"internalStats of {topic}", self._ask_stats)
        self._asker: ClientConsumer | None = None
        self._heard: Callable[[Position | None], None] | None = None
        """Who is told of the end without asking."""
        self._told: Position = (-1, -1)
        """The last answer."""
        self._ends_asked = 0
        self._kept: dict[str, KeptPosition] = {}
        self._rounds = RoundTimes(parts.settings)
        self._closed = False

    async def last_confirmed(self) -> Position:
        """The last entry that the owner has confirmed, asked for after this call began; its entry id is -1 when there
        is none.

        It may be less than that, and is not when it was asked twice: an owner that gives no notices tells of the last
        message first, without markers and what open transactions hold.

        Raises `PulsarError`, or `Unavailable` within `patience_seconds`."""
        return await self._patiently(self._last.answer(), "says nothing of its last message")

    def listen(self, heard: Callable[[Position | None], None]) -> None:
        """Have somebody told of the end, as an owner of ours does by itself: other brokers are asked."""
        self._heard = heard

    @property
    def has_notices(self) -> bool:
        """Whether the owner gives them now."""
        return self._asker is not None and self._asker.has_notices

    async def keep(self, subscription: str, start: Position, properties: Mapping[str, str]) -> KeptPosition:
        """Hold a durable subscription at the owner; one that is not there is made, to begin at EARLIEST or LATEST.

        Raises `PulsarError` when the owner refuses (CONSUMER_BUSY: somebody else consumes it), another `PeerError`
        when an answer makes no sense, else `Unavailable`."""
        if self._closed or subscription in self._kept:
            raise Unavailable(f"{self._topic}: {subscription} is held, or its owner was let go of")
        kept = self._kept[subscription] = KeptPosition(self._keeping(subscription))
        try:
            await self._patiently(self._take(kept, subscription, start, properties), f"does not let {subscription} be")
        except BaseException:
            await asyncio.shield(kept.abandon())
            raise
        return kept

    async def cursor(self, name: str) -> dict[str, Any] | None:
        """A cursor as the owner's internalStats tells of it; None: there is none. Raises as `keep`."""
        cursors = await self._patiently(self._stats.answer(), "does not tell of its cursors")
        document = cursors.get(name)
        return document if isinstance(document, dict) else None

    async def close(self) -> None:
        """Let go; what is still held is given up without being told."""
        self._closed = True
        await self._last.close()
        await self._stats.close()
        await asyncio.gather(*(kept.abandon() for kept in list(self._kept.values())))
        asker, self._asker = self._asker, None
        if asker is not None:
            await asker.close()

    # --- taking a subscription

    def _keeping(self, subscription: str) -> KeepingParts:
        return KeepingParts(
            name=f"{self._topic} {subscription}",
            settings=self._parts.settings,
            clock=self._parts.clock,
            wait_seconds=self._wait_seconds,
            on_lost=lambda error: self._on_lost(subscription, error),
            on_closed=lambda: self._forget(subscription),
            write_properties=lambda properties: self._write_properties(subscription, properties),
        )

    async def _take(
        self, kept: KeptPosition, subscription: str, start: Position, properties: Mapping[str, str]
    ) -> None:
        path = cursor_path(self._topic.persistence_name, subscription)
        store = self._parts.store
        node = await store.get(path, watch=False)
        held = HeldSubscription(
            options=ConsumerOptions(
                subscription=subscription,
                name=f"{self._parts.asker} {self._parts.broker_id}",
                from_earliest=start == EARLIEST,
                create_topic=False,
                receives=False,
                schema=self._schema_of(subscription),
                properties=properties,
                metadata={HOLD_KEY: self._parts.broker_id},
            ),
            keeper=kept,
            is_there=lambda: store.exists(path, watch=False),
        )
        hold = await self._parts.client().attach(lambda parts: SubscriptionHold(parts, self._topic, held))
        taken = Taken(mark_delete=(-1, -1), acknowledged=(), cursor_properties=dict(properties))
        kept.begin(hold, taken)
        mark = await hold.mark_delete()
        if mark[0] < 0:
            raise PeerError(f"{self._topic}: its owner does not say where {subscription} stands")
        acknowledged: Stretches = []
        if node is not None:
            try:
                info = decode_cursor_info(node.value)
            except BrokenMetadata as error:
                raise PeerError(f"{self._topic}: the node of {subscription} is damaged: {error}") from error
            properties = without_internal({pair.name: pair.value for pair in info.cursorProperties})
            acknowledged = _stretches(await self._stats.answer(), self._topic, subscription)
        kept.begin(hold, Taken(mark_delete=mark, acknowledged=acknowledged, cursor_properties=dict(properties)))

    async def _ask_stats(self) -> Any:
        """The cursors of the topic. One answer serves all whose hold stood before it was asked for: from then on
        nobody else moves them."""
        answer = await self._parts.admin.call("GET", f"{admin_path(self._topic)}/internalStats")
        try:
            document = await decoded_in_turns(answer.body)
        except ValueError as error:
            raise PeerError(f"{self._topic}: internalStats is no JSON: {error}") from error
        cursors = document.get("cursors") if isinstance(document, dict) else None
        if not isinstance(cursors, dict):
            raise PeerError(f"{self._topic}: internalStats has no cursors")
        return cursors

    async def _write_properties(self, subscription: str, properties: dict[str, str]) -> None:
        name = java_url_encode(subscription)
        if "%" in subscription:
            name = java_url_encode(name)  # Brokers decode it twice (`PersistentTopicsBase.decode`).
        path = f"{admin_path(self._topic)}/subscription/{name}/properties"
        await self._parts.admin.call("PUT", path, body=properties)

    def _wait_seconds(self, began_seconds: float) -> float:
        now_seconds = self._parts.clock.monotonic_seconds()
        return self._rounds.wait_seconds(began_seconds, now_seconds, len(self._kept))

    def _forget(self, subscription: str) -> None:
        self._kept.pop(subscription, None)

    # --- the last message

    async def _ask_last(self) -> Position:
        asker = self._asker
        if asker is None or asker.failure is not None:
            asker = self._asker = await self._new_asker("", self._heard)
        position: Position = (await asker.last_message_id()).position
        if position <= self._told and not asker.has_notices:
            # Nothing new among messages: what was seen may be a marker, such as a transaction's end, which is none.
            position = max(position, await self._ask_end())
        self._told = max(position, self._told)
        return position

    async def _ask_end(self) -> Position:
        """A subscription that begins at the end, whatever the last entry is, has its mark there."""
        self._ends_asked += 1
        asker = await self._new_asker(f"-{self._ends_asked}")
        try:
            return await asker.mark_delete()
        finally:
            await asker.close()

    async def _new_asker(self, number: str, on_end: Callable[[Position | None], None] | None = None) -> ClientConsumer:
        """It begins at the end and asks for no messages: it is there to ask where that is, or to be told."""
        parts = self._parts
        options = ConsumerOptions(
            subscription=f"{parts.asker.replace(' ', '-')}-{parts.broker_id}{parts.asks_for}{number}",
            name=f"{parts.asker} {parts.broker_id}",
            create_topic=False,
            receives=False,
            durable=False,
            metadata={} if on_end is None else {END_NOTICES_KEY: parts.broker_id},
            on_end=on_end,
        )
        return await parts.client().consumer(self._topic, options)

    async def _patiently(self, waiting: Awaitable[T], failing: str) -> T:
        patience = self._parts.settings.patience_seconds
        try:
            async with asyncio.timeout(patience):
                return await waiting
        except TimeoutError:
            raise TimedOut(f"{self._topic}: its owner {failing} within {patience:g} s") from None


def _stretches(cursors: dict[str, Any], topic: TopicName, subscription: str) -> Stretches:
    document = cursors.get(subscription)
    text = document.get("individuallyDeletedMessages") if isinstance(document, dict) else None
    if not isinstance(text, str):
        raise PeerError(f"{topic}: internalStats does not tell of {subscription}")
    try:
        return stretches_of(text)
    except BadPositionText as error:
        raise BadPositionText(f"{topic}: {subscription}: {error}") from error

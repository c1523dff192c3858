"""Lets bundles go and splits them, without leaving a topic behind (Pulsar `OwnedBundle`, `splitAndOwnBundle`).

Unloading: nothing more is loaded; the topics are closed side by side, positions persisted; the node is removed; and
only then are clients told, so that the first thing they try works. With a destination that broker is made to take the
bundle first, by an authoritative lookup, which Apache's brokers understand too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from magnetar.admin_client.errors import AdminRefused, AdminUnreachable
from magnetar.broker.bundles.close_notices import CloseNotices
from magnetar.broker.bundles.guests import BundleGuests
from magnetar.broker.bundles.loaded_topic import LoadedTopic
from magnetar.broker.bundles.namespace_bundles import Bundles, CutUnknown
from magnetar.broker.bundles.owned_bundles import OwnedBundle
from magnetar.broker.bundles.ownership import BundleOwnership, OwnershipLost
from magnetar.broker.bundles.placement import LoadManager
from magnetar.broker.bundles.statistics import BundleStats, add_topic
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.peers.peer_client import PeerClient
from magnetar.broker.states import BundleState
from magnetar.core.bundle import BundleName
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, PeerError
from magnetar.core.hashing import bundle_hash
from magnetar.core.topic_name import TopicName, java_url_encode
from magnetar.metadata.coordination import RETRY_DELAY_SECONDS
from magnetar.metadata.store import StoreClosed

if TYPE_CHECKING:
    from magnetar.balance.settings import BalanceSettings
    from magnetar.balance.split_algorithms import TopicLoad

Result = TypeVar("Result")

logger: Final = logging.getLogger(__name__)

TOPICS_CLOSED_AT_ONCE_MAX: Final = 32
"""Enough to hide the store's and the bookies' round trips, few enough for one turn of the event loop: each has about a
millisecond of work."""

TAKE_OVER_SECONDS_MAX: Final = 5.0
"""How long clients are held back while the destination takes the bundle; then they look it up by themselves."""

PRELOADED_MAX: Final = 200
"""Topics with clients that the destination is told to load before these come."""

PRELOAD_SECONDS_MAX: Final = 0.1
"""How long clients are held back for that: about what a load takes."""

BUNDLES_AT_ONCE_MAX: Final = 32
"""Bundles that a stopping broker unloads side by side."""

PROBES_MAX: Final = 100_000
"""Names that are tried to find one whose hash is in an empty bundle; enough for the smallest of some thousand."""


class BundleNotOwned(MagnetarError):
    """Only the owner of a bundle can unload or split it."""


class UnknownDestination(PeerError):
    """There is no such broker."""


class TopicService(Protocol):
    """Who loads topics and closes them: `BrokerService`."""

    @property
    def ownership(self) -> BundleOwnership: ...
    @property
    def clock(self) -> Clock: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def wait_for_at_close(self, task: asyncio.Task[None]) -> None: ...
    async def close_topic(self, topic: LoadedTopic, close_notices: CloseNotices | None = None) -> None: ...
    async def abandon(self, topics: Iterable[LoadedTopic]) -> None: ...


class BundleMoves:
    """Unloads, transfers and splits of this broker's bundles."""

    def __init__(
        self,
        service: TopicService,
        bundles: Bundles,
        load: LoadManager,
        peers: PeerClient,
        balance: BalanceSettings | None = None,
    ) -> None:
        """`balance` tells how long unloads may take and how bundles are split; None: the defaults, loaded with the
        first move."""
        self._balance = balance
        self._service = service
        self._ownership: BundleOwnership = service.ownership
        self._bundles = bundles
        self._load = load
        self._peers = peers
        self._moving: dict[BundleName, asyncio.Task[None]] = {}
        self._splitting: dict[BundleName, asyncio.Task[tuple[BundleName, ...]]] = {}
        self.guests: BundleGuests | None = None
        """What is served with bundles beside topics."""
        self._ownership.on_doubt(self._let_go)

    async def unload(self, bundle: BundleName, *, destination: str | None = None) -> None:
        """Own a bundle no more. Returns when its clients were told where to go.

        `destination`: the id of the broker that is to have it. Asked for twice, it happens once. `BundleNotOwned`,
        `UnknownDestination`."""
        splitting = self._splitting.get(bundle)
        if splitting is not None:
            parts = await self._parts(bundle, splitting)
            # A split that has just ended is forgotten in the loop's next turn.
            await asyncio.sleep(0)
            for part in parts:
                await self.unload(part, destination=destination)
            return
        there = self._destination(destination)
        if bundle not in self._moving and there is not None:
            self._owned(bundle)
            if there is self._ownership.own:
                return
            await self._require_answer(there)
            if bundle in self._splitting:
                # Begun meanwhile: parts of what is being unloaded would be unloading for ever.
                await self.unload(bundle, destination=destination)
                return
        moving = self._moving.get(bundle)
        if moving is None:
            owned = self._owned(bundle)
            owned.become(BundleState.UNLOADING)
            moving = self._moving[bundle] = asyncio.get_running_loop().create_task(self._unload(owned, there))
            self._service.wait_for_at_close(moving)
            moving.add_done_callback(lambda task: _done(self._moving, bundle, task))
        await asyncio.shield(moving)

    def use_balance(self, settings: BalanceSettings) -> None:
        """Unloads and splits go by other settings from now on."""
        self._balance = settings

    def unloading(self, bundle: BundleName) -> bool:
        """Whether an unload is under way, which `unload` then waits for."""
        return bundle in self._moving

    async def split(
        self,
        bundle: BundleName,
        algorithm: str = "",
        *,
        boundaries: Sequence[int] | None = None,
        unload: bool = False,
    ) -> tuple[BundleName, ...]:
        """Cut a bundle in parts, which this broker goes on serving; its clients notice nothing. Returns the parts, or
        the bundle itself when there is nothing to cut.

        `algorithm`: one of Pulsar's by its name; empty is the one of the settings. `boundaries` are the positions of
        `specified_positions_divide`. With `unload` the parts are then let go of, in the background. `BundleNotOwned`,
        `BadSplit`, `VersionConflict`."""
        splitting = self._splitting.get(bundle)
        if splitting is None:
            owned = self._owned(bundle)
            splitting = asyncio.get_running_loop().create_task(self._split(owned, algorithm, boundaries or ()))
            self._splitting[bundle] = splitting
            splitting.add_done_callback(lambda task: _done(self._splitting, bundle, task))
        parts = await asyncio.shield(splitting)
        if unload and len(parts) > 1:
            for part in parts:
                self._service.spawn(self._unload_part(part))
        return parts

    async def unload_all(self, *, at_once: int = BUNDLES_AT_ONCE_MAX, per_second: float = 0.0) -> None:
        """Take no more bundles and let go of all, some side by side, as when the broker stops.

        `per_second` bounds how many begin in a second; 0: no bound. What fails is logged."""
        self._ownership.refuse_more()
        names = iter(list(self._ownership.owned()))
        pace = asyncio.Lock()

        async def work() -> None:
            while True:
                async with pace:
                    bundle = next(names, None)
                    if bundle is not None and per_second > 0:
                        await asyncio.sleep(1 / per_second)
                if bundle is None:
                    return
                try:
                    await self.unload(bundle)
                except MagnetarError as error:
                    logger.info("%s is not unloaded: %s", bundle, error)

        await asyncio.gather(*(work() for _ in range(at_once)))

    @property
    def _settings(self) -> BalanceSettings:
        if self._balance is None:
            from magnetar.balance.settings import BalanceSettings

            self._balance = BalanceSettings()
        return self._balance

    # --- unloading

    @staticmethod
    async def _parts(bundle: BundleName, splitting: asyncio.Task[tuple[BundleName, ...]]) -> tuple[BundleName, ...]:
        """What a bundle is split into; the whole when that fails, as whoever asked for the split hears."""
        try:
            return await asyncio.shield(splitting)
        except MagnetarError:
            return (bundle,)

    def _owned(self, bundle: BundleName) -> OwnedBundle:
        owned = self._ownership.owned().get(bundle)
        if owned is None:
            raise BundleNotOwned(f"Bundle {bundle} is not currently owned")
        if not owned.active:
            raise BundleNotOwned(f"Bundle {bundle} is being unloaded")
        return owned

    def _destination(self, broker_id: str | None) -> BrokerAddresses | None:
        if broker_id is None:
            return None
        if broker_id == self._ownership.own.broker_id:
            return self._ownership.own
        there = self._load.brokers().get(broker_id)
        if there is None:
            raise UnknownDestination(f"Broker {broker_id} is not active")
        return there

    async def _require_answer(self, broker: BrokerAddresses) -> None:
        """Before anything is closed, as a broker that was never asked by HTTP takes its time for the first answer."""
        try:
            await self._peers.call("GET", "/status.html", base_url=self._web_url_of(broker))
        except AdminRefused as error:
            # Apache's brokers have this page only when told to; an answer it is.
            logger.debug("%s answers %s", broker.broker_id, error)
        except AdminUnreachable as error:
            raise UnknownDestination(f"Broker {broker.broker_id} does not answer: {error}") from error

    def _web_url_of(self, broker: BrokerAddresses) -> str:
        url = self._peers.url_of(broker)
        if url is None:
            raise UnknownDestination(f"Broker {broker.broker_id} has no admin API that this one may use")
        return url

    async def _unload(self, owned: OwnedBundle, destination: BrokerAddresses | None) -> None:
        close_notices = CloseNotices()
        count = len(owned.topics)
        used = _names_in_use(owned)
        taken = False
        started_seconds = self._service.clock.monotonic_seconds()
        try:
            await self._close_guests(owned)
            await self._close_topics(owned, close_notices)
            await self._release(owned.name)
            seconds = self._service.clock.monotonic_seconds() - started_seconds
            logger.info("%s is unloaded with %d topics after %.0f ms", owned.name, count, seconds * 1000)
            taken = destination is not None and await self._have_taken(owned.name, destination, used)
        finally:
            close_notices.send(destination if taken else None)

    async def _close_topics(self, owned: OwnedBundle, close_notices: CloseNotices) -> None:
        if not owned.topics and not owned.loading:
            return
        disabling = asyncio.ensure_future(self._disable(owned.name))
        try:
            # What is not closed by then is left to the next owner's recovery.
            async with asyncio.timeout(self._settings.unloading_timeout_ms / 1000):
                if owned.loading:
                    # They see that the bundle is being unloaded, and leave no topic.
                    await asyncio.wait(list(owned.loading.values()))
                topics = iter(list(owned.topics.values()))
                workers = min(TOPICS_CLOSED_AT_ONCE_MAX, len(owned.topics))
                await asyncio.gather(*(self._close_some(topics, close_notices) for _ in range(workers)))
        except TimeoutError:
            logger.warning("%d topics of %s do not close in time, letting go of them", len(owned.topics), owned.name)
        await disabling
        await self._service.abandon(owned.topics.values())

    async def _close_guests(self, owned: OwnedBundle) -> None:
        if self.guests is None:
            return
        try:
            async with asyncio.timeout(self._settings.unloading_timeout_ms / 1000):
                await self.guests.close_in(owned)
        except (MagnetarError, TimeoutError) as error:
            logger.warning("what %s has beside topics is not closed, its next owner recovers it: %r", owned.name, error)

    async def _close_some(self, topics: Iterator[LoadedTopic], close_notices: CloseNotices) -> None:
        for topic in topics:
            try:
                await self._service.close_topic(topic, close_notices)
            except MagnetarError as error:
                logger.warning("closing %s failed, its next owner recovers it: %s", topic.name, error)
            except Exception:
                # The others, and the bundle, are let go of all the same.
                logger.exception("closing %s failed, its next owner recovers it", topic.name)
            # Closing what has no clients and nothing to write never waits.
            await asyncio.sleep(0)

    async def _disable(self, bundle: BundleName) -> None:
        try:
            await self._ownership.disable(bundle)
        except MagnetarError as error:
            logger.info("%s is not marked as unloading: %s", bundle, error)

    async def _release(self, bundle: BundleName) -> None:
        """Until the node is gone: it is ours as long as it stands, and nobody else could serve the bundle."""
        while True:
            try:
                await self._ownership.release(bundle)
                return
            except StoreClosed:
                return
            except MagnetarError as error:
                logger.warning("%s is not released: %s", bundle, error)
                if self._ownership.closing:
                    return  # The end of the session removes the node.
            await asyncio.sleep(RETRY_DELAY_SECONDS)

    async def _have_taken(self, bundle: BundleName, destination: BrokerAddresses, used: list[TopicName]) -> bool:
        """Make a broker take a bundle that nobody owns, and load the topics in use; whether it has it."""
        probe = used[0] if used else _name_within(bundle)
        if probe is None:
            return False
        try:
            async with asyncio.timeout(TAKE_OVER_SECONDS_MAX):
                found = await self._ask(probe, destination)
        except (MagnetarError, TimeoutError) as error:
            logger.warning("%s did not take %s: %r", destination.broker_id, bundle, error)
            return False
        if found != (destination.service_url or destination.service_url_tls):
            logger.warning("%s went to %s instead of %s", bundle, found, destination.broker_id)
            return False
        if used:
            loading = asyncio.ensure_future(self._preload(used, destination))
            self._service.wait_for_at_close(loading)
            await asyncio.wait([loading], timeout=PRELOAD_SECONDS_MAX)
        return True

    async def _preload(self, used: list[TopicName], destination: BrokerAddresses) -> None:
        asked = await asyncio.gather(
            *(self._ask(name, destination, load=True) for name in used), return_exceptions=True
        )
        failed = [result for result in asked if isinstance(result, BaseException)]
        if failed:
            logger.info("%s was not told of %d topics: %r", destination.broker_id, len(failed), failed[0])

    async def _ask(self, topic: TopicName, broker: BrokerAddresses, *, load: bool = False) -> str | None:
        """An authoritative lookup at a broker: where it says that the topic is. Ours loads the topic if told to."""
        answer = await self._peers.call(
            "GET",
            f"/lookup/v2/topic/{topic.domain}/{topic.namespace_name}/{java_url_encode(topic.local_name)}",
            query={"authoritative": "true", **({"load": "true"} if load else {})},
            base_url=self._web_url_of(broker),
        )
        document = answer.json()
        url: str | None = document.get("brokerUrl") or document.get("brokerUrlTls")
        return url

    # --- splitting

    async def _split(self, owned: OwnedBundle, algorithm: str, boundaries: Sequence[int]) -> tuple[BundleName, ...]:
        from magnetar.balance.split_algorithms import SplitRequest, split_boundaries

        bundle = owned.name
        request = SplitRequest(bundle=bundle.range, topics=list(_loads(owned)), positions=boundaries)
        cuts = split_boundaries(algorithm or self._settings.split.algorithm, request, self._settings.split)
        parts = bundle.cut(cuts)
        if len(parts) < 2:
            return (bundle,)
        tenure = owned.tenure
        try:
            await self._ownership.claim_parts(owned, parts)
            await self._bundles.split(bundle, list(cuts))
            await self._ownership.replace(owned, parts, tenure)
        except BaseException as error:
            if isinstance(error, CutUnknown):
                # Others may take the parts already, by a cut that we do not serve by.
                self._ownership.doubt(owned)
            await self._ownership.give_back(owned, parts)
            raise
        logger.info("%s is split into %s", bundle, ", ".join(str(part.range) for part in parts))
        return parts

    async def _unload_part(self, part: BundleName) -> None:
        try:
            await self.unload(part)
        except (BundleNotOwned, OwnershipLost) as error:
            logger.info("%s is not unloaded after the split: %s", part, error)

    # --- doubt

    def _let_go(self, doubtful: list[OwnedBundle]) -> asyncio.Future[None]:
        topics = [topic for owned in doubtful for topic in owned.topics.values()]
        if self.guests is None:
            return asyncio.ensure_future(self._service.abandon(topics))
        return asyncio.ensure_future(self._abandon(topics, self.guests.abandon_in(doubtful)))

    async def _abandon(self, topics: list[LoadedTopic], guests: Awaitable[None]) -> None:
        await asyncio.gather(self._service.abandon(topics), guests)


def _done(kept: dict[BundleName, asyncio.Task[Result]], bundle: BundleName, task: asyncio.Task[Result]) -> None:
    if kept.get(bundle) is task:
        del kept[bundle]
    if not task.cancelled():
        task.exception()  # Looked at: nobody may be left to wait for it.


def _names_in_use(owned: OwnedBundle) -> list[TopicName]:
    """Some topics of a bundle that have clients."""
    names: list[TopicName] = []
    for topic in owned.topics.values():
        if topic.producers.by_name or any(subscription.consumers for subscription in topic.subscriptions.values()):
            names.append(topic.name)
            if len(names) == PRELOADED_MAX:
                break
    return names


def _name_within(bundle: BundleName) -> TopicName | None:
    """A name that belongs to a bundle. No topic of this name comes to be by a lookup."""
    for number in range(PROBES_MAX):
        text = f"persistent://{bundle.namespace}/__probe-{number}"
        if bundle_hash(text) in bundle.range:
            return TopicName.parse(text)
    return None


def _loads(owned: OwnedBundle) -> Iterator[TopicLoad]:
    from magnetar.balance.split_algorithms import TopicLoad

    for topic in owned.topics.values():
        stats = BundleStats()
        add_topic(stats, topic)
        rate = stats.msg_rate_in + stats.msg_rate_out
        yield TopicLoad(topic.name.bundle_hash(), rate, stats.throughput_in + stats.throughput_out)

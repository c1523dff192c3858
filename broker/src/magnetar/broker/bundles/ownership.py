"""Which broker owns a bundle: an ephemeral node per bundle, made by whoever is first (Pulsar `OwnershipCache`).

A bundle is ours from the moment its node stands until its session is lost, its node vanishes or it is released.
Then its topics are let go without touching the store, before anybody may rely on our not serving them; another
owner fences what a broker would write that did not notice (managed ledgers recover and so close their predecessor's).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from magnetar.broker.bundles.lookup_answers import Connect
from magnetar.broker.bundles.namespace_bundles import BundleNotFound, Bundles, named_broker, namespace_of_cuts
from magnetar.broker.bundles.owned_bundles import OwnedBundle, OwnedBundles
from magnetar.broker.peers.addresses import BrokerAddresses, decode_owner, encode_owner
from magnetar.broker.states import BundleState
from magnetar.core.bundle import BundleName
from magnetar.core.clock import Clock
from magnetar.core.errors import Unavailable
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.coordination import RETRY_DELAY_SECONDS, claim
from magnetar.metadata.node_cache import NodeCache
from magnetar.metadata.store import (
    MetadataStore,
    Node,
    NodeChange,
    NodeNotFound,
    Notification,
    SessionEvent,
    StoreClosed,
    StoreUnavailable,
    VersionConflict,
)

logger: Final = logging.getLogger(__name__)

OWNERS_KEPT_MAX: Final = 20_000
"""Bundles whose owners are kept in memory, about 1 kB each; others are read again."""

SETTLED_AT_ONCE_MAX: Final = 64
"""Bundles in doubt that are claimed side by side after a session was lost."""

Doubt = Callable[[list[OwnedBundle]], asyncio.Future[None]]
"""Told at once of bundles in doubt; they are claimed again only when what is returned is done."""


class OwnershipLost(Unavailable):
    """What was just taken, or was thought to be ours, is not (any more): look it up again."""


class Owner:
    """Who owns a bundle."""

    __slots__ = ("addresses", "answer", "disabled", "ours")

    def __init__(self, addresses: BrokerAddresses, *, disabled: bool, ours: bool) -> None:
        self.addresses = addresses
        self.disabled = disabled
        """It is being unloaded (or in doubt): nobody may connect."""
        self.ours = ours
        self.answer = Connect(addresses, ours=ours)
        """What a lookup is told unless it is disabled; kept, for it knows its frames once it was asked for them."""


def ownership_path(bundle: BundleName) -> str:
    """Where the node of a bundle's owner stands."""
    return f"/namespace/{bundle}"


class BundleOwnership:
    """This broker's bundles, and who owns the others."""

    def __init__(self, store: MetadataStore, own: BrokerAddresses, bundles: Bundles, clock: Clock) -> None:
        self.own = own
        self._store = store
        self._bundles = bundles
        self._clock = clock
        self._value = encode_owner(own, disabled=False)
        self._disabled_value = encode_owner(own, disabled=True)
        self._ours = Owner(own, disabled=False, ours=True)
        self.here = self._ours.answer
        """What a lookup is told of an active bundle of this broker."""
        self._ours_disabled = Owner(own, disabled=True, ours=True)
        self._owned = OwnedBundles()
        self._by_path: dict[str, OwnedBundle] = {}
        self._owners: NodeCache[Owner] = NodeCache(store, self._decode, entries_max=OWNERS_KEPT_MAX)
        self._taking: dict[BundleName, asyncio.Task[Owner]] = {}
        self._being_cut: set[BundleName] = set()
        """From `claim_parts` to `replace` or `give_back`: the cut may be stored before the parts are ours."""
        self._doubts = 0
        """How often the session was lost: what was claimed before one is no proof after it."""
        self._closing = False
        self._settling: asyncio.Task[None] | None = None
        self._to_check: dict[OwnedBundle, None] = {}
        """Whose nodes are to be looked at; bounded by what is owned."""
        self._checking: asyncio.Task[None] | None = None
        self._to_remove: dict[BundleName, None] = {}
        """What is not served any more and whose nodes may stand, as the store was away; bounded by what was owned."""
        self._removing: asyncio.Task[None] | None = None
        self._letting_go: list[asyncio.Future[None]] = []
        self._on_doubt: Doubt = _nothing_to_let_go
        self._stops = [store.watch(self._take_notification), store.watch_session(self._take_session_event)]

    # --- what is ours

    def owned(self) -> Mapping[BundleName, OwnedBundle]:
        """The bundles of this broker in any state; a view that follows."""
        return self._owned.by_name

    def serving(self, topic: TopicName) -> OwnedBundle | None:
        """The owned bundle that a topic is in, in any state; asks nobody."""
        return self._owned.of_topic(topic)

    def on_doubt(self, let_go: Doubt) -> None:
        """Who lets the topics of bundles in doubt go."""
        self._on_doubt = let_go

    @property
    def closing(self) -> bool:
        """Whether nothing more will be acquired."""
        return self._closing

    # --- who owns what

    def peek(self, bundle: BundleName) -> Owner | None:
        """The owner, without asking the store; None when there is none or it has to be read.

        Who owns a bundle owns its parts, too, from the moment when the cut is stored."""
        owned = self._owned.containing(bundle)
        if owned is not None:
            return self._ours if owned.active else self._ours_disabled
        return self._owners.peek(ownership_path(bundle))

    async def owner(self, bundle: BundleName) -> Owner | None:
        """The owner; None when nobody owns the bundle. A node of ours that an earlier process left counts as none."""
        owner = self.peek(bundle)
        if owner is None:
            owner = await self._owners.get(ownership_path(bundle))
            if self._owned.containing(bundle) is not None:
                return self.peek(bundle)
        if owner is not None and owner.ours and self._owned.containing(bundle) is None:
            return None
        return owner

    async def left_behind(self, bundle: BundleName) -> bool:
        """Whether a node says that a bundle is ours which is not: an earlier process made it, or this one without
        hearing that it succeeded. All other brokers send clients here."""
        owner = await self._owners.get(ownership_path(bundle))
        return owner is not None and owner.ours and self._owned.containing(bundle) is None

    async def acquire(self, bundle: BundleName) -> Owner:
        """Take a bundle unless somebody has it; returns its owner.

        `BundleNotFound` when the namespace is cut in another way by now, `OwnershipLost` when the session was lost
        meanwhile, `StoreUnavailable`."""
        owned = self._owned.containing(bundle)
        if owned is not None:
            return self._ours if owned.active else self._ours_disabled
        self._refuse_when_closing()
        taking = self._taking.get(bundle)
        if taking is None:
            taking = self._taking[bundle] = asyncio.get_running_loop().create_task(self._take(bundle))
            taking.add_done_callback(lambda task: self._taken(bundle, task))
        return await asyncio.shield(taking)

    async def disable(self, bundle: BundleName) -> None:
        """Tell all brokers that a bundle of ours is being unloaded. Its state says so already."""
        path = ownership_path(bundle)
        node = await self._store.get(path)
        if node is not None and node.stat.owned_by_this_session:
            try:
                await self._store.put(path, self._disabled_value, node.stat.version)
            except VersionConflict as error:
                logger.info("%s is not marked as unloading: %s", bundle, error)

    async def release(self, bundle: BundleName) -> None:
        """Own a bundle no more. `StoreUnavailable`: it is still ours, try again."""
        owned = self._owned.get(bundle)
        if owned is None:
            return
        await self._remove_node(bundle)
        self._drop(owned)

    async def still_ours(self, owned: OwnedBundle) -> bool:
        """Ask the store; when not, the bundle is in doubt from now on."""
        node = await self._store.get(ownership_path(owned.name))
        if node is not None and node.stat.owned_by_this_session:
            return owned.state is not BundleState.IN_DOUBT
        self._doubt([owned])
        return False

    async def replace(self, owned: OwnedBundle, parts: tuple[BundleName, ...], tenure: object) -> None:
        """A bundle of ours was split: own the parts, whose nodes stand (`claim_parts`), then give up the whole.

        `OwnershipLost` unless the tenure is still that from before the parts were claimed: their nodes may be gone."""
        if self._owned.get(owned.name) is not owned or owned.tenure is not tenure:
            raise OwnershipLost(f"{owned.name} is not this broker's any more")
        self._being_cut.discard(owned.name)
        now_ms = self._clock.now_ms()
        successors = [OwnedBundle(part, now_ms, owned.tenure, owned.state) for part in parts]
        self._owned.replace(owned, successors)
        self._by_path.pop(ownership_path(owned.name), None)
        for successor in successors:
            self._by_path[ownership_path(successor.name)] = successor
        await self._remove_surely(owned.name)

    async def claim_parts(self, owned: OwnedBundle, parts: tuple[BundleName, ...]) -> None:
        """Make the nodes of the parts that a bundle of ours is about to be split into. `OwnershipLost` if one stands.

        They are served only after `replace`; `give_back`, which must follow any failure, removes them."""
        self._being_cut.add(owned.name)
        for part in parts:
            node = await claim(self._store, ownership_path(part), self._value, is_leftover=self._is_leftover)
            if not node.stat.owned_by_this_session:
                raise OwnershipLost(f"{part} has another owner already")

    async def give_back(self, owned: OwnedBundle, parts: tuple[BundleName, ...]) -> None:
        """A split did not come to its end: remove the nodes of parts that are not served.

        Whether the whole is still in the cut is looked at then: the cut may be stored all the same."""
        self._being_cut.discard(owned.name)
        self._check_later([owned])
        for part in parts:
            if part not in self._owned.by_name:
                await self._remove_surely(part)

    def refuse_more(self) -> None:
        """Acquire nothing from now on: the broker is about to stop."""
        self._closing = True

    async def close(self) -> None:
        """Listen no more; the nodes go with the session or with `release`."""
        self._closing = True
        for stop in self._stops:
            stop()
        self._owners.close()
        waiting: list[asyncio.Future[Any]] = [*self._taking.values(), *self._letting_go]
        for task in (self._settling, self._checking, self._removing):
            if task is not None:
                task.cancel()
                waiting.append(task)
        if waiting:
            await asyncio.wait(waiting)

    # --- taking

    async def _take(self, bundle: BundleName) -> Owner:
        doubts = self._doubts
        path = ownership_path(bundle)
        node = await claim(self._store, path, self._value, is_leftover=self._is_leftover)
        if not node.stat.owned_by_this_session:
            self._owners.forget(path)
            return self._decode(path, node)
        # From now on the end of the node is heard of.
        owned = self._by_path[path] = OwnedBundle(bundle, self._clock.now_ms(), object())
        try:
            await self._check_current(bundle)
            self._check_taken(owned, doubts)
        except BaseException:
            del self._by_path[path]
            await self._remove_surely(bundle)
            raise
        self._owned.add(owned)
        logger.info("owning %s", bundle)
        return self._ours

    async def _check_current(self, bundle: BundleName) -> None:
        """Whether the namespace is still cut so: whoever split it took the parts before giving up this one.

        A read after the claim sees that, whatever the cache held before it."""
        if named_broker(bundle.namespace) is not None:
            return
        current = await self._bundles.read_again(bundle.namespace)
        if bundle not in current or self._owned.overlapping(bundle):
            raise BundleNotFound(f"{bundle} is not a bundle of {bundle.namespace} any more")

    def _check_taken(self, owned: OwnedBundle, doubts: int) -> None:
        if self._doubts != doubts or not owned.active:
            raise OwnershipLost(f"{owned.name} was lost while it was taken")
        self._refuse_when_closing()

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise OwnershipLost("The broker is shutting down")

    def _taken(self, bundle: BundleName, task: asyncio.Task[Owner]) -> None:
        del self._taking[bundle]
        if not task.cancelled():
            task.exception()  # Looked at: nobody may be left to wait for it.

    def _is_leftover(self, value: bytes) -> bool:
        return value in (self._value, self._disabled_value)

    def _decode(self, path: str, node: Node) -> Owner:
        addresses, disabled = decode_owner(path, node.value)
        ours = node.stat.owned_by_this_session or self._is_leftover(node.value)
        return Owner(addresses, disabled=disabled, ours=ours)

    async def _remove_node(self, bundle: BundleName) -> None:
        path = ownership_path(bundle)
        try:
            node = await self._store.get(path)
            if node is not None and node.stat.owned_by_this_session:
                await self._store.delete(path, node.stat.version)
        except (NodeNotFound, VersionConflict) as error:
            logger.info("the node of %s was gone already: %s", bundle, error)

    async def _remove_surely(self, bundle: BundleName) -> None:
        """Later if the store is away now: nobody else removes the node of what is not served, while this session
        lasts."""
        try:
            await self._remove_node(bundle)
        except StoreUnavailable as error:
            logger.warning("the node of %s is not removed, trying again: %s", bundle, error)
            self._to_remove[bundle] = None
            if self._removing is None and not self._closing:
                self._removing = asyncio.get_running_loop().create_task(self._remove_all(), name="remove nodes left")

    async def _remove_all(self) -> None:
        try:
            while self._to_remove:
                await asyncio.sleep(RETRY_DELAY_SECONDS)
                for bundle in list(self._to_remove):
                    # Who takes it meanwhile has the node. Should it be removed all the same, that is heard of.
                    if bundle in self._owned.by_name or bundle in self._taking or await self._removed(bundle):
                        del self._to_remove[bundle]
        finally:
            self._removing = None

    async def _removed(self, bundle: BundleName) -> bool:
        """Whether its node is gone, or goes with the session."""
        try:
            await self._remove_node(bundle)
        except StoreUnavailable as error:
            return isinstance(error, StoreClosed)
        return True

    def _drop(self, owned: OwnedBundle) -> None:
        self._owned.remove(owned)
        path = ownership_path(owned.name)
        if self._by_path.get(path) is owned:
            del self._by_path[path]
        self._owners.forget(path)

    # --- doubt

    def _take_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._doubts += 1
            self._doubt(list(self._owned))
        elif event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            self._settle_later()
            # What happened to nodes meanwhile, nobody has told.
            self._check_later(list(self._owned))

    def _take_notification(self, notification: Notification) -> None:
        if notification.change is NodeChange.CHILDREN_CHANGED:
            return
        owned = self._by_path.get(notification.path)
        if owned is not None and notification.change is not NodeChange.CREATED:
            self._check_later([owned])
        namespace = namespace_of_cuts(notification.path)
        if namespace is not None:
            self._check_later(self._of_namespace(namespace))

    def _of_namespace(self, namespace: NamespaceName) -> list[OwnedBundle]:
        """Those being taken, too: what they read of the cut may be older than what is told now."""
        taking = (self._by_path.get(ownership_path(bundle)) for bundle in self._taking if bundle.namespace == namespace)
        return [*self._owned.of_namespace(namespace), *(owned for owned in taking if owned is not None)]

    def _check_later(self, bundles: list[OwnedBundle]) -> None:
        """Somebody may have removed the nodes, or nobody watches them any more. Reading them tells, and watches."""
        self._to_check.update((owned, None) for owned in bundles if owned.state is not BundleState.UNLOADING)
        if self._to_check and self._checking is None and not self._closing:
            self._checking = asyncio.get_running_loop().create_task(self._check_all(), name="check owned bundles")
            self._checking.add_done_callback(self._checked)

    def _checked(self, task: asyncio.Task[None]) -> None:
        self._checking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("owned bundles are not checked", exc_info=error)
        # What came after its last look.
        self._check_later([])

    async def _check_all(self) -> None:
        while some := list(itertools.islice(self._to_check, SETTLED_AT_ONCE_MAX)):
            for owned in some:
                del self._to_check[owned]
            results = await asyncio.gather(*(self._check(owned) for owned in some), return_exceptions=True)
            failed = [result for result in results if isinstance(result, BaseException)]
            if any(isinstance(error, StoreClosed) for error in failed):
                self._to_check.clear()
                return
            again = [owned for owned, result in zip(some, results, strict=True) if result is not True]
            if again:
                self._to_check.update(dict.fromkeys(again))
                if failed:
                    logger.warning("%d owned bundles are not checked, trying again: %r", len(failed), failed[0])
                await asyncio.sleep(RETRY_DELAY_SECONDS)

    async def _check(self, owned: OwnedBundle) -> bool:
        """False: not yet, it is being settled."""
        if self._by_path.get(ownership_path(owned.name)) is owned:
            if owned.state is BundleState.IN_DOUBT:
                return False
            if owned.active and await self.still_ours(owned):
                await self._check_cut(owned)
        return True

    async def _check_cut(self, owned: OwnedBundle) -> None:
        """Let go of a bundle that its namespace is not cut into any more.

        A former owner may have stored the cut after it lost the bundle: nothing ties that write to its ownership."""
        if named_broker(owned.name.namespace) is not None:
            return
        cut = await self._bundles.of_namespace(owned.name.namespace)
        current = self._by_path.get(ownership_path(owned.name)) is owned and owned.active
        if owned.name not in cut and current and owned.name not in self._being_cut:
            logger.warning("%s was split by a former owner", owned.name)
            self._doubt([owned])

    def doubt(self, owned: OwnedBundle) -> None:
        """A bundle may not be ours any more: let its topics go, then find out."""
        self._doubt([owned])

    def _doubt(self, bundles: list[OwnedBundle]) -> None:
        doubtful = [owned for owned in bundles if owned.state is not BundleState.IN_DOUBT]
        if not doubtful:
            return
        for owned in doubtful:
            owned.tenure = object()
            if owned.active:
                # What is being unloaded anyway is not claimed again.
                owned.become(BundleState.IN_DOUBT)
        logger.warning("%d bundles may have another owner now, letting their topics go", len(doubtful))
        done = self._on_doubt(doubtful)
        self._letting_go.append(done)
        done.add_done_callback(self._letting_go.remove)
        self._settle_later()

    def _settle_later(self) -> None:
        if self._settling is None and not self._closing and self._in_doubt():
            self._settling = asyncio.get_running_loop().create_task(self._settle_all(), name="settle bundles in doubt")
            self._settling.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("bundles in doubt are not settled", exc_info=error)
        self._settle_later()

    def _in_doubt(self) -> list[OwnedBundle]:
        return [owned for owned in self._owned if owned.state is BundleState.IN_DOUBT]

    async def _settle_all(self) -> None:
        while doubtful := self._in_doubt():
            if self._letting_go:
                await asyncio.wait(list(self._letting_go))
            some = doubtful[:SETTLED_AT_ONCE_MAX]
            results = await asyncio.gather(*(self._settle(owned) for owned in some), return_exceptions=True)
            failed = [result for result in results if isinstance(result, BaseException)]
            if any(isinstance(error, StoreClosed) for error in failed):
                return
            if failed:
                logger.warning("%d bundles are not settled, trying again: %r", len(failed), failed[0])
                await asyncio.sleep(RETRY_DELAY_SECONDS)

    async def _settle(self, owned: OwnedBundle) -> None:
        """Own it again if nobody was quicker."""
        doubts = self._doubts
        path = ownership_path(owned.name)
        node = await claim(self._store, path, self._value, is_leftover=self._is_leftover)
        if not node.stat.owned_by_this_session:
            logger.info("%s has another owner now", owned.name)
            self._drop(owned)
            return
        try:
            await self._check_still_cut(owned.name)
        except BundleNotFound:
            await self._remove_node(owned.name)
            self._drop(owned)
            return
        if self._doubts == doubts and owned.state is BundleState.IN_DOUBT:
            owned.become(BundleState.ACTIVE)

    async def _check_still_cut(self, bundle: BundleName) -> None:
        if named_broker(bundle.namespace) is None and bundle not in await self._bundles.read_again(bundle.namespace):
            raise BundleNotFound(f"{bundle} was split by another owner")


def _nothing_to_let_go(_: list[OwnedBundle]) -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done

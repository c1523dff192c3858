"""Mistakes in ownership: claims, doubt, unloads, transfers, splits and lookups."""

from __future__ import annotations

from typing import Any, Final

from magnetar.broker.bundles.close_notices import CloseNotices
from magnetar.broker.bundles.known_owners import KnownOwners
from magnetar.broker.bundles.lookup_answers import Connect
from magnetar.broker.bundles.moves import BundleMoves
from magnetar.broker.bundles.owned_bundles import OwnedBundle, OwnedBundles
from magnetar.broker.bundles.ownership import BundleOwnership
from magnetar.broker.states import BundleState
from magnetar.broker.topics.service import BrokerService
from magnetar.core.bundle import BundleName
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.managed.append_path import AppendPath
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.metadata.store import SessionEvent

from e2e.simulation.planting import Mistake, Patch, original


def owners_without_doubt() -> list[Patch]:
    """Who has lost its session, or its node, goes on as the owner."""
    return [(BundleOwnership, "_doubt", lambda self, bundles: None)]


def lost_sessions_are_not_heard() -> list[Patch]:
    """The end of the session tells an owner nothing."""
    right = original(BundleOwnership, "_take_session_event")

    def take_session_event(self: BundleOwnership, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTION_LOST:
            right(self, event)

    return [
        (BundleOwnership, "_take_session_event", take_session_event),
        (BundleOwnership, "_take_notification", lambda self, notification: None),
    ]


def doubt_without_letting_go() -> list[Patch]:
    """A bundle in doubt is claimed again, and its topics are served on meanwhile and afterwards."""
    return [(BundleMoves, "_let_go", lambda self, doubtful: _done())]


def _done() -> Any:
    import asyncio

    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


def loads_are_not_looked_at_again() -> list[Patch]:
    """A topic is served that was loaded while its bundle went away."""

    async def load(self: BrokerService, name: TopicName, tenure: object, *, create: bool) -> Any:
        del tenure
        topic = await self._open(name, create=create)
        self.topics[str(name)] = topic
        owned = self.ownership.serving(name)
        if owned is not None:
            owned.topics[str(name)] = topic
        return topic

    return [(BrokerService, "_load", load)]


def nodes_stay_after_an_unload() -> list[Patch]:
    """A bundle is let go of, and its node stays."""

    async def release(self: BundleOwnership, bundle: BundleName) -> None:
        owned = self._owned.get(bundle)
        if owned is not None:
            self._drop(owned)

    return [(BundleOwnership, "release", release)]


def nobody_is_told_of_an_unload() -> list[Patch]:
    """Clients of an unloaded topic hear nothing."""
    return [(CloseNotices, "send", lambda self, destination=None: None)]


def unloads_close_nothing() -> list[Patch]:
    """A bundle is given away with its topics open and served."""

    async def close_topics(self: BundleMoves, owned: OwnedBundle, notices: CloseNotices) -> None:
        del notices

    return [(BundleMoves, "_close_topics", close_topics)]


def split_leaves_topics_behind() -> list[Patch]:
    """The parts of a bundle know nothing of the topics that are loaded."""

    def replace(self: OwnedBundles, owned: OwnedBundle, parts: list[OwnedBundle]) -> None:
        self.remove(owned)
        for part in parts:
            self.add(part)

    return [(OwnedBundles, "replace", replace)]


def split_without_claims() -> list[Patch]:
    """The parts of a bundle have no nodes: others may take them."""

    async def claim_parts(self: BundleOwnership, owned: OwnedBundle, parts: tuple[BundleName, ...]) -> None:
        del owned, parts

    return [(BundleOwnership, "claim_parts", claim_parts)]


def answers_are_kept_for_ever() -> list[Patch]:
    """A lookup is answered as it was the first time."""
    right = original(KnownOwners, "find_now")
    kept: dict[tuple[int, str], Connect] = {}

    def find_now(self: KnownOwners, topic: TopicName) -> Connect | None:
        key = id(self), str(topic)
        found: Connect | None = kept.get(key) or right(self, topic)
        if found is not None:
            kept[key] = found
        return found

    return [(KnownOwners, "find_now", find_now)]


def fencing_is_not_noticed() -> list[Patch]:
    """Who is fenced by another owner goes on serving what it has, and confirms it."""

    right = original(AppendPath, "fail_pending")

    def fail_pending(self: AppendPath, error: MagnetarError) -> None:
        if not isinstance(error, ManagedLedgerFenced):
            right(self, error)
            return
        pending, self._pending = self._pending, None
        for batch in pending or ():
            ledger_id, entry_id = self.ledgers.last_position()
            batch.done(None, ledger_id, entry_id + 1, batch.context)

    return [(AppendPath, "fail_pending", fail_pending)]


def loads_while_it_unloads() -> list[Patch]:
    """Topics are loaded and served while their bundle is being unloaded."""
    return [(OwnedBundle, "active", property(lambda self: self.state is not BundleState.IN_DOUBT))]


OWNER_MISTAKES: Final[dict[str, Mistake]] = {
    "answers-are-kept-for-ever": answers_are_kept_for_ever,
    "doubt-without-letting-go": doubt_without_letting_go,
    "fencing-is-not-noticed": fencing_is_not_noticed,
    "loads-are-not-looked-at-again": loads_are_not_looked_at_again,
    "loads-while-it-unloads": loads_while_it_unloads,
    "lost-sessions-are-not-heard": lost_sessions_are_not_heard,
    "nobody-is-told-of-an-unload": nobody_is_told_of_an_unload,
    "nodes-stay-after-an-unload": nodes_stay_after_an_unload,
    "owners-without-doubt": owners_without_doubt,
    "split-leaves-topics-behind": split_leaves_topics_behind,
    "split-without-claims": split_without_claims,
    "unloads-close-nothing": unloads_close_nothing,
}

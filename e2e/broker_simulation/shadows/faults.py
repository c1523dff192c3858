"""What goes wrong with shadow topics, on top of what goes wrong in any cluster."""

from __future__ import annotations

from functools import partial
from typing import Final

from magnetar.broker.app import RunningBroker
from magnetar.core.bundle import BundleName
from magnetar.core.ids import EARLIEST
from magnetar.core.topic_name import TopicName

from e2e.broker_simulation.brokers import SimulatedBroker
from e2e.broker_simulation.faults import COORDINATORS_NAMESPACE, Faults
from e2e.broker_simulation.faults import NAMESPACE as SOURCES_NAMESPACE
from e2e.broker_simulation.history import History, Sought
from e2e.broker_simulation.shadows.cluster import ShadowCluster
from e2e.broker_simulation.shadows.parameters import NAMESPACE
from e2e.broker_simulation.shadows.rules import NOBODY

ASKED_SHARE: Final = 0.6
"""Of the shadows that are deleted, those whose source was asked before to tell them no more."""


class ShadowFaults(Faults):
    """Makes them happen, and undoes them at the end."""

    def __init__(self, cluster: ShadowCluster, history: History) -> None:
        super().__init__(cluster, history)
        self._shadowed = cluster
        self._sources = cluster.shadows.sources
        self._administrator = cluster.administrator
        self._made_anew: dict[str, list[Sought]] = {}
        """Shadows that were deleted and made again; when all is quiet they are there for sure."""

    def heal(self) -> None:
        """From here on nothing goes wrong; each source tells its shadows."""
        super().heal()
        for source, shadows in self._sources.items():
            for shadow in shadows:
                # Who was cut off from its answer may delete it late.
                self._administrator.make_shadow(source, shadow, partial(self._is_made, shadow))
            self._tell_all(source)
        if self._shadowed.shadows.trims:
            self._administrator.retain(everything=True)

    def _is_made(self, shadow: str) -> None:
        for sought in self._made_anew.pop(shadow, ()):
            sought.done_at = self._world.loop.time()

    # --- what administrators do

    def forget_shadows(self) -> None:
        """A source tells one of its shadows no more, or none, for a while, perhaps for no longer than a moment."""
        source, shadows = self._chance.choice(list(self._sources.items()))
        self._administrator.tell(source, self._chance.sample(shadows, self._chance.randint(0, len(shadows) - 1)))
        self._later(self._chance.choice((0.0, 0.002, self._duration())), lambda: self._tell_all(source))

    def recreate_shadow(self) -> None:
        """A shadow is deleted with its subscriptions, whoever uses it, and made again."""
        source, shadows = self._chance.choice(list(self._sources.items()))
        shadow = self._chance.choice(shadows)
        if self._chance.random() < ASKED_SHARE:
            self._administrator.tell(source, [each for each in shadows if each != shadow])
        # Whoever subscribes next begins with the first entry: as after a seek.
        sought = Sought(NOBODY, self._world.loop.time(), EARLIEST)
        self._made_anew.setdefault(shadow, []).append(sought)
        for subscription in self._history.of_topic(shadow):
            subscription.events.append(sought)
        self._administrator.delete_shadow(shadow)
        self._administrator.make_shadow(source, shadow)
        self._tell_all(source)

    def trim_sources(self) -> None:
        """For a while sources keep nothing that their own subscriptions have acknowledged."""
        self._administrator.retain(everything=False)
        self._later(self._duration(), lambda: self._administrator.retain(everything=True))

    def _tell_all(self, source: str) -> None:
        self._administrator.tell(source, self._sources[source])

    # --- owners

    def kill_shadow_owner(self) -> None:
        """SIGKILL."""
        self._kill(self._some_shadow())

    def kill_source_owner(self) -> None:
        """SIGKILL."""
        self._kill(self._some_source())

    def pause_shadow_owner(self) -> None:
        """It stands still for a while, maybe for longer than its session lasts, and notices nothing of it."""
        self._pause_owner(self._some_shadow())

    def pause_source_owner(self) -> None:
        """The same, of the broker that writes."""
        self._pause_owner(self._some_source())

    def unload_shadow(self) -> None:
        """Somebody unloads its bundle."""
        self._unload(self._some_shadow())

    def unload_source(self) -> None:
        """The same, of the topic that is written."""
        self._unload(self._some_source())

    def split_owners(self) -> None:
        """The owners of a source and of its shadow do not hear each other, or one does not hear the other."""
        source, shadows = self._chance.choice(list(self._sources.items()))
        here, there = self._owner(source), self._owner(self._chance.choice(shadows))
        if here is None or there is None or here is there:
            return
        names = [here.node.name], [there.node.name]
        network = self._world.network
        undo = self._chance.choice((network.partition, network.block))(*self._chance.sample(names, 2))
        self._later(2 * self._duration(), undo)

    def split_shadow_from_bookies(self) -> None:
        """The owner of a shadow and some bookies do not hear each other."""
        owner = self._owner(self._some_shadow())
        if owner is not None:
            bookies = [bookie.node.name for bookie in self._cluster.bookies]
            some = self._chance.sample(bookies, self._chance.randint(1, len(bookies)))
            self._later(2 * self._duration(), self._world.network.partition([owner.node.name], some))

    # --- help

    def _some_source(self) -> str:
        return self._chance.choice(list(self._sources))

    def _some_shadow(self) -> str:
        return self._chance.choice([shadow for shadows in self._sources.values() for shadow in shadows])

    def _owner(self, topic: str) -> SimulatedBroker | None:
        owners = self._shadowed.owners(topic)
        return self._chance.choice(owners) if owners else None

    def _kill(self, topic: str) -> None:
        owner = self._owner(topic)
        if owner is not None:
            owner.kill()
            self._broker_later(owner)

    def _pause_owner(self, topic: str) -> None:
        owner = self._owner(topic)
        if owner is not None:
            self._pause(owner.node)

    def _unload(self, topic: str) -> None:
        owner = self._owner(topic)
        bundle = None if owner is None else _bundle_of(owner.running, TopicName.parse(topic))
        if owner is not None and owner.running is not None and bundle is not None:
            owner.node.run(self._attempt(owner.running.context.moves.unload(bundle)), "move")

    def _bundles(self, broker: SimulatedBroker) -> list[BundleName]:
        if broker.running is None:
            return []
        namespaces = [SOURCES_NAMESPACE, str(NAMESPACE)]
        namespaces += [COORDINATORS_NAMESPACE] if self._transactions else []
        return [bundle for bundle in broker.running.context.ownership.owned() if str(bundle.namespace) in namespaces]


def _bundle_of(running: RunningBroker | None, name: TopicName) -> BundleName | None:
    if running is None:
        return None
    for bundle in running.context.ownership.owned():
        if str(bundle.namespace) == str(name.namespace_name) and name.bundle_hash() in bundle.range:
            return bundle
    return None

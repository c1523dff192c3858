"""Looking at one resource: what exists, and what its pods say. Everything that can be asked at once is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from magnetar.balance.model import LoadSnapshot
from magnetar.core.clock import Clock
from magnetar.core.errors import SettingError
from magnetar.operator.api import ApiServer
from magnetar.operator.children.context import (
    BOOKIE_CONTROL_PORT,
    BROKER_CONTROL_PORT,
    WEB_PORT,
    ZOOKEEPER_PORT,
    ClusterContext,
    Defaults,
)
from magnetar.operator.children.naming import (
    BOOKIE,
    BROKER,
    COMPONENT_LABEL,
    INSTANCE_LABEL,
    NAME_LABEL,
    READ_ONLY_BROKER,
    ZOOKEEPER,
    label_text,
    selector,
)
from magnetar.operator.control.asking import ControlPortCalls, address, reachable
from magnetar.operator.control.controls import Controls
from magnetar.operator.custom import SpecReader, cluster_status, owner_of, pool_status
from magnetar.operator.kubernetes.errors import Refused
from magnetar.operator.kubernetes.kinds import BOOKIE_POOL, PULSAR_CLUSTER, Manifest
from magnetar.operator.listing import Objects, look_at, pools_of, version
from magnetar.operator.plan.facts import (
    BookieFacts,
    BrokerFacts,
    Children,
    ClusterSeen,
    EnsembleFacts,
    PodFacts,
    PoolFacts,
    PoolSeen,
    SpecProblem,
)
from magnetar.operator.plan.pool.questions import Questions
from magnetar.operator.plan.pool.volumes import wanted_sizes
from magnetar.operator.plans import Plans
from magnetar.operator.resources.bookie import BookieSpec
from magnetar.operator.resources.cluster import PulsarClusterSpec, ZookeeperSpec
from magnetar.operator.resources.quantities import size_bytes
from magnetar.operator.secrets import named_secrets, trouble_of
from magnetar.operator.trim import pod_facts, resource_facts

Sizes: TypeAlias = Mapping[tuple[str, str], int]

Seen = TypeVar("Seen", ClusterSeen, PoolSeen)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAddresses:
    """How to reach whom a plan names."""

    token: str = ""
    pods: Mapping[str, str] = field(default_factory=dict)
    """Addresses of control ports, by pod."""
    brokers: Mapping[str, str] = field(default_factory=dict)
    """Control addresses by broker id."""
    answering: Sequence[str] = ()
    """Control addresses of bookies (of a pool) or brokers (of a cluster) that answered, the best to ask first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Generic[Seen]):
    """What the plan of a cluster or of a pool sees, and what carrying it out needs besides."""

    seen: Seen
    versions: Mapping[tuple[str, str], str]
    reach: ControlAddresses
    unreadable: str = ""
    """What is wrong with the newest spec: this is seen by an older one. Empty: nothing. Of a pool its own spec: its
    cluster's is told by the cluster."""


class Observer:
    """Looks. It keeps nothing but specs that could be read."""

    def __init__(self, api: ApiServer, controls: Controls, clock: Clock, defaults: Defaults, plans: Plans) -> None:
        self._api = api
        self._controls = controls
        self._clock = clock
        self._defaults = defaults
        self._plans = plans
        self.specs = SpecReader()

    async def cluster(self, manifest: Manifest, *, with_load: bool) -> View[ClusterSeen]:
        """All of a PulsarCluster; `with_load`: what balancing goes by, too."""
        owner = owner_of(manifest)
        spec, unreadable = self.specs.cluster(manifest)
        cluster = ClusterContext(owner=owner, spec=spec, defaults=self._defaults)
        now_seconds = self._clock.now_ms() / 1000
        looked, pools, monitors, troubles = await asyncio.gather(
            look_at(
                self._api, owner.namespace, owner.name, sizes=_zookeeper_sizes(cluster.spec), now_seconds=now_seconds
            ),
            pools_of(self._api, owner.namespace, owner.name),
            self._api.knows("PodMonitor"),
            self._troubles(cluster, now_seconds),
        )
        children, versions = _with_pools(looked, pools)
        asker = ControlPortCalls(looked.token)
        broker_pods = children.of(BROKER)
        zookeeper, brokers, read_only_brokers = await asyncio.gather(
            asker.each(children.of(ZOOKEEPER), ZOOKEEPER_PORT, lambda address, _: self._controls.zookeeper(address)),
            asker.each(broker_pods, BROKER_CONTROL_PORT, self._controls.broker),
            asker.each(
                children.of(READ_ONLY_BROKER), WEB_PORT, lambda address, _: self._controls.read_only_broker(address)
            ),
        )
        reach = _broker_reach(broker_pods, brokers, looked.token)
        driver, moves, load = await asyncio.gather(
            asker.first(reach.answering, self._controls.driver),
            asker.first(_leader(reach, brokers), self._controls.moves),
            asker.first(reach.answering if with_load else (), lambda *_: self._load(reach)),
        )
        seen = ClusterSeen(
            cluster=cluster,
            resource=resource_facts(manifest),
            status=cluster_status(manifest),
            children=children,
            pools=[self._pool_facts(pool) for pool in pools],
            zookeeper=zookeeper,
            brokers=brokers,
            read_only_brokers=read_only_brokers,
            driver=driver or "",
            moves=moves or (),
            load=load,
            pod_monitors_known=monitors,
            troubles=troubles,
            now_seconds=self._clock.now_ms() / 1000,
        )
        return View(seen=seen, versions=versions, reach=reach, unreadable=unreadable)

    async def _troubles(self, cluster: ClusterContext, now_seconds: float) -> list[SpecProblem]:
        """With Secrets that the spec names. They are looked at, and not kept."""
        found = []
        for wanted in named_secrets(cluster.spec):
            try:
                secret = await self._api.get("Secret", cluster.owner.namespace, wanted.name)
            except Refused:
                # It may not be read: pods tell what is wrong with it.
                continue
            if (trouble := trouble_of(wanted, secret, now_seconds)) is not None:
                found.append(trouble)
        return found

    def _load(self, reach: ControlAddresses) -> Awaitable[LoadSnapshot]:
        return self._controls.load_snapshot(reach.answering, reach.token)

    async def pool(self, manifest: Manifest) -> View[PoolSeen]:
        """Observe all of a Bookie."""
        owner = owner_of(manifest)
        spec, unreadable = self.specs.pool(manifest)
        looked, cluster_manifest, pools = await asyncio.gather(
            look_at(
                self._api,
                owner.namespace,
                spec.cluster_name,
                pool=owner.name,
                sizes=_bookie_sizes(spec),
                now_seconds=self._clock.now_ms() / 1000,
            ),
            self._api.get(PULSAR_CLUSTER, owner.namespace, spec.cluster_name),
            pools_of(self._api, owner.namespace, spec.cluster_name),
        )
        if cluster_manifest is not None and _is_of_an_earlier(manifest, cluster_manifest):
            cluster_manifest = None
        asker = ControlPortCalls(looked.token)
        pods = looked.children.of(BOOKIE, owner.name)
        bookies = await asker.each(pods, BOOKIE_CONTROL_PORT, self._controls.bookie)
        others = [pool for pool in pools if pool["metadata"]["name"] != owner.name]
        seen = PoolSeen(
            owner=owner,
            resource=resource_facts(manifest),
            spec=spec,
            status=pool_status(manifest),
            cluster=self._cluster(cluster_manifest),
            cluster_resource=resource_facts(cluster_manifest) if cluster_manifest else None,
            cluster_status=cluster_status(cluster_manifest) if cluster_manifest else None,
            children=looked.children,
            bookies=bookies,
            writable_elsewhere=sum(pool_status(pool).writable_replicas for pool in others),
            others=[self._pool_facts(pool) for pool in others],
            now_seconds=self._clock.now_ms() / 1000,
        )
        reach = _bookie_reach(pods, bookies, looked.token)
        questions = self._plans.pool_questions(seen)
        if questions.largest_ensemble:
            seen = replace(seen, largest_ensemble=await self._largest_ensemble(seen, asker))
        if questions.lost or questions.count_under_replicated:
            if not reach.answering and others:
                reach = replace(reach, answering=await self._bookies_elsewhere(seen))
            seen = await self._asked(seen, questions, asker, reach)
        return View(seen=seen, versions=looked.versions, reach=reach, unreadable=unreadable)

    def _cluster(self, manifest: Manifest | None) -> ClusterContext | None:
        if manifest is None:
            return None
        spec, _ = self.specs.cluster(manifest)
        return ClusterContext(owner=owner_of(manifest), spec=spec, defaults=self._defaults)

    def _pool_facts(self, manifest: Manifest) -> PoolFacts:
        metadata, status = manifest["metadata"], pool_status(manifest)
        try:
            replicas = self.specs.pool(manifest)[0].replicas
        except SettingError:
            # The pool tells of it. As many as run are taken to be wanted.
            replicas = status.replicas
        return PoolFacts(
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            deleting="deletionTimestamp" in metadata,
            replicas=replicas,
            status=status,
            cluster_uid=next((owner["uid"] for owner in _cluster_owners(manifest)), ""),
        )

    async def _asked(
        self, seen: PoolSeen, questions: Questions, asker: ControlPortCalls, reach: ControlAddresses
    ) -> PoolSeen:
        """With what only a look through the ledgers' metadata can tell. One bookie is asked all of it: it keeps what it
        has found of a lost one."""
        count = asker.first(
            reach.answering if questions.count_under_replicated else (),
            self._controls.under_replicated_ledgers,
        )
        asked = {
            pod: asker.first(reach.answering, partial(self._controls.lost_bookie, bookie_id=bookie_id))
            for pod, bookie_id in questions.lost
        }
        under_replicated, answers = await asyncio.gather(count, asyncio.gather(*asked.values()))
        lost = {pod: answer for pod, answer in zip(asked, answers, strict=True) if answer is not None}
        return replace(seen, lost=lost, under_replicated_ledgers=under_replicated)

    async def _largest_ensemble(self, seen: PoolSeen, asker: ControlPortCalls) -> EnsembleFacts | None:
        """The largest ensemble that any broker names: each knows the policies of the topics that it has loaded."""
        wanted = label_text(selector(seen.spec.cluster_name, BROKER))
        pods = [pod_facts(pod) for pod in await self._api.list("Pod", seen.owner.namespace, wanted)]
        answers = await asker.each(pods, BROKER_CONTROL_PORT, self._controls.largest_ensemble)
        return max(answers.values(), key=lambda answer: (answer.size, answer.wanted_by), default=None)

    async def _bookies_elsewhere(self, seen: PoolSeen) -> list[str]:
        """Bookies of the cluster's other pools that are ready."""
        wanted = {NAME_LABEL: "magnetar", INSTANCE_LABEL: seen.spec.cluster_name, COMPONENT_LABEL: BOOKIE}
        pods = [pod_facts(pod) for pod in await self._api.list("Pod", seen.owner.namespace, label_text(wanted))]
        pods.sort(key=lambda pod: pod.name)
        return [address(pod, BOOKIE_CONTROL_PORT) for pod in pods if pod.pool != seen.owner.name and pod.ready]


def _is_of_an_earlier(pool: Manifest, cluster: Manifest) -> bool:
    """Whether a pool was made for a cluster of that name that is gone: it goes too, and is none of the new one's."""
    uid = cluster["metadata"]["uid"]
    return any(owner["uid"] != uid for owner in _cluster_owners(pool))


def _with_pools(looked: Objects, pools: Sequence[Manifest]) -> tuple[Children, Mapping[tuple[str, str], str]]:
    """The pools are children too: the default one is the cluster's to make."""
    named = {(BOOKIE_POOL, pool["metadata"]["name"]): pool for pool in pools}
    versions = {key: version(pool) for key, pool in named.items()}
    return replace(looked.children, objects={**looked.children.objects, **named}), {**looked.versions, **versions}


def _cluster_owners(pool: Manifest) -> list[Manifest]:
    owners = pool["metadata"].get("ownerReferences") or []
    return [owner for owner in owners if owner.get("kind") == PULSAR_CLUSTER]


def _broker_reach(pods: Sequence[PodFacts], brokers: Mapping[str, BrokerFacts], token: str) -> ControlAddresses:
    addresses = {pod.name: address(pod, BROKER_CONTROL_PORT) for pod in pods if reachable(pod)}
    # The leader first: what it says of who drives is the newest.
    answering = sorted(brokers, key=lambda pod: (not brokers[pod].leading, pod))
    return ControlAddresses(
        token=token,
        pods=addresses,
        brokers={facts.broker_id: addresses[pod] for pod, facts in brokers.items()},
        answering=[addresses[pod] for pod in answering],
    )


def _leader(reach: ControlAddresses, brokers: Mapping[str, BrokerFacts]) -> Sequence[str]:
    return reach.answering[:1] if any(facts.leading for facts in brokers.values()) else ()


def _bookie_reach(pods: Sequence[PodFacts], bookies: Mapping[str, BookieFacts], token: str) -> ControlAddresses:
    addresses = {pod.name: address(pod, BOOKIE_CONTROL_PORT) for pod in pods if reachable(pod)}
    # The same one each time, if it can be: it remembers how far the look for a lost bookie is.
    answering = [addresses[pod.name] for pod in pods if pod.name in bookies and not pod.deleting]
    return ControlAddresses(token=token, pods=addresses, answering=answering)


def _zookeeper_sizes(spec: PulsarClusterSpec) -> Sizes:
    storage = (spec.metadata.zookeeper or ZookeeperSpec()).storage
    return {(ZOOKEEPER, "data"): size_bytes(storage.size)}


def _bookie_sizes(spec: BookieSpec) -> Sizes:
    return {(BOOKIE, name): size for name, size in wanted_sizes(spec).items()}

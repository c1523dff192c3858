"""The bookies that a namespace's ledgers are put on: what tools set, through to the ledgers' metadata."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from magnetar.broker.policies.effective import bookie_groups_of
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, SharedParts
from magnetar.ledger.placement import POLICY_METADATA_KEY, PlacementSettings, isolation_metadata, isolation_of
from magnetar.ledger.testing import MemoryBookies
from magnetar.ledger.topology import PLACES_PATH, decode_places
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryMetadataStore

from broker.tests.test_broker_policies_sessions import TOPIC

AFFINITY = "namespaces/public/default/persistence/bookieAffinity"
LEDGERS = ManagedLedgerSettings(
    ensemble_size=2, write_quorum=2, ack_quorum=1, max_entries_per_ledger=1, minimum_rollover_ms=0
)


async def call(broker: MemoryBroker, method: str, path: str, body: Any = None) -> None:
    url = f"{broker.admin_url}/admin/v2/{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body) as answer:
        assert answer.status == 204, await answer.text()


async def bookies_of_next_ledger(broker: MemoryBroker, client: ProtocolClient) -> set[str]:
    """Fill the ledger in use, which may have been made before, and then another one; where that is."""
    before = (await client.publish())[0].ledgerId
    newest = before
    while newest == before:
        newest = (await client.publish())[0].ledgerId
    assert broker.ledgers is not None
    metadata, _ = await broker.ledgers.metadata.read(newest)
    return set(metadata.ensembles[-1][1])


def test_groups_are_told_as_apaches_brokers_tell_them() -> None:
    value = isolation_metadata("gold,tin", "")
    assert json.loads(value)["policyClass"].rpartition(".")[2] == "IsolatedBookieEnsemblePlacementPolicy"
    assert isolation_of(value, PlacementSettings(isolation_groups=("x",))) == (("gold", "tin"), ())


def test_what_is_stored_otherwise_than_apache_stores_it_is_no_group() -> None:
    assert bookie_groups_of({}) is None
    assert bookie_groups_of({"bookieAffinityGroup": "gold"}) is None
    assert bookie_groups_of({"bookieAffinityGroup": {"bookkeeperAffinityGroupPrimary": 5}}) == ("", "")
    both = {"bookkeeperAffinityGroupPrimary": "gold", "bookkeeperAffinityGroupSecondary": "tin"}
    assert bookie_groups_of({"bookieAffinityGroup": both}) == ("gold", "tin")


async def test_new_ledgers_are_on_the_bookies_of_the_namespaces_groups() -> None:
    bookies = MemoryBookies(6)
    names = sorted(bookies.bookies)
    shared = SharedParts(MemoryMetadataStore(), bookies)
    async with MemoryBroker(ledgers=LEDGERS, shared=shared) as broker:
        for index, name in enumerate(names):
            group = "gold" if index < 3 else "tin"
            await call(
                broker, "POST", f"bookies/racks-info/{name}?group={group}", {"rack": f"/r{index}", "hostname": "h"}
            )
        node = await shared.store.get(PLACES_PATH)
        assert node is not None
        places = decode_places(node.value)
        assert broker.ledgers is not None
        # As `process.py` does with its connections; those in memory know nothing of places.
        broker.ledgers._parts.chooser._places = lambda: places
        client = await broker.connect()
        await client.producer(TOPIC)
        gold, tin = set(names[:3]), set(names[3:])
        for first, secondary, usable in (("gold", "", gold), ("tin", "gold", tin), ("gold", "tin", gold)):
            body = {"bookkeeperAffinityGroupPrimary": first, "bookkeeperAffinityGroupSecondary": secondary}
            await call(broker, "POST", AFFINITY, body)
            for _ in range(3):
                assert await bookies_of_next_ledger(broker, client) <= usable
        await call(broker, "DELETE", AFFINITY)
        assert broker.service.topics[TOPIC].ledger.settings.bookie_groups is None
        found: set[str] = set()
        for _ in range(20):
            found |= await bookies_of_next_ledger(broker, client)
        assert found & gold
        assert found & tin


def test_the_key_is_apaches() -> None:
    assert POLICY_METADATA_KEY == "EnsemblePlacementPolicyConfig"

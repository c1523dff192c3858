"""A broker offloads: by policy and by REST, tells how it fares, reads back, and clears up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from magnetar.broker.broker_parts import BrokerEnvironment
from magnetar.broker.policies.effective import BrokerLevel, effective_policies
from magnetar.broker.policies.offload import offload_policy
from magnetar.broker.process import broker_process_settings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.names import ignored_names, known_names
from magnetar.broker.settings.offload import OffloadSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, ShiftedClock
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import LedgerNotFound, LedgerUnavailable
from magnetar.managed.offload.testing import MemoryObjects, MemoryOffloader
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.tiered.offloaders import Offloaders
from magnetar.tiered.policy import ReadFirst
from magnetar.tiered.settings import OffloadStoreSettings

TOPIC: Final = "/admin/v2/persistent/public/default/topic"
NAMESPACE: Final = "/admin/v2/namespaces/public/default"
NAME: Final = "persistent://public/default/topic"
S3: Final = OffloadSettings(driver="aws-s3", s3_bucket="a-bucket", s3_region="eu-west-1")
S3_POLICIES: Final = {
    "managedLedgerOffloadDriver": "aws-s3",
    "managedLedgerOffloadBucket": "another-bucket",
    "s3ManagedLedgerOffloadBucket": "another-bucket",
}
"""As `pulsar-admin topicPolicies set-offload-policies` sends them: a bucket by both of its names."""


class Stores:
    """Makes offloaders over one set of objects, and keeps them."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.made: list[MemoryOffloader] = []
        self.settings: list[OffloadStoreSettings] = []

    def make(self, store: Any) -> MemoryOffloader:
        assert isinstance(store, OffloadStoreSettings)
        self.settings.append(store)
        self.made.append(MemoryOffloader(self.objects, store.place.bucket))
        return self.made[-1]


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
async def memory_broker(stores: Stores, clock: ShiftedClock) -> AsyncIterator[MemoryBroker]:
    """One whose ledgers are full with four entries, and which has a store."""
    ledgers = ManagedLedgerSettings(max_entries_per_ledger=4, minimum_rollover_ms=0)
    settings = BrokerSettings(offload=S3)
    environment = BrokerEnvironment(offloader=stores.make)
    async with MemoryBroker(settings, ledgers, clock=clock, environment=environment) as broker:
        yield broker


async def filled(admin: Any, client: ProtocolClient, messages: int = 9) -> Any:
    """A topic with that many messages, of which none is acknowledged; its managed ledger."""
    await client.producer("topic")
    await admin.check(("PUT", TOPIC + "/subscription/sub", {"ledgerId": -1, "entryId": -1}, 204, None))
    for number in range(messages):
        await client.publish(1, first=number)
    return admin.broker.service.topics[NAME].ledger


async def ledgers_of(admin: Any) -> list[tuple[int, bool]]:
    _, stats = await admin("GET", TOPIC + "/internalStats")
    return [(each["ledgerId"], each["offloaded"]) for each in stats["ledgers"]]


async def test_an_offload_by_rest(admin: Any, client: ProtocolClient, stores: Stores) -> None:
    """As `pulsar-admin topics offload` asks for it: the ledgers before that of a message."""
    ledger = await filled(admin, client)
    third = ledger.ledgers.ids[2]
    await admin.check(("PUT", TOPIC + "/offload", {"ledgerId": third, "entryId": 0}, 204, None))
    await ledger.offloads.until_idle()
    status = {
        "status": "SUCCESS",
        "lastError": "",
        "firstUnoffloadedMessage": {
            "ledgerId": third,
            "entryId": 0,
            "partitionIndex": -1,
            "batchIndex": -1,
            "batchSize": 0,
        },
    }
    await admin.check(("GET", TOPIC + "/offload", None, 200, status))
    assert [offloaded for _, offloaded in await ledgers_of(admin)] == [True, True, False]
    _, stats = await admin("GET", TOPIC + "/stats")
    assert stats["offloadedStorageSize"] == sum(ledger.ledgers.get(each).size_bytes for each in ledger.ledgers.ids[:2])
    assert stats["lastOffloadLedgerId"] == ledger.ledgers.ids[1]
    assert stats["lastOffloadSuccessTimeStamp"] > 0
    assert set(stores.objects.names.values()) == {"public/default/persistent/topic"}
    for ledger_id in ledger.ledgers.ids:
        ledger.cache.remove_ledger(ledger_id)
    await client.consumer("topic", "sub")
    assert len(await client.messages(9)) == 9
    assert ledger.offloads.counters.read_bytes > 0


async def test_bad_requests_change_nothing(admin: Any, client: ProtocolClient, stores: Stores) -> None:
    ledger = await filled(admin, client)
    await admin.check(
        ("PUT", TOPIC + "/offload", None, 400, "messageId is null"),
        ("PUT", TOPIC + "/offload", {"ledgerId": 0}, 400, "entryId"),
        ("PUT", TOPIC + "/offload", {"ledgerId": "0", "entryId": 0}, 400, "ledgerId"),
        ("PUT", TOPIC + "/offload", {"ledgerId": True, "entryId": 0}, 400, "ledgerId"),
        ("PUT", TOPIC + "/offload", [1], 400, "ledgerId"),
        ("PUT", TOPIC + "/offload", {"ledgerId": 1 << 40, "entryId": 0}, 412, "no entry"),
        ("PUT", TOPIC + "-none/offload", {"ledgerId": 0, "entryId": 0}, 404, "not found"),
    )
    assert stores.objects.objects == {}
    assert ledger.offloads.status.status == "NOT_RUN"


async def test_an_offload_that_runs_is_a_conflict(admin: Any, client: ProtocolClient, stores: Stores) -> None:
    ledger = await filled(admin, client)
    body = {"ledgerId": ledger.ledgers.ids[2], "entryId": 0}
    await ledger.offloads._tiered.lease()
    stores.made[0].stop_at = "data"
    await admin.check(("PUT", TOPIC + "/offload", body, 204, None))
    await stores.made[0].stopped.wait()
    await admin.check(("PUT", TOPIC + "/offload", body, 409, "runs already"))
    _, status = await admin("GET", TOPIC + "/offload")
    assert status["status"] == "RUNNING"


async def test_the_threshold_of_a_namespace(admin: Any, client: ProtocolClient) -> None:
    """Takes effect at once, in topics that are loaded."""
    ledger = await filled(admin, client)
    await ledger.offloads.until_idle()
    assert not any(offloaded for _, offloaded in await ledgers_of(admin))
    await admin.check(("PUT", NAMESPACE + "/offloadThreshold", 0, 204, None))
    await admin.broker.service.upkeep.check_now("offload")
    await ledger.offloads.until_idle()
    assert [offloaded for _, offloaded in await ledgers_of(admin)] == [True, True, False]


async def test_the_copies_at_the_bookies_go_after_the_lag_of_the_namespace(
    admin: Any, client: ProtocolClient, clock: ShiftedClock
) -> None:
    ledger = await filled(admin, client)
    await admin.check(
        ("PUT", NAMESPACE + "/offloadDeletionLagMs", 60_000, 204, None),
        ("PUT", NAMESPACE + "/offloadThreshold", 0, 204, None),
    )
    await admin.broker.service.upkeep.check_now("offload")
    await ledger.offloads.until_idle()
    first = ledger.ledgers.ids[0]
    await admin.broker.ledgers.metadata.read(first)
    clock.advance(61)
    await admin.broker.service.upkeep.check_now("offload")
    await ledger.offloads.until_idle()
    with pytest.raises(LedgerNotFound):
        await admin.broker.ledgers.metadata.read(first)
    await client.consumer("topic", "sub")
    assert len(await client.messages(9)) == 9


async def test_a_topic_of_its_own_store(admin: Any, client: ProtocolClient, stores: Stores) -> None:
    """A topic's policies name another bucket; who has none of its own uses the broker's."""
    ledger = await filled(admin, client)
    await admin.check(("POST", TOPIC + "/offloadPolicies", S3_POLICIES, 204, None))
    assert ledger.settings.offload.store.place.bucket == "another-bucket"
    body = {"ledgerId": ledger.ledgers.ids[1], "entryId": 0}
    await admin.check(("PUT", TOPIC + "/offload", body, 204, None))
    await ledger.offloads.until_idle()
    assert stores.settings[-1].place.bucket == "another-bucket"
    assert stores.settings[-1].place.region == "eu-west-1"


async def test_a_deleted_topic_leaves_no_object(admin: Any, client: ProtocolClient, stores: Stores) -> None:
    ledger = await filled(admin, client)
    await admin.check(("PUT", TOPIC + "/offload", {"ledgerId": ledger.ledgers.ids[2], "entryId": 0}, 204, None))
    await ledger.offloads.until_idle()
    assert stores.objects.objects
    await admin.check(("DELETE", TOPIC + "?force=true", None, 204, None))
    assert stores.objects.objects == {}


async def test_the_scan_of_a_namespace(admin: Any, client: ProtocolClient, stores: Stores) -> None:
    """Each object with what is known of it: also one that no record names."""
    ledger = await filled(admin, client)
    await admin.check(("PUT", TOPIC + "/offload", {"ledgerId": ledger.ledgers.ids[1], "entryId": 0}, 204, None))
    await ledger.offloads.until_idle()
    key = next(key for key in stores.objects.objects if not key.endswith("-index"))
    for other, name in (("1" * 8, "public/default/persistent/topic"), ("2" * 8, "public/default/persistent/gone")):
        stores.objects.objects[other + key[8:]] = [b"x"]
        stores.objects.names[other + key[8:]] = name
    status, found = await admin("GET", NAMESPACE + "/scanOffloadedLedgers")
    assert status == 200
    assert (found["total"], found["errors"], found["unknown"]) == (4, 2, 0)
    by_name = {each["name"]: each for each in found["objects"]}
    assert by_name[key]["status"] == "OK"
    assert by_name[key + "-index"]["status"] == "OK"
    assert by_name["1" * 8 + key[8:]]["status"] == "BAD-UUID"
    assert by_name["2" * 8 + key[8:]]["status"] == "NOT-FOUND"
    assert by_name[key]["managedLedgerName"] == "public/default/persistent/topic"
    assert by_name[key]["numEntries"] == 4
    assert by_name[key]["size"] > 0


async def test_the_scan_gets_past_odd_names_damage_and_what_is_deleted_meanwhile(
    admin: Any, client: ProtocolClient, stores: Stores, memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to the bucket names what he likes. What nobody can tell of is no orphan."""
    await filled(admin, client)
    damaged = "public/default/persistent/damaged"
    await memory_broker.service.store.put(ledger_path(damaged), b"\xff")
    names = ("a//b", "", "/", "../..", "a\0b", "x" * 70_000, damaged, "public/default/persistent/gone", "deleted")
    for number, name in enumerate(names):
        key = f"{UUID(int=number + 1)}-ledger-7"
        stores.objects.objects[key] = [b"x"]
        stores.objects.names[key] = name
    metadata_of = MemoryOffloader.metadata_of

    async def overtaken(offloader: MemoryOffloader, key: str) -> Mapping[str, str]:
        if stores.objects.names[key] == "deleted":
            del stores.objects.objects[key]
        return await metadata_of(offloader, key)

    monkeypatch.setattr(MemoryOffloader, "metadata_of", overtaken)
    status, found = await admin("GET", NAMESPACE + "/scanOffloadedLedgers")
    assert (status, found["total"], "lastError" in found) == (200, len(names) - 1, False)
    statuses = {each["userMetadata"]["managedledgername"]: each["status"] for each in found["objects"]}
    assert statuses.pop("public/default/persistent/gone") == "NOT-FOUND"
    assert set(statuses.values()) == {"UNKNOWN"}


async def test_a_folder_that_cannot_be_is_said_to_be_the_problem() -> None:
    """A topic with such policies is loaded all the same."""
    for uri in ("file://[", "file:///a%00b", "hdfs://host/"):
        policies = {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": uri}
        found = offload_policy(S3, {"offload_policies": policies}, {})
        assert found.store is None
        assert uri in found.problem


async def test_levels_are_merged_member_by_member() -> None:
    """The topic over the namespace over the broker; what of a namespace is older counts where it says nothing else."""
    broker = OffloadSettings(
        driver="aws-s3", s3_bucket="b", s3_region="r", threshold_bytes=7, s3_credential_id="", on_load=True
    )
    assert offload_policy(broker, {}, {}).threshold_bytes == 7
    assert offload_policy(broker, {"offload_threshold": 9}, {}).threshold_bytes == 9
    assert offload_policy(broker, {"offload_threshold": -1}, {}).threshold_bytes == 7
    namespace = {"offload_policies": {"managedLedgerOffloadThresholdInBytes": 10, "s3ManagedLedgerOffloadBucket": "n"}}
    topic = {"offloadPolicies": {"managedLedgerOffloadThresholdInBytes": None, "managedLedgerOffloadBucket": "t"}}
    found = offload_policy(broker, namespace, topic)
    assert (found.threshold_bytes, found.on_load) == (10, True)
    assert isinstance(found.store, OffloadStoreSettings)
    assert found.store.place.bucket == "n"
    lag = {
        "offload_policies": {"managedLedgerOffloadDeletionLagInMillis": 5, "managedLedgerOffloadThresholdInSeconds": 3}
    }
    assert (offload_policy(broker, lag, {}).deletion_lag_ms, offload_policy(broker, lag, {}).threshold_ms) == (5, 3_000)
    words = {"offloadPolicies": {"managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST"}}
    assert offload_policy(broker, {}, words).read_first is ReadFirst.BOOKKEEPER


async def test_values_of_other_brokers_that_make_no_sense_count_as_not_set() -> None:
    policies = {
        "managedLedgerOffloadThresholdInBytes": "7",
        "managedLedgerOffloadThresholdInSeconds": True,
        "managedLedgerOffloadDeletionLagInMillis": 10**30,
        "managedLedgerOffloadedReadPriority": "nowhere",
        "managedLedgerOffloadMaxThreads": -3,
    }
    found = offload_policy(S3, {"offload_policies": policies}, {"offloadPolicies": "x"})
    assert (found.threshold_bytes, found.threshold_ms, found.runs_max) == (-1, -1, 1)
    assert found.deletion_lag_ms == S3.deletion_lag_ms
    assert found.read_first is ReadFirst.TIERED_STORAGE


async def test_a_driver_that_is_not_there_is_said_to_be_the_problem() -> None:
    """Such policies can be set, as at Apache's brokers; the request to offload is told why nothing comes of it."""
    found = offload_policy(S3, {}, {"offloadPolicies": {"managedLedgerOffloadDriver": "azureblob"}})
    assert found.store is None
    assert "azureblob" in found.problem
    assert "aws-s3" in found.problem


async def test_topics_of_brokers_are_not_offloaded_by_themselves() -> None:
    settings = BrokerSettings(offload=OffloadSettings(driver="aws-s3", s3_bucket="b", s3_region="r", threshold_bytes=0))
    policies = effective_policies(BrokerLevel(settings, ManagedLedgerSettings()), {}, {})
    ledger = policies.ledger_of(TopicName.parse(NAME))
    assert ledger.offload.by_itself
    events = policies.ledger_of(TopicName.parse("persistent://public/default/__change_events"))
    assert not events.offload.by_itself
    assert events.offload.store == ledger.offload.store, "what was offloaded by others is read"


async def test_a_process_without_tiered_storage_says_so() -> None:
    with pytest.raises(LedgerUnavailable, match="no tiered storage"):
        Offloaders().lease("x")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("managedLedgerOffloadDriver=azureblob", "azureblob"),
        ("managedLedgerOffloadDriver=aws-s3", "Bucket must be set"),
        ("managedLedgerOffloadDriver=aws-s3\nmanagedLedgerOffloadBucket=b", "Region or"),
        ("s3ManagedLedgerOffloadMaxBlockSizeInBytes=1024", "s3ManagedLedgerOffloadMaxBlockSizeInBytes"),
        ("managedLedgerOffloadMaxThreads=0", "managedLedgerOffloadMaxThreads"),
        ("managedLedgerOffloadDriver=filesystem\nfileSystemURI=hdfs://host/", "file:///"),
    ],
)
def test_a_setting_that_cannot_work_stops_the_start(text: str, problem: str) -> None:
    """With a text that says which, and what there is."""
    given = GivenSettings(known_names(), ignored_names())
    for line in ("clusterName=c", "metadataStoreUrl=memory:", *text.splitlines()):
        name, _, value = line.partition("=")
        given.add(name, value, "broker.conf:7")
    with pytest.raises(SettingError, match=problem):
        broker_process_settings(given)


async def test_a_folder_is_a_store(tmp_path: Path) -> None:
    """With the driver `filesystem`: a whole broker offloads there, and reads from there."""
    ledgers = ManagedLedgerSettings(max_entries_per_ledger=4, minimum_rollover_ms=0)
    settings = BrokerSettings(offload=OffloadSettings(driver="filesystem", file_uri=tmp_path.as_uri()))
    async with MemoryBroker(settings, ledgers) as broker:
        client = await broker.connect()
        await client.consumer("topic", "sub")
        await client.producer("topic")
        await client.publish(1)
        ledger = broker.service.topics[NAME].ledger
        await ledger.roll()
        await ledger.offloads.offload_before((ledger.ledgers.ids[-1], 0))
        await ledger.offloads.until_idle()
        assert ledger.offloads.status.last_error == ""
        assert any(tmp_path.rglob("*"))
        ledger.cache.remove_ledger(ledger.ledgers.ids[0])
        assert (await ledger.read_entry((ledger.ledgers.ids[0], 0))).data.endswith(b"m0")
        assert ledger.offloads.counters.read_bytes > 0


def test_what_is_not_set_changes_nothing() -> None:
    """No store, no threshold: as Apache's defaults are."""
    found = offload_policy(OffloadSettings(), {}, {})
    assert (found.store, found.problem, found.by_itself) == (None, "", False)
    assert found.deletion_lag_ms == 14_400_000
    assert "secret" not in repr(
        offload_policy(replace(S3, s3_credential_id="i", s3_credential_secret="secret"), {}, {})
    )

"""Offloads in a real server of S3: what the library sends, what faults become, credentials."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from uuid import UUID

import pytest
from magnetar.core.errors import SettingError
from magnetar.ledger.api import LedgerNotFound
from magnetar.tiered.api import OffloadDamaged, OffloadRefused, OffloadUnavailable
from magnetar.tiered.assumed_role import AssumedRole
from magnetar.tiered.factory import make_offloader, open_s3_store
from magnetar.tiered.object_offloader import ObjectOffloader
from magnetar.tiered.s3_store import S3ObjectStore, StorePatience
from magnetar.tiered.settings import OffloadStoreSettings, StorePlace
from magnetar.tiered.testing import ClosedMemoryLedger

from lib.tests.object_store_contract import METADATA, PART_BYTES, ObjectStoreContract, keys, pieces_of
from lib.tests.recorded_offloads import LEDGER_ID, UID
from lib.tests.s3_server import Gateway, make_bucket, s3_server, unfinished_uploads

pytestmark = pytest.mark.slow

ID = UUID(UID)
NAME = "public/default/persistent/topic"
QUICK = StorePatience(retries_max=1)
IMPATIENT = StorePatience(retries_max=1, silence_seconds=0.3)
"""For a store that never answers; no other must be measured with it."""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(endpoint: str) -> str:
    name = f"bucket-{next(_numbers)}"
    make_bucket(endpoint, name)
    return name


@pytest.fixture
async def gateway(endpoint: str) -> AsyncIterator[Gateway]:
    gateway = Gateway(endpoint)
    yield gateway
    await gateway.close()


def place_at(endpoint: str, bucket: str) -> StorePlace:
    return StorePlace(bucket=bucket, endpoint=endpoint, credentials=("id", "secret"))


def ledger_of(count: int, size_bytes: int) -> ClosedMemoryLedger:
    return ClosedMemoryLedger(LEDGER_ID, [bytes([number % 256]) * size_bytes for number in range(count)])


class TestS3ObjectStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, endpoint: str, bucket: str) -> S3ObjectStore:
        return S3ObjectStore(place_at(endpoint, bucket))

    async def test_nothing_of_an_upload_that_ended_is_held_by_the_server(
        self, store: S3ObjectStore, endpoint: str, bucket: str
    ) -> None:
        await self.test_a_failure_among_the_pieces_leaves_nothing(store)
        await self.test_a_cancelled_upload_leaves_nothing(store)
        assert unfinished_uploads(endpoint, bucket) == 0


async def test_a_ledger_goes_and_comes_back(endpoint: str, bucket: str) -> None:
    offloader = make_offloader(
        {
            "managedLedgerOffloadDriver": "aws-s3",
            "s3ManagedLedgerOffloadBucket": bucket,
            "s3ManagedLedgerOffloadServiceEndpoint": endpoint,
            "s3ManagedLedgerOffloadCredentialId": "id",
            "s3ManagedLedgerOffloadCredentialSecret": "secret",
            "s3ManagedLedgerOffloadMaxBlockSizeInBytes": str(5 << 20),
        }
    )
    ledger = ledger_of(130, 100_000)
    await offloader.offload(ledger, ledger.described(), ID, NAME)
    reader = await offloader.open(LEDGER_ID, ID, offloader.stored_metadata())
    found: list[bytes] = []
    while len(found) < 130:
        found += await reader.read(len(found), 129)
    assert found == ledger.payloads
    page = await offloader.page()
    assert [(one.ledger_id, one.uid, one.is_index) for one in page.objects] == [
        (LEDGER_ID, ID, False),
        (LEDGER_ID, ID, True),
    ]
    assert (await offloader.metadata_of(page.objects[0].key))["managedledgername"] == NAME
    await offloader.delete(LEDGER_ID, ID, offloader.stored_metadata())
    with pytest.raises(LedgerNotFound):
        await offloader.open(LEDGER_ID, ID, offloader.stored_metadata())
    await offloader.close()


async def test_a_missing_bucket_is_no_lost_ledger(endpoint: str) -> None:
    store = S3ObjectStore(place_at(endpoint, "nobody-made-it"), patience=QUICK)
    for call in (
        store.head("key"),
        store.read_range("key", 0, 1),
        store.put("key", b"", METADATA),
        store.put_parts("key", pieces_of(b"a"), METADATA, PART_BYTES),
        store.list("", 1),
    ):
        with pytest.raises(OffloadRefused, match="nobody-made-it"):
            await call


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("403", OffloadRefused),
        ("401", OffloadRefused),
        ("400", OffloadRefused),
        ("500", OffloadUnavailable),
    ]
    + [("503", OffloadUnavailable), ("silent", OffloadUnavailable)],
)
async def test_faults_of_a_store_are_told(gateway: Gateway, bucket: str, fault: str, expected: type[Exception]) -> None:
    endpoint = await gateway.start()
    store = S3ObjectStore(place_at(endpoint, bucket), patience=QUICK)
    await store.put("key", b"0123456789", METADATA)
    if fault == "silent":
        store = S3ObjectStore(place_at(endpoint, bucket), patience=IMPATIENT)
    gateway.spoil = lambda method, path, number: fault
    for call in (
        store.head("key"),
        store.read_range("key", 0, 4),
        store.put("key", b"", METADATA),
        store.put_parts("key", pieces_of(b"a"), METADATA, PART_BYTES),
        store.delete(("key",)),
    ):
        with pytest.raises(expected, match="key in bucket"):
            await call
    with pytest.raises(expected, match="cannot list bucket"):
        await store.list("", 1)
    gateway.spoil = lambda method, path, number: None
    assert await S3ObjectStore(place_at(endpoint, bucket)).read_range("key", 0, 4) == b"0123"


async def test_a_fault_that_passes_is_not_noticed(gateway: Gateway, bucket: str) -> None:
    store = S3ObjectStore(place_at(await gateway.start(), bucket), patience=QUICK)
    gateway.spoil = lambda method, path, number: None if (method, path) in gateway.requests else "503"
    await store.put_parts("key", pieces_of(bytes(6 << 20), bytes(6 << 20)), METADATA, PART_BYTES)
    assert (await store.head("key")).size_bytes == 12 << 20
    assert await keys(store) == ["key"]


async def test_a_part_that_is_refused_ends_the_upload(gateway: Gateway, endpoint: str, bucket: str) -> None:
    store = S3ObjectStore(place_at(await gateway.start(), bucket), patience=QUICK)
    given = 0

    async def many() -> AsyncIterator[bytes]:
        nonlocal given
        while given < 200:
            given += 1
            yield bytes(1 << 20)

    gateway.spoil = lambda method, path, number: "403" if "partNumber=2" in path else None
    with pytest.raises(OffloadRefused, match="cannot write key"):
        await store.put_parts("key", many(), METADATA, PART_BYTES)
    assert given < 30, "who writes hears of it soon, not at the end"
    assert await keys(store) == []
    assert unfinished_uploads(endpoint, bucket) == 0


@pytest.mark.parametrize(("fault", "expected"), [("half", OffloadDamaged), ("cut", OffloadUnavailable)])
async def test_half_an_answer_is_told(gateway: Gateway, bucket: str, fault: str, expected: type[Exception]) -> None:
    place = place_at(await gateway.start(), bucket)
    settings = OffloadStoreSettings(driver="S3", place=place, read_buffer_bytes=1 << 14)
    offloader = ObjectOffloader(settings, lambda asked: S3ObjectStore(asked, patience=QUICK))
    ledger = ledger_of(100, 1000)
    await offloader.offload(ledger, ledger.described(), ID, NAME)
    reader = await offloader.open(LEDGER_ID, ID, {})
    gateway.spoil = lambda method, path, number: fault if method == "GET" else None
    with pytest.raises((expected, OffloadUnavailable)) as told:
        await reader.read(50, 60)
    assert f"{UID}-ledger-{LEDGER_ID}" in str(told.value)
    with pytest.raises((expected, OffloadUnavailable)):
        await offloader.open(LEDGER_ID, ID, {})
    gateway.spoil = lambda method, path, number: None
    assert await reader.read(50, 60) == ledger.payloads[50:61]
    await offloader.close()


async def test_a_slow_store_stops_no_other_work(gateway: Gateway, bucket: str) -> None:
    """While the store is silent, the loop is free: a request is cancelled at once."""
    store = S3ObjectStore(place_at(await gateway.start(), bucket))
    silent = asyncio.Event()

    def spoil(method: str, path: str, number: int) -> str:
        silent.set()
        return "silent"

    gateway.spoil = spoil
    reading = asyncio.ensure_future(store.read_range("key", 0, 1))
    await silent.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_role_is_assumed_at_sts(endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    role = AssumedRole("arn:aws:iam::123456789012:role/offload", "pulsar-s3-offload", "eu-west-1")
    given = await role()
    assert given["token"]
    assert given["access_key_id"] != "id"
    place = StorePlace(bucket=bucket, endpoint=endpoint, role="arn:aws:iam::123456789012:role/offload")
    store = open_s3_store(place)
    await store.put("key", b"by a role", METADATA)
    assert await store.read_range("key", 0, 9) == b"by a role"


def test_a_role_in_a_region_that_cannot_be_is_told() -> None:
    with pytest.raises(SettingError, match="no region"):
        AssumedRole("arn:aws:iam::123456789012:role/offload", "pulsar-s3-offload", "no region")


# --- settings ---

BASE = {"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadBucket": "b", "managedLedgerOffloadRegion": "r"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"managedLedgerOffloadDriver": "tape"}, "managedLedgerOffloadDriver=tape: the drivers are aws-s3, S3"),
        ({"managedLedgerOffloadBucket": ""}, "^s3ManagedLedgerOffloadBucket must be set"),
        (
            {"managedLedgerOffloadBucket": "", "managedLedgerOffloadDriver": "S3"},
            "^managedLedgerOffloadBucket must be set",
        ),
        (
            {"managedLedgerOffloadRegion": ""},
            "^s3ManagedLedgerOffloadRegion or s3ManagedLedgerOffloadServiceEndpoint must",
        ),
        ({"managedLedgerOffloadServiceEndpoint": "store:9000"}, "begins with neither"),
        ({"s3ManagedLedgerOffloadCredentialId": "id"}, "go together"),
        ({"managedLedgerOffloadMaxBlockSizeInBytes": "5242879"}, "must be 5242880 to"),
        ({"s3ManagedLedgerOffloadMaxBlockSizeInBytes": "much"}, "^s3ManagedLedgerOffloadMaxBlock.*=much: is no number"),
        ({"managedLedgerOffloadMaxBlockSizeInBytes": "much"}, "^managedLedgerOffloadMaxBlock.*=much: is no number"),
        ({"managedLedgerOffloadReadBufferSizeInBytes": "0"}, "must be 1024 to"),
        ({"managedLedgerOffloadPrefetchRounds": "-1"}, "must be 0 to"),
    ],
)
def test_settings_that_cannot_be_are_told(changed: dict[str, str], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        make_offloader(BASE | changed)


async def test_settings_have_apaches_names_and_defaults() -> None:
    plain = make_offloader(BASE)
    assert isinstance(plain, ObjectOffloader)
    assert plain.settings == OffloadStoreSettings(
        driver="aws-s3",
        place=StorePlace(bucket="b", region="r"),
        block_bytes_max=64 << 20,
        read_buffer_bytes=1 << 20,
        prefetch_rounds=1,
    )
    both = make_offloader(BASE | {"managedLedgerOffloadDriver": "AWS-S3", "s3ManagedLedgerOffloadBucket": "of-s3"})
    assert (both.driver, both.stored_metadata()["bucket"]) == ("aws-s3", "of-s3")
    environment = {"ACCESS_KEY_ID": "id", "ACCESS_KEY_SECRET": "secret"}
    other = make_offloader(
        BASE | {"managedLedgerOffloadDriver": "s3", "s3ManagedLedgerOffloadBucket": "of-s3"}, environment
    )
    assert isinstance(other, ObjectOffloader)
    assert (other.driver, other.settings.place.bucket) == ("S3", "b")
    assert other.settings.place.credentials == ("id", "secret")
    assert other.stored_metadata()["managedLedgerOffloadDriver"] == "S3"

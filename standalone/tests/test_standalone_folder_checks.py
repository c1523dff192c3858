"""A data folder may be moved; without its metadata, or with an older copy of it, nothing is served."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from magnetar.bookie.cookie import InvalidCookie
from magnetar.bookie.journal.files import JournalDamaged
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ConsumerOptions
from magnetar.client.message import OutgoingMessage
from magnetar.client.reader import ReaderOptions
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from magnetar.metadata.rocksdb import MetadataDamaged
from magnetar.standalone.cluster import start_cluster
from magnetar.standalone.folder_checks import MetadataBehind, MetadataMissing
from magnetar.standalone.settings import StandaloneSettings

TOPIC = TopicName.parse("persistent://public/default/kept")
OTHER = TopicName.parse("persistent://public/default/other")


def settings(data: Path, *, accept_loss: bool = False) -> StandaloneSettings:
    return StandaloneSettings(data_directory=data, broker_service_port=0, web_service_port=0, accept_loss=accept_loss)


@asynccontextmanager
async def cluster(data: Path, *, accept_loss: bool = False) -> AsyncIterator[PulsarClient]:
    running = await start_cluster(settings(data, accept_loss=accept_loss))
    client = PulsarClient(lambda: running.service_url, SystemClock())
    try:
        yield client
    finally:
        await client.close()
        await running.close()


async def publish(client: PulsarClient, topic: TopicName, *payloads: bytes) -> None:
    await (await client.consumer(topic, ConsumerOptions(subscription="keep", from_earliest=True))).close()
    await (await client.producer(topic)).send_all([OutgoingMessage(payload) for payload in payloads])


async def read(client: PulsarClient, topic: TopicName) -> list[bytes]:
    reader = await client.reader(topic, ReaderOptions())
    found = []
    while (message := await reader.next_or_end()) is not None:
        found.append(bytes(message.payload))
    return found


async def store_in(data: Path, topic: TopicName, *payloads: bytes) -> None:
    async with cluster(data) as client:
        await publish(client, topic, *payloads)


async def test_a_folder_may_be_copied_and_moved(tmp_path: Path) -> None:
    await store_in(tmp_path / "first", TOPIC, b"a")
    shutil.copytree(tmp_path / "first", tmp_path / "deep" / "second")
    for data in (tmp_path / "deep" / "second", tmp_path / "first"):
        async with cluster(data) as client:
            assert await read(client, TOPIC) == [b"a"]
    shutil.move(tmp_path / "deep" / "second", tmp_path / "third")
    # A move that was stopped between two cookies.
    shutil.copy(tmp_path / "first/bookie/journal/current/VERSION", tmp_path / "third/bookie/journal/current/VERSION")
    async with cluster(tmp_path / "third") as client:
        assert await read(client, TOPIC) == [b"a"]
    cookies = [path.read_text() for path in (tmp_path / "third").glob("bookie/*/current/VERSION")]
    assert len(cookies) == 2
    assert all(f'"{tmp_path}/third/bookie/journal"' in cookie for cookie in cookies)


@pytest.mark.parametrize("left", ["nothing", "metadata", "metadata/rocksdb"])
async def test_messages_without_metadata_are_refused_and_nothing_is_made(tmp_path: Path, left: str) -> None:
    data = tmp_path / "data"
    await store_in(data, TOPIC, b"a")
    (data / "metadata").rename(tmp_path / "kept")
    if left != "nothing":
        (data / left).mkdir(parents=True)
    before = sorted(data.rglob("*"))
    for accept_loss in (False, True):
        with pytest.raises(MetadataMissing, match=r"data/metadata/rocksdb is missing or empty.*Put a copy.*--fresh"):
            await start_cluster(settings(data, accept_loss=accept_loss))
    assert sorted(data.rglob("*")) == before
    shutil.rmtree(data / "metadata", ignore_errors=True)
    shutil.copytree(tmp_path / "kept", data / "metadata")
    async with cluster(data) as client:
        assert await read(client, TOPIC) == [b"a"]


async def test_older_metadata_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    await store_in(data, TOPIC, b"monday")
    shutil.copytree(data / "metadata", tmp_path / "older")
    await store_in(data, TOPIC, b"tuesday")
    shutil.move(data / "metadata", tmp_path / "newest")
    shutil.copytree(tmp_path / "older", data / "metadata")
    with pytest.raises(MetadataBehind, match=r"older than the messages.*newest copy.*--accept-loss"):
        await start_cluster(settings(data))
    # With the newest copy nothing is lost.
    shutil.rmtree(data / "metadata")
    shutil.copytree(tmp_path / "newest", data / "metadata")
    async with cluster(data) as client:
        assert await read(client, TOPIC) == [b"monday", b"tuesday"]
    # Without it, no id is given twice, whose entries another topic would read.
    shutil.rmtree(data / "metadata")
    shutil.copytree(tmp_path / "older", data / "metadata")
    with caplog.at_level(logging.ERROR):
        async with cluster(data, accept_loss=True) as client:
            await publish(client, OTHER, b"wednesday")
    assert "going on without what is lost: the metadata" in caplog.text
    async with cluster(data) as client:
        assert await read(client, OTHER) == [b"wednesday"]
        assert await read(client, TOPIC) == [b"monday"]


@pytest.mark.parametrize("part", ["bookie", "bookie/journal"])
async def test_older_messages_are_refused(tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture) -> None:
    """A bookie that has lost its newest journal denies what was acknowledged, and nothing in its files says so."""
    data = tmp_path / "data"
    await store_in(data, TOPIC, b"monday")
    shutil.copytree(data / part, tmp_path / "older")
    running = await start_cluster(settings(data))
    client = PulsarClient(lambda: running.service_url, SystemClock())
    await publish(client, TOPIC, b"tuesday")
    shutil.copytree(data, tmp_path / "killed")
    await client.close()
    await running.close()
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "killed", data)
    shutil.rmtree(data / part)
    shutil.copytree(tmp_path / "older", data / part)
    before = sorted((data / "bookie").rglob("*"))
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=r"is an older copy.*--accept-loss"):
            await start_cluster(settings(data))
    assert sorted((data / "bookie").rglob("*")) == before
    # With the newest copy nothing is lost.
    shutil.copytree(data, tmp_path / "lost")
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "killed", data)
    async with cluster(data) as client:
        assert await read(client, TOPIC) == [b"monday", b"tuesday"]
    with caplog.at_level(logging.ERROR):
        async with cluster(tmp_path / "lost", accept_loss=True) as client:
            await publish(client, OTHER, b"wednesday")
    assert "is an older copy: its newest journal file is" in caplog.text
    assert "of public/default/persistent/kept: it was open, maybe entries from 0 on" in caplog.text
    async with cluster(tmp_path / "lost") as client:
        assert await read(client, OTHER) == [b"wednesday"]
        assert await read(client, TOPIC) == [b"monday"]


async def test_a_clock_set_back_is_no_older_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    with monkeypatch.context() as ahead:
        ahead.setattr(SystemClock, "now_ms", lambda _: 4_000_000_000_000)
        await store_in(data, TOPIC, b"a")
    for _ in range(2):
        async with cluster(data) as client:
            assert await read(client, TOPIC) == [b"a"]


async def test_a_log_of_metadata_lost_with_its_note_is_refused(tmp_path: Path) -> None:
    """RocksDB's tables are an older state then, and nothing in them says so."""
    data = tmp_path / "data"
    for payload in (b"a", b"b"):
        await store_in(data, TOPIC, payload)
    shutil.copytree(data / "metadata", tmp_path / "closed")
    running = await start_cluster(settings(data))
    client = PulsarClient(lambda: running.service_url, SystemClock())
    await publish(client, TOPIC, b"c")
    shutil.copytree(data, tmp_path / "killed")
    await client.close()
    await running.close()
    database = tmp_path / "killed" / "metadata" / "rocksdb"
    for path in (*database.glob("*.log"), database / "magnetar.synced"):
        path.unlink()
    with pytest.raises(MetadataBehind):
        await start_cluster(settings(tmp_path / "killed"))


async def test_deleted_ledgers_are_no_reason(tmp_path: Path) -> None:
    """The greatest ledgers of a bookie may be named by no topic any more: ids only grow."""
    data = tmp_path / "data"
    for payload in (b"a", b"b", b"c"):
        await store_in(data, TOPIC, payload)
    shutil.copytree(data / "metadata", tmp_path / "newest")
    shutil.rmtree(data / "metadata")
    shutil.copytree(tmp_path / "newest", data / "metadata")
    async with cluster(data) as client:
        assert await read(client, TOPIC) == [b"a", b"b", b"c"]


async def test_a_wrong_block_of_metadata_says_what_to_do(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for payload in (b"a", b"b"):
        await store_in(data, TOPIC, payload)
    for path in (data / "metadata" / "rocksdb").glob("*.sst"):
        content = bytearray(path.read_bytes())
        content[len(content) // 4] ^= 1
        path.write_bytes(content)
    with pytest.raises(MetadataDamaged, match=r"Put a copy of the whole.*`--accept-loss` does not apply to metadata"):
        await start_cluster(settings(data))


async def test_a_directory_in_place_of_a_journal_is_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await store_in(data, TOPIC, b"a")
    (journal,) = (data / "bookie/journal/current").glob("*.txn")
    journal.unlink()
    journal.mkdir()
    with pytest.raises(IsADirectoryError, match=str(journal)):
        await start_cluster(settings(data))


async def cookie_by_the_printed_command(data: Path) -> str:
    """What the refusal's command prints."""
    with pytest.raises(InvalidCookie) as refused:
        await start_cluster(settings(data))
    found = re.search("`magnetar (bookie cookie get [^`]*)`", str(refused.value))
    assert found is not None
    command = [sys.executable, "-m", "magnetar.cli", *found[1].split()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("damaged", [None, b"5\nnonsense"])
async def test_a_lost_cookie_comes_back_by_the_command_that_the_refusal_prints(
    tmp_path: Path, damaged: bytes | None
) -> None:
    data = tmp_path / "data"
    await store_in(data, TOPIC, b"a")
    cookie = data / "bookie/journal/current/VERSION"
    before = cookie.read_text()
    cookie.unlink()
    if damaged is not None:
        cookie.write_bytes(damaged)
    shown = await cookie_by_the_printed_command(data)
    assert shown == before.rstrip("\n") + "\n"
    cookie.write_text(shown)
    async with cluster(data) as client:
        assert await read(client, TOPIC) == [b"a"]


@pytest.mark.parametrize(("part", "is_told"), [("journal", True), ("ledgers", False)])
async def test_a_lost_directory_is_given_up_as_the_refusal_says(tmp_path: Path, part: str, *, is_told: bool) -> None:
    """The first journal holds all that was ever written, so that without entry logs nothing is lost here."""
    data = tmp_path / "data"
    await store_in(data, TOPIC, b"monday")
    shutil.rmtree(data / "bookie" / part)
    shown = await cookie_by_the_printed_command(data)
    (data / "bookie" / part / "current" / "VERSION").write_text(shown)
    if is_told:
        with pytest.raises(JournalDamaged, match="it has no journal file"):
            await start_cluster(settings(data))
    async with cluster(data, accept_loss=True) as client:
        assert await read(client, TOPIC) == [b"monday"]


def test_a_tool_makes_no_database_at_a_wrong_path(tmp_path: Path) -> None:
    arguments = ["bookie", "cookie", "get", "127.0.0.1:3181", "-m", f"rocksdb://{tmp_path}/wrong"]
    command = [sys.executable, "-m", "magnetar.cli", *arguments]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert f"there is no metadata at {tmp_path}/wrong" in ended.stderr
    assert not list(tmp_path.iterdir())

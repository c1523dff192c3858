"""Topics of Apache's brokers with transactions and compactions: our data source reads from Apache's bookies, and
through its brokers, what Apache's own client reads at the same time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import admin
from e2e.interchange import parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BrokerPart
from e2e.interchange.topic_driver import VALUE, Read, TopicDriver
from e2e.processes import wait_for
from e2e.spark.running import Spark

TOPICS = Path(__file__).parent / "programs" / "topics.py"
NAMESPACE = "public/default"
MODES = ("bookies", "brokers")
SELECT = ["__messageId", "__key", VALUE, "spark_partition_id() AS task"]
BROKER_SETTINGS = {
    "transactionCoordinatorEnabled": "true",
    # Several ledgers for a few messages.
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
SPLIT_BYTES = "1m"
"""Several tasks for a hundred messages: transactions go through several of them."""
COMPACTION_SECONDS_MAX = 60.0

# Six processes of Java, one after the other or at once.
pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerPart]:
    """Apache's broker with transactions, on a bookie of Apache's."""
    lacking = parts.missing()
    if lacking:
        pytest.fail(lacking, pytrace=False)
    with Cluster(Path(tmp_path_factory.mktemp("apache"))) as cluster:
        cluster.initialize_pulsar(transaction_coordinators=1)
        cluster.apache_bookie("bookie").start()
        running = cluster.apache_broker((1, 1, 1), **BROKER_SETTINGS)
        running.start()
        yield running


@pytest.fixture(scope="module")
def java(broker: BrokerPart, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicDriver]:
    """Apache's client."""
    with TopicDriver(broker.service_url, Path(tmp_path_factory.mktemp("java")) / "log") as driver:
        yield driver


@pytest.fixture(scope="module")
def urls(broker: BrokerPart) -> dict[str, str]:
    """Options: the metadata store is the one that the broker names."""
    return {"service.url": broker.service_url, "admin.url": broker.admin_url}


def topic_of(broker: BrokerPart, name: str) -> str:
    """A topic that keeps what it is given."""
    namespace = f"{broker.admin_url}/admin/v2/namespaces/{NAMESPACE}"
    admin.call("POST", f"{namespace}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    admin.call("PUT", f"{broker.admin_url}/admin/v2/persistent/{NAMESPACE}/{name}")
    return f"persistent://{NAMESPACE}/{name}"


def reading(urls: dict[str, str], topic: str, mode: str, **more: str) -> dict[str, Any]:
    """A step of the script."""
    options = {**urls, "topic": topic, "readMode": mode, "splitBytes": SPLIT_BYTES, **more}
    return {"do": "read", "options": options, "select": SELECT}


def streaming(urls: dict[str, str], topic: str, mode: str, folder: Path) -> dict[str, Any]:
    """The same, as a stream up to what is there now, which goes on from where it was."""
    return {
        **reading(urls, topic, mode, startingOffsets="earliest"),
        "do": "stream",
        "checkpoint": str(folder / "checkpoint"),
        "folder": str(folder / "batches"),
    }


def streamed(folder: Path) -> list[Read]:
    """What its micro-batches had, one after the other."""
    files = sorted((folder / "batches").glob("*.json"), key=lambda file: int(file.stem))
    return [row for file in files for row in rows_of(json.loads(file.read_text()))]


def rows_of(rows: list[dict[str, Any]]) -> list[Read]:
    return [Read(row["__messageId"], row["__key"], row["value"]) for row in rows]


@dataclass
class Story:
    """What a topic is given, in order: each message and its transaction."""

    java: TopicDriver
    topic: str
    sent: list[tuple[str, str | None]] = field(default_factory=list)

    def send(self, count: int, transaction: str | None = None, *, batched: bool = False) -> None:
        """Numbered messages, now and then with a key; as one entry, or as so many."""
        first = len(self.sent)
        values = [f"v{number}" for number in range(first, first + count)]
        self.sent += [(value, transaction) for value in values]
        words = [f"{'' if number % 3 else f'k{number % 7}'}={value}" for number, value in enumerate(values, first)]
        self.java.send(self.topic, *words, transaction=transaction, batched=batched)

    def begin_all(self) -> None:
        """Transactions that are over, one after the other and side by side; then some around one that stays open."""
        for number in range(4):
            committed, aborted = f"{self.topic}-committed-{number}", f"{self.topic}-aborted-{number}"
            self.java.begin(committed, aborted)
            self.send(1)
            self.send(2, committed)
            self.send(3, aborted, batched=True)
            self.send(4, batched=True)
            self.send(3, committed, batched=True)
            self.send(1, aborted)
            self.java.abort(aborted)
            self.send(2)
            self.java.commit(committed)
        late, lost, self.open = (f"{self.topic}-{word}" for word in ("committed-late", "aborted-late", "open"))
        self.java.begin(late, lost, self.open)
        self.send(2, late)
        self.send(2, lost)
        self.send(3, batched=True)
        self.open_from = len(self.sent)
        self.send(1, self.open)
        self.send(3)
        self.send(4, late, batched=True)
        self.send(2, self.open, batched=True)
        self.send(2, lost)
        self.java.commit(late)
        self.java.abort(lost)
        self.send(3, batched=True)
        self.send(1)

    def end(self, *, commit: bool) -> None:
        """Of the one that is open."""
        (self.java.commit if commit else self.java.abort)(self.open)
        self.send(2)

    def readable(self, *, committed: bool | None) -> list[str]:
        """The values that can be read; None: the last transaction is still open, and nothing behind its beginning."""
        shown = self.sent[: self.open_from] if committed is None else self.sent
        return [
            value
            for value, transaction in shown
            if transaction is None or (committed if transaction == self.open else "committed" in transaction)
        ]


class TestTransactions:
    """Messages of committed transactions and of none, each once; nothing behind the first message of an open one."""

    def test_open_then_ended(
        self, broker: BrokerPart, java: TopicDriver, our_spark: Spark, urls: dict[str, str], tmp_path: Path
    ) -> None:
        stories = {
            commit: Story(java, topic_of(broker, f"transactions-{'kept' if commit else 'lost'}"))
            for commit in (True, False)
        }
        for story in stories.values():
            story.begin_all()
        self.judge(stories, our_spark, urls, tmp_path, ended=False)
        for commit, story in stories.items():
            story.end(commit=commit)
        self.judge(stories, our_spark, urls, tmp_path, ended=True)

    def judge(
        self, stories: dict[bool, Story], our_spark: Spark, urls: dict[str, str], folder: Path, *, ended: bool
    ) -> None:
        steps = []
        for commit, story in stories.items():
            steps += [reading(urls, story.topic, mode) for mode in MODES]
            steps.append(streaming(urls, story.topic, MODES[commit], folder / MODES[commit]))
        answers = iter(our_spark.run(TOPICS, {"steps": steps}))
        for commit, story in stories.items():
            wanted = story.java.read(story.topic)
            assert [row.value for row in wanted] == story.readable(committed=commit if ended else None)
            assert len({row.message_id.partition(":")[0] for row in wanted}) > 2  # Ledgers.
            for mode in MODES:
                rows = next(answers)["rows"]
                assert rows_of(rows) == wanted, (mode, story.topic)
                assert len({row["task"] for row in rows}) > 1
            next(answers)
            assert streamed(folder / MODES[commit]) == wanted, (MODES[commit], story.topic)


def compact(broker: BrokerPart, topic: str) -> None:
    """As `pulsar-admin topics compact` does, and wait for its end."""
    url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/compaction"
    admin.call("PUT", url)

    def done() -> bool:
        told = admin.get_json(url)
        assert told["status"] in ("RUNNING", "SUCCESS"), told
        return bool(told["status"] == "SUCCESS")

    wait_for(done, COMPACTION_SECONDS_MAX, f"{topic} is not compacted")


COMMITTED = 29
"""Messages that `send_keyed` sends, but for those that it takes back."""


def send_keyed(java: TopicDriver, topic: str, turn: int) -> None:
    """Keys that are new, that come again, that are taken away; some in batches, some in transactions, some of none."""

    def words(keys: range, form: str = "k{0}=t{1}v{0}") -> list[str]:
        return [form.format(key, turn) for key in keys]

    kept, lost = f"{topic}-{turn}-kept", f"{topic}-{turn}-lost"
    java.begin(kept, lost)
    java.send(topic, *words(range(8)))
    java.send(topic, *words(range(6, 12)), batched=True)
    java.send(topic, *words(range(10, 13)), transaction=kept)
    java.send(topic, *words(range(9), "k{0}=lost{1}v{0}"), transaction=lost, batched=True)
    java.send(topic, *words(range(13, 16)), transaction=kept, batched=True)
    java.commit(kept)
    java.abort(lost)
    java.send(topic, *words(range(3), "=t{1}without{0}"))
    # Deletions, by themselves and in a batch.
    java.send(topic, *words(range(turn, turn + 2), "k{0}="))
    java.send(topic, *words(range(7, 8), "k{0}="), *words(range(20 + turn, 23 + turn)), batched=True)


class TestCompaction:
    """The newest message of each key as far as the topic was compacted, and all that came later."""

    def test_each_state(self, broker: BrokerPart, java: TopicDriver, our_spark: Spark, urls: dict[str, str]) -> None:
        # What happens to each topic.
        states = {"never": "s", "at-the-end": "sc", "once": "scs", "twice": "scscs", "unloaded": "sccsu"}
        # The second compaction is written down a minute later, when what it replaces is deleted (Pulsar:
        # managedLedgerDefaultMarkDeleteRateLimit, managedLedgerCursorPositionFlushSeconds).
        states["at-once"] = "scc"
        topics = {topic_of(broker, f"compacted-{name}"): turns for name, turns in states.items()}
        for topic, turns in topics.items():
            for turn, kind in enumerate(turns):
                if kind == "s":
                    send_keyed(java, topic, turn)
                elif kind == "c":
                    compact(broker, topic)
                else:  # Where its compaction is, is then written down elsewhere.
                    admin.call("PUT", f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/unload")
        steps = [reading(urls, topic, mode, readCompacted="true") for topic in topics for mode in MODES]
        steps += [reading(urls, topic, mode) for topic in topics for mode in MODES]
        answers = iter(our_spark.run(TOPICS, {"steps": steps}))
        for compacted in (True, False):
            for topic, turns in topics.items():
                wanted = java.read(topic, compacted=compacted)
                whole = COMMITTED * turns.count("s")
                assert (len(wanted) < whole) if compacted and "c" in turns else (len(wanted) == whole), topic
                for mode in MODES:
                    assert rows_of(next(answers)["rows"]) == wanted, (topic, mode, compacted)

"""Streams, called as Spark calls them: drivers that die between any two steps, limits, what comes to be meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from magnetar.spark.errors import BadOption
from magnetar.spark.options.offsets import decode_offset
from spark_fakes.data_source import Checkpoint, Driver
from spark_fakes.topics import Topics

pytestmark = [pytest.mark.clients, pytest.mark.timeout(60)]

STEPS = ("started", "planned", "read", "committed")
"""Behind which a driver dies."""


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def streaming(topics: Topics, topic: str, **more: str) -> dict[str, str]:
    return {**topics.urls, "topic": topic, "startingOffsets": "earliest", "pollInterval": "10ms", **more}


def die_behind(driver: Driver, step: str) -> None:
    """Another micro-batch, or a part of it."""
    if step != "started":
        assert driver.plan()
        if step != "planned":
            driver.read()
            if step != "read":
                driver.commit()
    driver.die()


@pytest.mark.parametrize("spark_4_0", [False, True], ids=["4.3", "4.0"])
class TestRestarts:
    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("batches_before", [0, 2])
    def test_each_message_once(self, topics: Topics, step: str, batches_before: int, spark_4_0: bool) -> None:
        topic = topics.new("once", partitions=2)
        options = streaming(topics, topic, maxRowsPerTrigger="4")
        for partition in range(2):
            topics.send(f"{topic}-partition-{partition}", numbered(range(partition * 100, partition * 100 + 10)))
        checkpoint = Checkpoint()
        driver = Driver(options, checkpoint, spark_4_0=spark_4_0)
        for _ in range(batches_before):
            assert driver.micro_batch()
        die_behind(driver, step)
        for partition in range(2):
            topics.send(f"{topic}-partition-{partition}", numbered(range(partition * 100 + 10, partition * 100 + 13)))
        # One that dies at once, and one that goes on.
        Driver(options, checkpoint, spark_4_0=spark_4_0).die()
        Driver(options, checkpoint, spark_4_0=spark_4_0).run()
        values = checkpoint.values()
        assert [value for value in values if len(value) < 3] == numbered(range(13))
        assert [value for value in values if len(value) == 3] == numbered(range(100, 113))

    @pytest.mark.parametrize("step", STEPS[1:])
    def test_first_batch_of_a_query_that_began_at_the_end(self, topics: Topics, step: str, spark_4_0: bool) -> None:
        topic = topics.new("latest")
        topics.send(topic, [b"before"])
        checkpoint = Checkpoint()
        options = streaming(topics, topic, startingOffsets="latest")
        driver = Driver(options, checkpoint, spark_4_0=spark_4_0)
        time.sleep(0.02)
        topics.send(topic, numbered(range(5)))
        die_behind(driver, step)
        topics.send(topic, numbered(range(5, 8)))
        # Where it began nobody has kept: Spark asks again, and the answer is another one.
        Driver(options, checkpoint, spark_4_0=spark_4_0).run()
        assert checkpoint.values() == numbered(range(8))

    def test_batches_that_were_planned_are_the_same_again(self, topics: Topics, spark_4_0: bool) -> None:
        topic = topics.new("same")
        topics.send_batches(topic, numbered(range(40)), 10)
        checkpoint = Checkpoint()
        options = streaming(topics, topic, maxRowsPerTrigger="15")
        driver = Driver(options, checkpoint, spark_4_0=spark_4_0)
        assert driver.plan()
        first = driver.read()
        driver.die()
        topics.send_batches(topic, numbered(range(40, 80)), 10)
        driver = Driver(options, checkpoint, spark_4_0=spark_4_0)
        assert driver.plan()
        assert driver.read() == first
        driver.commit()
        driver.run()
        assert checkpoint.values() == numbered(range(80))


class TestLimits:
    def test_rows(self, topics: Topics) -> None:
        topic = topics.new("rows")
        topics.send_batches(topic, numbered(range(100)), 5)
        checkpoint = Checkpoint()
        Driver(streaming(topics, topic, maxRowsPerTrigger="20"), checkpoint).run()
        assert [len(rows) for rows in checkpoint.output.values()] == [20] * 5
        assert checkpoint.values() == numbered(range(100))

    def test_bytes(self, topics: Topics) -> None:
        topic = topics.new("bytes")
        topics.send(topic, [b"x" * 10_000] * 10)
        checkpoint = Checkpoint()
        Driver(streaming(topics, topic, maxBytesPerTrigger="31000"), checkpoint).run()
        assert [len(rows) for rows in checkpoint.output.values()] == [3, 3, 3, 1]

    def test_topics_share_by_backlog(self, topics: Topics) -> None:
        small, large = topics.new("small"), topics.new("large")
        topics.send(small, numbered(range(10)))
        topics.send(large, numbered(range(30)))
        checkpoint = Checkpoint()
        options = streaming(topics, "", maxRowsPerTrigger="8")
        del options["topic"]
        Driver({**options, "topics": f"{small},{large}"}, checkpoint).run()
        counts = [sum(row["__topic"] == small for row in rows) for rows in checkpoint.output.values()]
        assert counts == [2] * 5
        assert [len(rows) for rows in checkpoint.output.values()] == [8] * 5

    def test_available_now(self, topics: Topics) -> None:
        topic = topics.new("now")
        topics.send(topic, numbered(range(10)))
        checkpoint = Checkpoint()
        options = streaming(topics, topic, maxRowsPerTrigger="4")
        driver = Driver(options, checkpoint, available_now=True)
        topics.send(topic, numbered(range(10, 20)))
        driver.run()
        assert checkpoint.values() == numbered(range(10))
        assert [len(rows) for rows in checkpoint.output.values()] == [4, 4, 2]
        driver.die()
        Driver(options, checkpoint, available_now=True).run()
        assert checkpoint.values() == numbered(range(20))

    def test_available_now_at_the_end(self, topics: Topics) -> None:
        topic = topics.new("now")
        topics.send(topic, [b"before"])
        checkpoint = Checkpoint()
        options = streaming(topics, topic, startingOffsets="latest")
        Driver(options, checkpoint, available_now=True).run()
        assert checkpoint.values() == []
        topics.send(topic, [b"after"])
        Driver(options, checkpoint, available_now=True).run()
        assert checkpoint.values() == [b"after"]


class TestDiscovery:
    @pytest.mark.slow
    def test_partition_added(self, topics: Topics) -> None:
        topic = topics.new("grows", partitions=1)
        topics.send(f"{topic}-partition-0", [b"0"])
        checkpoint = Checkpoint()
        driver = Driver(streaming(topics, topic, topicDiscoveryInterval="1s"), checkpoint)
        driver.run()
        topics.admin("POST", f"persistent/{topic.partition('://')[2]}/partitions", 3)
        topics.send(f"{topic}-partition-1", [b"1"])
        topics.send(f"{topic}-partition-2", [b"2", b"3"])
        driver.run_until(4)
        assert sorted(checkpoint.values()) == numbered(range(4))

    @pytest.mark.slow
    @pytest.mark.parametrize("starting", ["earliest", "latest"])
    def test_topic_that_matches(self, topics: Topics, starting: str) -> None:
        topic = topics.new("pattern")
        checkpoint = Checkpoint()
        options = streaming(topics, "", topicDiscoveryInterval="1s", startingOffsets=starting)
        del options["topic"]
        options["topicsPattern"] = f"{topic}.*"
        driver = Driver(options, checkpoint)
        driver.run()
        # All of what came to be later is read.
        topics.send(f"{topic}-more", [b"0", b"1"])
        driver.run_until(2)
        assert {row["__topic"] for row in checkpoint.rows()} == {f"{topic}-more"}

    def test_partition_added_while_no_driver_lives(self, topics: Topics) -> None:
        topic = topics.new("grows", partitions=1)
        topics.send(f"{topic}-partition-0", [b"0"])
        checkpoint = Checkpoint()
        options = streaming(topics, topic)
        driver = Driver(options, checkpoint)
        driver.run()
        driver.die()
        topics.admin("POST", f"persistent/{topic.partition('://')[2]}/partitions", 2)
        topics.send(f"{topic}-partition-1", [b"1"])
        driver = Driver(options, checkpoint)
        assert driver.plan()
        driver.die()
        topics.send(f"{topic}-partition-1", [b"2"])
        Driver(options, checkpoint).run()
        assert checkpoint.values() == numbered(range(3))

    @pytest.mark.slow
    def test_waiting_for_a_topic(self, topics: Topics) -> None:
        topic = topics.new("base") + "-late"
        checkpoint = Checkpoint()
        options = streaming(topics, topic, topicDiscoveryInterval="1s", waitingForNonExistedTopic="true")
        driver = Driver(options, checkpoint)
        driver.run()
        topics.send(topic, [b"0"])
        driver.run_until(1)


class TestDurableCursor:
    @pytest.mark.parametrize("available_now", [False, True])
    @pytest.mark.parametrize("starting", ["earliest", "latest"])
    def test_backlog_goes_away(self, topics: Topics, starting: str, available_now: bool) -> None:
        topic = topics.new("followed")
        topics.send(topic, numbered(range(10)))
        checkpoint = Checkpoint()
        options = streaming(
            topics, topic, predefinedSubscription="follower", startingOffsets=starting, maxRowsPerTrigger="4"
        )
        driver = Driver(options, checkpoint, available_now=available_now)
        assert topics.subscriptions(topic) == {"follower": 10 if starting == "earliest" else 0}
        driver.run()
        if available_now:
            driver.die()
        assert topics.subscriptions(topic) == {"follower": 0}
        # What is sent while nobody reads is backlog, up to where micro-batches are committed.
        topics.send(topic, numbered(range(10, 20)))
        assert topics.subscriptions(topic) == {"follower": 10}
        driver.die()
        driver = Driver(options, checkpoint)
        assert driver.plan()
        driver.read()
        assert topics.subscriptions(topic) == {"follower": 10}
        driver.commit()
        assert driver.plan()
        assert topics.subscriptions(topic) == {"follower": 6}
        driver.run()
        assert topics.subscriptions(topic) == {"follower": 0}
        assert checkpoint.values() == numbered(range(0 if starting == "earliest" else 10, 20))

    def test_a_query_that_begins_anew_moves_nothing_back(self, topics: Topics) -> None:
        topic = topics.new("followed")
        topics.send(topic, numbered(range(10)))
        options = streaming(topics, topic, predefinedSubscription="follower")
        Driver(options, Checkpoint()).run()
        checkpoint = Checkpoint()
        driver = Driver(options, checkpoint)
        assert driver.plan()
        assert topics.subscriptions(topic) == {"follower": 0}
        driver.run()
        assert checkpoint.values() == numbered(range(10))


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"endingOffsets": "latest"}, "endingOffsets and endingTime are for batches: a stream has no end"),
            ({"readCompacted": "true"}, "option readCompacted is for batches"),
            ({"startingOffset": "earliest"}, "startingOffsets"),
            ({"maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger: '0' is not understood; a whole number from 1 on"),
        ],
    )
    def test_refused(self, topics: Topics, given: dict[str, str], text: str) -> None:
        topic = topics.new("options")
        with pytest.raises(BadOption, match=text):
            Driver({**topics.urls, "topic": topic, **given}, Checkpoint())

    def test_a_checkpoint_of_something_else(self, topics: Topics) -> None:
        topic = topics.new("strange")
        checkpoint = Checkpoint(planned=[{"partition": "12"}], committed=1)
        with pytest.raises(BadOption, match="the checkpoint has the offset"):
            Driver(streaming(topics, topic), checkpoint).plan()

    def test_offsets_are_readable(self, topics: Topics) -> None:
        topic = topics.new("readable")
        ids = topics.send(topic, numbered(range(3)))
        checkpoint = Checkpoint()
        Driver(streaming(topics, topic), checkpoint).run()
        assert checkpoint.planned == [{topic: f"{ids[0].ledger_id()}:3"}]
        assert decode_offset(checkpoint.planned[0])[topic] == (ids[0].ledger_id(), 3, 0)

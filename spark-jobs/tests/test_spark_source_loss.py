"""Topics that lose messages, or themselves, under those who read them: exact words, or going on, as users have said."""

from __future__ import annotations

import re
import time

import pulsar
import pytest
from magnetar.spark.errors import DataLoss, TopicMissing
from pyspark.sql.types import StringType, StructType
from spark_fakes.data_source import Checkpoint, Driver, forget_clusters, planned, read, read_planned
from spark_fakes.topics import Topics, wait_until

pytestmark = [pytest.mark.clients, pytest.mark.timeout(60)]


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def streaming(topics: Topics, topic: str, *, fail: bool = True, **more: str) -> dict[str, str]:
    return {
        **topics.urls,
        "topic": topic,
        "startingOffsets": "earliest",
        "pollInterval": "10ms",
        "failOnDataLoss": str(fail).lower(),
        **more,
    }


class Trimmed:
    """A topic of which ten messages were read as far as six of them, in a ledger that is gone now; 10 to 14 came later,
    are gone too, and 15 to 19 are there."""

    def __init__(self, topics: Topics, *, fail: bool, looked_between: bool) -> None:
        self.topic = topics.new("trimmed")
        self.ledgers = [topics.send(self.topic, numbered(0, 10))[0].ledger_id()]
        self.checkpoint = Checkpoint()
        self.driver = Driver(streaming(topics, self.topic, fail=fail, maxRowsPerTrigger="6"), self.checkpoint)
        assert self.driver.micro_batch()
        topics.roll(self.topic)
        self.ledgers.append(topics.send(self.topic, numbered(10, 15))[0].ledger_id())
        topics.roll(self.topic)
        self.ledgers.append(topics.send(self.topic, [b"x"])[0].ledger_id())
        if looked_between:
            wait_until(self.driver.plan)
        topics.roll(self.topic)
        topics.truncate(self.topic)
        self.ledgers.append(topics.send(self.topic, numbered(15, 20))[0].ledger_id())
        assert len(set(self.ledgers)) == 4


class TestTrimmed:
    def test_told(self, topics: Topics) -> None:
        case = Trimmed(topics, fail=True, looked_between=False)
        first, newest = case.ledgers[0], case.ledgers[-1]
        # One that has seen nothing of the topic yet.
        case.driver.die()
        driver = Driver(streaming(topics, case.topic), case.checkpoint)
        with pytest.raises(DataLoss) as caught:
            driver.plan()
        assert str(caught.value) == (
            f"{case.topic}: entries after {first}:5 of ledger {first}, if any, and of others behind it before "
            f"{newest}:0, if any, can no longer be read (how many cannot be known: the query has not seen where ledger "
            f"{first} ended). The topic now begins at {newest}:0: retention has trimmed what is older before the query "
            "came to it, or the topic was deleted and made anew (then none of its ledgers is older). The "
            "option predefinedSubscription keeps what the query has not read yet, and so does a longer retention of "
            f"the namespace. With failOnDataLoss=false the query goes on from {newest}:0."
        )
        # Nothing has gone on meanwhile: the same again.
        driver.die()
        driver = Driver(streaming(topics, case.topic), case.checkpoint)
        with pytest.raises(DataLoss, match=f"entries after {first}:5 of ledger {first}, if any"):
            driver.run()

    def test_what_was_seen_is_counted(self, topics: Topics) -> None:
        case = Trimmed(topics, fail=True, looked_between=True)
        first, second, third, newest = case.ledgers
        # The planned micro-batch itself is gone: its tasks say so, and so does whoever plans it again.
        told = (
            f"{case.topic}: 4 entries are missing, {first}:6 to {first}:9 (the topic does not have this ledger any more"
        )
        with pytest.raises(DataLoss, match=re.escape(told)):
            case.driver.read()
        case.driver.die()
        driver = Driver(streaming(topics, case.topic), case.checkpoint)
        with pytest.raises(DataLoss, match="can no longer be read"):
            driver.plan()
        assert second < third < newest

    @pytest.mark.parametrize("looked_between", [False, True])
    def test_gone_on(self, topics: Topics, looked_between: bool, caplog: pytest.LogCaptureFixture) -> None:
        case = Trimmed(topics, fail=False, looked_between=looked_between)
        if looked_between:
            assert case.driver.read() == []
            case.driver.commit()
        case.driver.run_until(11)
        assert case.checkpoint.values() == [*numbered(0, 6), *numbered(15, 20)]
        assert "failOnDataLoss is false, so reading goes on" in caplog.text

    def test_everything_was_read_before(self, topics: Topics) -> None:
        topic = topics.new("read")
        topics.send(topic, numbered(0, 5))
        checkpoint = Checkpoint()
        driver = Driver(streaming(topics, topic), checkpoint)
        driver.run()
        topics.roll(topic)
        wait_until(lambda: driver.run() >= 0 and checkpoint.planned[-1] != checkpoint.planned[0])
        topics.truncate(topic)
        topics.send(topic, numbered(5, 8))
        driver.run_until(8)
        assert checkpoint.values() == numbered(0, 8)

    def test_batch_between_plan_and_read(self, topics: Topics) -> None:
        topic = topics.new("batch")
        topics.send(topic, numbered(0, 5))
        topics.roll(topic)
        topics.send(topic, [b"5"])
        reader, partitions = planned({**topics.urls, "topic": topic})
        going_on, same_partitions = planned({**topics.urls, "topic": topic, "failOnDataLoss": "false"})
        topics.roll(topic)
        topics.truncate(topic)
        topics.send(topic, [b"6"])
        with pytest.raises(DataLoss, match=f"{topic}.*With failOnDataLoss=false the query goes on without them"):
            read_planned(reader, partitions)
        assert read_planned(going_on, same_partitions) == []

    def test_batch_from_a_place_that_is_gone(self, topics: Topics) -> None:
        topic = topics.new("gone")
        first = topics.send(topic, numbered(0, 5))[2]
        topics.roll(topic)
        topics.truncate(topic)
        topics.send(topic, [b"5"])
        options = {
            **topics.urls,
            "topic": topic,
            "startingOffsets": f'{{"{topic}": "{first.ledger_id()}:{first.entry_id()}"}}',
        }
        with pytest.raises(DataLoss, match="The topic now begins at"):
            read(options)
        assert [row["value"] for row in read({**options, "failOnDataLoss": "false"})] == [b"5"]
        # From earliest on, nothing of the past is missed.
        assert len(read({**topics.urls, "topic": topic})) == 1


class TestTrimmedWhenRead:
    """What was read to its end in a ledger that was in use, and is trimmed, nobody having looked."""

    def test_nothing_came_since(self, topics: Topics) -> None:
        topic = topics.new("idle")
        topics.send(topic, numbered(0, 5))
        checkpoint = Checkpoint()
        driver = Driver(streaming(topics, topic), checkpoint)
        driver.run()
        driver.die()
        topics.roll(topic)
        topics.truncate(topic)
        driver = Driver(streaming(topics, topic), checkpoint)
        driver.run()
        topics.send(topic, numbered(5, 8))
        driver.run_until(8)
        assert checkpoint.values() == numbered(0, 8)

    def test_nothing_came_since_but_before(self, topics: Topics) -> None:
        topic = topics.new("idle")
        first = topics.send(topic, numbered(0, 5))[0].ledger_id()
        checkpoint = Checkpoint()
        driver = Driver(streaming(topics, topic), checkpoint)
        driver.run()
        driver.die()
        topics.send(topic, numbered(5, 8))
        topics.roll(topic)
        topics.truncate(topic)
        with pytest.raises(DataLoss, match=rf"entries {first}:5 to {first}:7 can no longer be read \(3 in all\)"):
            Driver(streaming(topics, topic), checkpoint).run()

    def test_empty_ledgers_are_dropped(self, topics: Topics) -> None:
        topic = topics.new("empty")
        topics.send(topic, numbered(0, 5))
        topics.roll(topic)
        checkpoint = Checkpoint()
        driver = Driver(streaming(topics, topic), checkpoint)
        driver.run_until(5)
        driver.run()
        driver.die()
        topics.roll(topic)
        topics.roll(topic)
        topics.send(topic, numbered(5, 8))
        driver = Driver(streaming(topics, topic), checkpoint)
        driver.run_until(8)
        assert checkpoint.values() == numbered(0, 8)


class TestDeleted:
    @pytest.mark.parametrize("fail", [True, False])
    def test_while_streaming(self, topics: Topics, fail: bool) -> None:
        kept, deleted = topics.new("kept"), topics.new("deleted")
        for topic in (kept, deleted):
            topics.send(topic, numbered(0, 3))
        options = streaming(topics, "", fail=fail)
        del options["topic"]
        options["topics"] = f"{kept},{deleted}"
        checkpoint = Checkpoint()
        driver = Driver(options, checkpoint)
        driver.run()
        topics.delete(deleted)
        topics.send(kept, numbered(3, 5))
        if fail:
            with pytest.raises(
                DataLoss, match=f"{deleted}.*The topic was deleted: by an administrator, or as inactive"
            ):
                driver.run_until(100)
            return
        driver.run_until(8)
        assert [row["value"] for row in checkpoint.rows() if row["__topic"] == kept] == numbered(0, 5)
        assert set(checkpoint.planned[-1]) == {kept}

    @pytest.mark.slow
    @pytest.mark.parametrize("fail", [True, False])
    def test_what_is_named_is_looked_for_again(self, topics: Topics, fail: bool) -> None:
        kept, deleted = topics.new("kept"), topics.new("deleted")
        for topic in (kept, deleted):
            topics.send(topic, numbered(0, 3))
        options = streaming(topics, "", fail=fail, topicDiscoveryInterval="1s")
        del options["topic"]
        options["topics"] = f"{kept},{deleted}"
        checkpoint = Checkpoint()
        driver = Driver(options, checkpoint)
        driver.run()
        topics.delete(deleted)
        time.sleep(1.1)
        if fail:
            with pytest.raises(DataLoss, match=f"{deleted}.*The topic was deleted"):
                driver.run_until(100)
            return
        wait_until(lambda: driver.run() >= 0 and set(checkpoint.planned[-1]) == {kept})
        topics.send(deleted, [b"anew"])
        driver.run_until(7)
        assert checkpoint.values()[-1] == b"anew"

    @pytest.mark.parametrize("spark_4_0", [False, True])
    @pytest.mark.parametrize("given", ["schema", "rawValues"])
    def test_while_no_driver_lives(
        self, topics: Topics, given: str, spark_4_0: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = topics.new("deleted")
        topics.send(topic, ["a", "b"], pulsar.schema.StringSchema())
        raw = given == "rawValues"
        columns = StructType().add("value", StringType()) if given == "schema" else None
        options = streaming(topics, topic, fail=False, rawValues=str(raw).lower(), topicDiscoveryInterval="1s")
        checkpoint = Checkpoint()
        driver = Driver(options, checkpoint, schema=columns, spark_4_0=spark_4_0)
        driver.run()
        place = checkpoint.planned[-1][topic]
        driver.die()
        topics.delete(topic)
        with pytest.raises(DataLoss, match=rf"{topic}: entries from {place} up to .*The topic was deleted"):
            Driver({**options, "failOnDataLoss": "true"}, checkpoint, schema=columns, spark_4_0=spark_4_0).plan()
        for _ in range(2):
            driver = Driver(options, checkpoint, schema=columns, spark_4_0=spark_4_0)
            driver.run()
            driver.die()
        assert checkpoint.planned[-1] == {}
        assert f"{topic}: entries from {place} up to" in caplog.text
        driver = Driver(options, checkpoint, schema=columns, spark_4_0=spark_4_0)
        driver.run()
        topics.send(topic, ["c"], pulsar.schema.StringSchema())
        driver.run_until(3)
        assert checkpoint.values() == ([b"a", b"b", b"c"] if raw else ["a", "b", "c"])

    def test_partitions_with_a_subscription_while_no_driver_lives(self, topics: Topics) -> None:
        topic = topics.new("deleted", partitions=2)
        topics.send(topic, numbered(0, 3))
        options = streaming(topics, topic, fail=False, rawValues="true", predefinedSubscription="spark")
        checkpoint = Checkpoint()
        driver = Driver(options, checkpoint)
        driver.run()
        driver.die()
        topics.admin("DELETE", f"{topic.replace('://', '/')}/partitions?force=true")
        Driver(options, checkpoint).run()
        forget_clusters()
        # Nobody has made it again by looking for it, or by moving its subscription.
        assert checkpoint.planned[-1] == {}
        assert not [name for name in topics.admin("GET", "persistent/public/spark-source") if topic in name]
        topics.admin("PUT", f"{topic.replace('://', '/')}/partitions", 3)
        topics.send(topic, numbered(3, 9))
        Driver(options, checkpoint).run_until(9)
        assert sorted(checkpoint.values()) == numbered(0, 9)
        assert len(checkpoint.planned[-1]) == 3

    @pytest.mark.parametrize("fail", [True, False])
    def test_one_of_two_while_no_driver_lives(self, topics: Topics, fail: bool) -> None:
        kept, deleted = topics.new("kept"), topics.new("deleted")
        for topic in (kept, deleted):
            topics.send(topic, ["a", "b"], pulsar.schema.StringSchema())
        options = streaming(topics, "", fail=fail)
        del options["topic"]
        options["topics"] = f"{kept},{deleted}"
        checkpoint = Checkpoint()
        driver = Driver(options, checkpoint)
        driver.run()
        driver.die()
        topics.delete(deleted)
        topics.send(kept, ["c"], pulsar.schema.StringSchema())
        driver = Driver(options, checkpoint)
        if fail:
            with pytest.raises(DataLoss, match=f"{deleted}.*The topic was deleted"):
                driver.run()
            return
        driver.run_until(5)
        assert checkpoint.values()[-1] == "c"
        assert set(checkpoint.planned[-1]) == {kept}

    def test_nothing_tells_columns(self, topics: Topics) -> None:
        topic = topics.new("deleted")
        topics.send(topic, [b"a"])
        options = streaming(topics, topic, fail=False)
        checkpoint = Checkpoint()
        Driver(options, checkpoint).run()
        forget_clusters()
        topics.delete(topic)
        with pytest.raises(TopicMissing, match=rf"there is no topic {topic}.*needs them from you to go on: \.schema"):
            Driver(options, checkpoint)

    def test_named_and_never_there(self, topics: Topics) -> None:
        missing = topics.new("there") + "-not"
        with pytest.raises(TopicMissing, match=re.escape(f"there is no topic {missing}")):
            read({**topics.urls, "topic": missing})
        with pytest.raises(TopicMissing, match=re.escape(f"there is no topic {missing}")):
            Driver(streaming(topics, missing), Checkpoint())
        for fail in (True, False):
            driver = Driver(streaming(topics, missing, fail=fail, rawValues="true"), Checkpoint())
            with pytest.raises(TopicMissing, match=re.escape(f"there is no topic {missing}")):
                driver.plan()
        with pytest.raises(TopicMissing, match="there is no topic that matches"):
            read({**topics.urls, "topicsPattern": f"{missing}.*"})
        assert not [name for name in topics.admin("GET", "persistent/public/spark-source") if name == missing]

    def test_between_plan_and_read(self, topics: Topics) -> None:
        topic = topics.new("deleted")
        topics.send(topic, numbered(0, 3))
        reader, partitions = planned({**topics.urls, "topic": topic})
        topics.delete(topic)
        with pytest.raises(TopicMissing, match=topic):
            read_planned(reader, partitions)

    @pytest.mark.parametrize("fail", [True, False])
    def test_made_anew(self, topics: Topics, fail: bool) -> None:
        topic = topics.new("anew")
        topics.send(topic, numbered(0, 5))
        checkpoint = Checkpoint()
        driver = Driver(streaming(topics, topic, fail=fail, maxRowsPerTrigger="3"), checkpoint)
        driver.micro_batch()
        topics.delete(topic)
        topics.send(topic, numbered(10, 12))
        if fail:
            with pytest.raises(DataLoss, match=r"the topic was (deleted and )?made anew"):
                driver.run_until(100)
        else:
            driver.run_until(5)
            assert checkpoint.values() == [*numbered(0, 3), *numbered(10, 12)]


class TestCutOff:
    """Places that are beyond the topic's end: of a cluster that was set up anew."""

    @pytest.mark.parametrize("die", [False, True])
    def test_gone_on(self, topics: Topics, die: bool) -> None:
        topic = topics.new("cut")
        ledger = topics.send(topic, numbered(0, 5))[0].ledger_id()
        checkpoint = Checkpoint(planned=[{topic: f"{ledger + 1000}:7"}], committed=1)
        with pytest.raises(DataLoss, match=f"has no ledger {ledger + 1000}: it was truncated"):
            Driver(streaming(topics, topic), checkpoint).plan()
        driver = Driver(streaming(topics, topic, fail=False), checkpoint)
        assert driver.plan()
        if die:
            driver.die()
            driver = Driver(streaming(topics, topic, fail=False), checkpoint)
        driver.run()
        topics.send(topic, numbered(5, 7))
        driver.run_until(7)
        assert checkpoint.values() == numbered(0, 7)

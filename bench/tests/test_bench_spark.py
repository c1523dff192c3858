"""What the bench of Spark computes and puts together without a cluster."""

from pathlib import Path

import pytest
from magnetar.wire.pulsar.batch import split_batch
from magnetar.wire.pulsar.metadata import full_metadata

from bench.spark import scans
from bench.spark.filling import Payloads, Rows, entries_of
from bench.spark.kept import Kept
from bench.spark.scans import Sample


class SomeWriter:
    name = "someone"


def test_batches_have_the_rows_they_should() -> None:
    rows = Rows(count=25, size_bytes=100, per_batch=10)
    entries = list(entries_of(rows, range(25), Payloads(100), SomeWriter()))  # type: ignore[arg-type] # Only its name.
    assert [count for _, count in entries] == [10, 10, 5]
    messages = [each for entry, _ in entries for each in split_batch(entry)]
    assert [int(payload[:10]) for _, payload in messages] == list(range(25))
    assert {len(payload) for _, payload in messages} == {100}
    assert messages[7][0].partition_key == "key-0007"


def test_messages_on_their_own_have_keys_too() -> None:
    rows = Rows(count=3, size_bytes=100, per_batch=1)
    entries = list(entries_of(rows, range(3), Payloads(100), SomeWriter()))  # type: ignore[arg-type] # Only its name.
    assert [full_metadata(entry).partition_key for entry, _ in entries] == ["key-0000", "key-0001", "key-0002"]


def test_topics_are_whole_batches() -> None:
    for shape in scans.SHAPES:
        rows = shape.rows(0.3)
        assert rows.count % shape.per_batch == 0
        assert rows.count * rows.size_bytes == pytest.approx(0.3e9 * shape.share, rel=0.01)


def test_figures_are_per_million_rows_and_per_second_of_cpu() -> None:
    rows = Rows(count=2_000_000, size_bytes=100, per_batch=10)
    sample = Sample(
        side=scans.DIRECT, query="value", seconds=4.0, spark_cpu_seconds=5.0, brokers_cpu_seconds=0.02,
        bookies_cpu_seconds=1.0,
    )  # fmt: skip
    found = scans.figures([sample], rows)[scans.DIRECT]
    assert found["value rows/s"] == 500_000
    assert found["value MB/s"] == 50
    assert found["value MB/s of a core"] == 40
    assert found["value Spark CPU"] == 2.5
    assert found["value all CPU"] == pytest.approx(3.01)
    assert found["value broker percent"] == pytest.approx(0.5)
    assert set(found) <= {metric.key for metric in scans.metrics()}


def test_sides_take_turns() -> None:
    steps = scans.steps(2)
    assert steps[: len(steps) // 2] == steps[len(steps) // 2 :]
    assert [side for query, side in steps[1:4]] == [scans.DIRECT, scans.BROKERS, scans.JVM]


def test_a_run_goes_on_only_where_the_same_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "unfinished.json"
    Kept({"rounds": 1}, path).put("scans", {"direct": {"rate": 1.0}}, {"cores": 2})
    assert Kept({"rounds": 1}, path).get("scans") == ({"direct": {"rate": 1.0}}, {"cores": 2})
    assert Kept({"rounds": 2}, path).get("scans") is None
    Kept({"rounds": 1}, path).forget()
    assert not path.exists()

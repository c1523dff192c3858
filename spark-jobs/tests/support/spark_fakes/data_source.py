"""The data source called as Spark calls it, without Spark: every process of Spark's has a copy made by pickling.

Spark 4.3's order of calls, and 4.0's where it says so; what a killed driver leaves is its checkpoint and its output."""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from magnetar.spark import runtime
from magnetar.spark.cluster import close_clusters
from magnetar.spark.reading.batch_reader import PUSHDOWN_WORKER, PushingBatchReader
from magnetar.spark.source import PulsarDataSource
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

T = TypeVar("T")

NOTICED_SECONDS_MAX: Final = 20.0
"""How long a stream may take to see what is new in a topic."""

Row: TypeAlias = dict[str, Any]
Offset: TypeAlias = dict[str, str]


def across(thing: T) -> T:
    """A copy made by pickling, which is what another process gets."""
    found: T = pickle.loads(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]
    return found


def source_of(options: Mapping[str, str]) -> PulsarDataSource:
    """The data source with these options, whose names may be written in any case, as Spark makes it."""
    given: Any = CaseInsensitiveDict(options)
    return PulsarDataSource(given)


def planned(
    options: Mapping[str, str], schema: StructType | None = None, filters: Sequence[Any] = ()
) -> tuple[DataSourceReader, list[InputPartition]]:
    """A batch up to its tasks; `schema` is what a user gives, `filters` are given where Spark pushes them down. Those
    that come back are none of the caller's business: rows may be more than fit them."""
    source = source_of({**options, "pushFilters": "true"} if filters else options)
    wanted = schema if schema is not None else source.schema()
    with _pushdown_worker(bool(filters)):
        reader = across(source).reader(across(wanted))
    if isinstance(reader, PushingBatchReader):
        list(reader.pushFilters(filters))
    return reader, list(reader.partitions())


def read(options: Mapping[str, str], schema: StructType | None = None, filters: Sequence[Any] = ()) -> list[Row]:
    """The rows of a batch."""
    return read_planned(*planned(options, schema, filters))


def read_planned(reader: Any, partitions: Sequence[InputPartition]) -> list[Row]:
    """The rows of these tasks, each as an executor reads them."""
    executor = across(reader)
    return [row for partition in partitions for row in _rows(executor, across(partition))]


@dataclass(slots=True)
class Checkpoint:
    """What outlives a driver: Spark's checkpoint, and a sink that replaces what an earlier attempt at a micro-batch has
    put out, as Spark's files do."""

    planned: list[Offset] = field(default_factory=list)
    """The log of offsets: where each micro-batch ends."""
    committed: int = 0
    """Micro-batches in the log of commits."""
    output: dict[int, list[Row]] = field(default_factory=dict)
    """By micro-batch."""

    def rows(self) -> list[Row]:
        """All that was put out, micro-batch by micro-batch."""
        return [row for number in sorted(self.output) for row in self.output[number]]

    def values(self) -> list[Any]:
        """The column `value` of `rows`."""
        return [row["value"] for row in self.rows()]


class Driver:
    """One life of a streaming query: from its start to where the test lets it die, which is between any two calls."""

    def __init__(
        self,
        options: Mapping[str, str],
        checkpoint: Checkpoint,
        *,
        schema: StructType | None = None,
        available_now: bool = False,
        spark_4_0: bool = False,
    ) -> None:
        """`schema` is what a user gives."""
        source = source_of(options)
        schema = schema if schema is not None else source.schema()
        self._source = across(source)
        self._schema = across(schema)
        self._reader = self._stream_reader()
        self._checkpoint = checkpoint
        self._spark_4_0 = spark_4_0
        self.partitions: list[InputPartition] = []
        """The partitions of the micro-batch that was planned last."""
        if available_now and not spark_4_0:
            self._reader.prepareForTriggerAvailableNow()
        if not spark_4_0:
            self._reader.getDefaultReadLimit()
        self._initial = self._logged(self._reader.initialOffset())
        if spark_4_0 and checkpoint.planned and checkpoint.committed == len(checkpoint.planned):
            # It learns where it is by planning what is done already.
            self._reader.partitions(checkpoint.planned[-1], checkpoint.planned[-1])

    def plan(self) -> bool:
        """Log where the next micro-batch ends, tell what is processed, make its tasks. False: there is nothing new."""
        log = self._checkpoint.planned
        number = self._checkpoint.committed
        if number == len(log):
            end = self._latest(log[-1] if log else self._initial)
            if log and end == log[-1]:
                return False
            log.append(end)
            if number:
                self._reader.commit(log[number - 1])
        # Asked once more for the first one.
        start = log[number - 1] if number else self._logged(self._reader.initialOffset())
        self.partitions = self._reader.partitions(start, log[number]) if start != log[number] else []
        return True

    def read(self) -> list[Row]:
        """Run the planned tasks: the micro-batch's output is there after this."""
        rows = read_planned(self._stream_reader(), self.partitions)
        self._checkpoint.output[self._checkpoint.committed] = rows
        return rows

    def commit(self) -> None:
        """The micro-batch is in the log of commits."""
        self._checkpoint.committed += 1

    def micro_batch(self) -> bool:
        """One of them from beginning to end. False: there was nothing new."""
        if not self.plan():
            return False
        self.read()
        self.commit()
        return True

    def run(self, batches_max: int = 100) -> int:
        """Until there is nothing new. Returns how many micro-batches that took."""
        for number in range(batches_max):
            if not self.micro_batch():
                return number
        raise AssertionError(f"still something new after {batches_max} micro-batches")

    def run_until(self, count: int) -> None:
        """Until so many rows were put out in all: what is new is seen after a while. Then there are no more."""
        give_up_at = time.monotonic() + NOTICED_SECONDS_MAX
        while sum(map(len, self._checkpoint.output.values())) < count and time.monotonic() < give_up_at:
            self.run()
            time.sleep(0.01)
        assert sum(map(len, self._checkpoint.output.values())) == count

    def die(self) -> None:
        """The driver's process and its executors' are gone."""
        self._reader.stop()
        forget_clusters()

    def _stream_reader(self) -> Any:
        return self._source.streamReader(self._schema)

    def _latest(self, start: Offset) -> Offset:
        if self._spark_4_0:
            return self._logged(self._reader.latestOffset())
        end = self._logged(self._reader.latestOffset(start, self._reader.getDefaultReadLimit()))
        self._reader.reportLatestOffset()
        return end

    @staticmethod
    def _logged(offset: Any) -> Offset:
        found: Offset = json.loads(json.dumps(offset))
        return found


def forget_clusters() -> None:
    """Close what this process has open, as if it were another one."""
    runtime.run(close_clusters())


def _rows(executor: Any, partition: InputPartition) -> Iterator[Row]:
    for batch in executor.read(partition):
        yield from batch.to_pylist()


@contextmanager
def _pushdown_worker(pushing: bool) -> Iterator[None]:
    if pushing and PUSHDOWN_WORKER not in sys.modules:
        sys.modules[PUSHDOWN_WORKER] = sys
        try:
            yield
        finally:
            del sys.modules[PUSHDOWN_WORKER]
    else:
        yield

"""Streams: one long-lived planner in the driver says how far each micro-batch goes; executors read as for batches.

Spark (4.0 to 4.3) calls the methods of one reader from one process that lives as long as the query, and pickles another
reader for each micro-batch, of which it uses `read` alone. It says goodbye in no way: the process is killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from magnetar.spark import runtime
from magnetar.spark.options.reading import SourceOptions
from magnetar.spark.reading.batch_reader import SlicePartition, read_task
from magnetar.spark.reading.stream_planner import StreamPlanner
from magnetar.spark.reading.table import Table
from magnetar.spark.shown_errors import shown_plainly
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

try:  # From Spark 4.2 on.
    from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
except ImportError:

    class ReadAllAvailable:  # type: ignore[no-redef] # Spark 4.0 and 4.1 ask for no limits.
        """Stands in for Spark's own."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef] # Spark 4.0 and 4.1 never look for it.
        """Stands in for Spark's own."""


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream's reader. Offsets are `{"persistent://…": "ledger:entry"}`, the first message not read yet."""

    def __init__(self, options: SourceOptions, schema: StructType, table: Table | None) -> None:
        self._options = options
        self._schema = schema
        self._table = table
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's names from here on.
        """Where a query without a checkpoint begins. Asked twice, it is the same."""
        with shown_plainly():
            return runtime.run(self._planning().initial())

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, str]:  # noqa: N802
        """How far the next micro-batch goes. `start` comes from Spark 4.2 on; before, it goes on from the last one.

        Limits are our own options: whatever Spark hands back in `limit` is what we said."""
        with shown_plainly():
            return runtime.run(self._planning().latest(start))

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        """Where the topics end, for the query's progress; as it was last seen."""
        return self._planning().seen_ends()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Everything: how much a micro-batch has is decided by `latestOffset`, in rows and bytes at once."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From here on nothing is read that comes later."""
        with shown_plainly():
            runtime.run(self._planning().stop_at_present())

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """The tasks of one micro-batch; the same after a restart as far as the topics still have it."""
        with shown_plainly():
            return list(map(SlicePartition, runtime.run(self._planning().tasks(start, end))))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, on an executor."""
        yield from read_task(partition)

    def commit(self, end: dict[str, str]) -> None:
        """Everything before `end` is processed: said when the next micro-batch is planned."""
        with shown_plainly():
            runtime.run(self._planning().processed(end))

    def stop(self) -> None:
        """After an error of ours. Nothing has to be said to anybody."""
        planner, self._planner = self._planner, None
        if planner is not None:
            runtime.run(planner.close())

    def _planning(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options, self._schema, self._table)
        return self._planner

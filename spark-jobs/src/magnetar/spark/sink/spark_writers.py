"""Spark's side of writing: batch writes and streams. The only part of the sink that imports pyspark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyspark.sql.datasource
from magnetar.spark.errors import SinkRefused
from magnetar.spark.shown_errors import shown_plainly
from magnetar.spark.sink.options import SinkOptions, parse_sink_options
from magnetar.spark.sink.writing import TaskIdentity, TaskWriter, WritePlan, prepare
from magnetar.spark.worker_memory import settle_worker
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of the tasks of a stream; the query id is that of the checkpoint, also after a restart."""

_ArrowStreamWriter: Any = getattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter", None)
if _ArrowStreamWriter is None:
    # Spark 4.0 has none, and gives record batches to whatever is a DataSourceArrowWriter, writers of streams too.
    _ArrowStreamWriter = type("_ArrowStreamWriter", (DataSourceStreamWriter, DataSourceArrowWriter), {})


@dataclass
class RowsWritten(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int


class PulsarBatchWriter(DataSourceArrowWriter):
    """`df.write.format("pulsar")`. Made once for a write, pickled for its tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Checks options, columns and topic. Raises `SparkSourceError`s."""
        with shown_plainly():
            if overwrite:
                raise SinkRefused("mode overwrite: messages of a topic cannot be replaced; use mode append")
            parsed = parse_sink_options(options)
            self._query = f"write-{parsed.write_id}" if parsed.write_id else str(uuid.uuid4())
            self._plan = prepare(parsed, _arrow_schema(schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """One Spark partition, on an executor."""
        with shown_plainly():
            context = TaskContext.get()
            assert context is not None
            identity = TaskIdentity(query=self._query, batch_id=0, spark_partition=context.partitionId())
            return _written(self._plan, identity, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: what is stored is stored."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: what is stored cannot be taken back."""


class PulsarStreamWriter(_ArrowStreamWriter):  # type: ignore[misc] # Its base depends on Spark's version.
    """`df.writeStream.format("pulsar")`. Made anew for each micro-batch, and once more to commit it."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, complete: bool) -> None:
        """Checks options, columns and topic. Raises `SparkSourceError`s. `complete`: of the stream's output mode."""
        with shown_plainly():
            if complete:
                raise SinkRefused(
                    "output mode complete: messages of a topic cannot be replaced; use outputMode append or update"
                )
            parsed = parse_sink_options(options)
            if parsed.write_id:
                raise SinkRefused("option writeId is for batch writes: a stream goes by its checkpoint. Leave it out")
            self._plan = prepare(parsed, _arrow_schema(schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """One Spark partition of one micro-batch, on an executor."""
        with shown_plainly():
            return _written(self._plan, _stream_identity(self._plan.options), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: what is stored is stored."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: when the batch runs again, brokers drop what they have of it."""


def _written(plan: WritePlan, identity: TaskIdentity, rows: Iterator[pa.RecordBatch]) -> RowsWritten:
    written = RowsWritten(TaskWriter(plan, identity).write(rows))
    settle_worker()
    return written


def _stream_identity(options: SinkOptions) -> TaskIdentity:
    context = TaskContext.get()
    assert context is not None
    query, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query or not batch_id:
        if options.exactly_once:
            raise SinkRefused(
                "this Spark does not tell its tasks which query and micro-batch they are of, which exactly once needs: "
                "set the option deliveryGuarantee=at-least-once"
            )
        query, batch_id = str(uuid.uuid4()), "0"
    return TaskIdentity(query=query, batch_id=int(batch_id), spark_partition=context.partitionId())


def _arrow_schema(schema: StructType) -> pa.Schema:
    make: Callable[..., pa.Schema] = to_arrow_schema
    try:
        return make(schema, timezone="UTC")
    except TypeError:  # Before Spark 4.3.
        return make(schema)

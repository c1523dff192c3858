"""The data source `pulsar`, as Spark finds it: batches and streams of topics, in both directions.

Found by Spark itself where this package is installed beside it, or registered with
`spark.dataSource.register(PulsarDataSource)`. Making one asks nothing of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from magnetar.spark.reading.table import Table
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

NAME: Final = "pulsar"


class PulsarDataSource(DataSource):
    """What is imported by each method is what needs Arrow: without it, Spark would not even find the name."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._table: Table | None = None

    @classmethod
    def name(cls) -> str:
        """The name of `format("pulsar")`."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the selected topics, by the registry. What is learnt here goes along to the reader."""
        from magnetar.spark.reading.describing import described

        self._table, schema = described(self.options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader behind `spark.read`. A schema that the user gave is a choice of columns. Raises
        `SparkSourceError`s."""
        from magnetar.spark.options.reading import parse_source_options
        from magnetar.spark.reading.batch_reader import batch_reader
        from magnetar.spark.shown_errors import shown_plainly

        with shown_plainly():
            return batch_reader(parse_source_options(self.options), schema, self._table)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names
        """The reader behind `spark.readStream`. Raises `SparkSourceError`s."""
        from magnetar.spark.options.reading import parse_source_options
        from magnetar.spark.reading.stream_reader import PulsarStreamReader
        from magnetar.spark.shown_errors import shown_plainly

        with shown_plainly():
            return PulsarStreamReader(parse_source_options(self.options), schema, self._table)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer behind `df.write`. Raises `SparkSourceError`s."""
        from magnetar.spark.sink.spark_writers import PulsarBatchWriter

        return PulsarBatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """The writer behind `df.writeStream`. Raises `SparkSourceError`s."""
        from magnetar.spark.sink.spark_writers import PulsarStreamWriter

        return PulsarStreamWriter(self.options, schema, complete=overwrite)

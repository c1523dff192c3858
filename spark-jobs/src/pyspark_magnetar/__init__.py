"""Spark looks for data sources in modules whose names begin with `pyspark_` and takes their `DefaultSource`.

Nothing here may fail to import, as Spark then only says that there is no such data source: what needs Arrow is imported
when a table is read or written."""

from magnetar.spark.source import PulsarDataSource as DefaultSource

__all__ = ["DefaultSource"]

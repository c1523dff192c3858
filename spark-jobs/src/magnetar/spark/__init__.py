"""Pulsar topics in Apache Spark: the data source `pulsar`, and jobs that are built on it."""

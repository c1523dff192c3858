"""A Spark in this process for tests of jobs, small and soon there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
}


@contextmanager
def job_session(name: str, warehouse: Path) -> Iterator[SparkSession]:
    """Two tasks at a time; stopped afterwards."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName(name)
    for setting, value in {**SETTINGS, "spark.sql.warehouse.dir": str(warehouse)}.items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    yield session
    session.stop()

"""Which reader a batch has."""

from __future__ import annotations

import sys

import pytest
from magnetar.spark.options.reading import parse_source_options
from magnetar.spark.reading.batch_reader import PUSHDOWN_WORKER, PushingBatchReader, batch_reader
from pyspark.sql.types import StructType


@pytest.mark.parametrize("asked", ["true", "false", None])
@pytest.mark.parametrize("planned_with_filters", [True, False])
def test_filters_are_taken_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, planned_with_filters: bool
) -> None:
    """Spark would read what one query has left for the next query of the same data frame, too."""
    if planned_with_filters:
        monkeypatch.setitem(sys.modules, PUSHDOWN_WORKER, sys)
    else:
        monkeypatch.delitem(sys.modules, PUSHDOWN_WORKER, raising=False)
    given = {"service.url": "pulsar://h:6650", "topic": "t"} | ({} if asked is None else {"pushFilters": asked})
    reader = batch_reader(parse_source_options(given), StructType(), None)
    assert isinstance(reader, PushingBatchReader) == (asked == "true" and planned_with_filters)

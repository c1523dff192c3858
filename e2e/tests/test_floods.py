"""A tenth of `make floods`: memory stays bounded and a stock client is served. The pace is for the long form."""

from __future__ import annotations

import pytest

from e2e.floods.run import QUICK, RSS_BYTES_MAX, floods


@pytest.mark.slow
def test_a_stock_client_is_served_beside_a_flood() -> None:
    (outcome,) = floods(QUICK, topics=500, attempts=1, other_first=False)
    assert outcome.rss_peak_bytes < RSS_BYTES_MAX // 2

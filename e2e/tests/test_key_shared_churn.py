"""Key_Shared's order while stock consumers come and go: what counts as a mistake, and a short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.local.key_shared_churn import Seen, churn, new_server, verdict


def seen(*deliveries: tuple[str, int]) -> Seen:
    found = Seen()
    for key, number in deliveries:
        found.take("one", key, number)
    return found


def test_what_comes_again_is_no_mistake() -> None:
    found = seen(("a", 0), ("a", 1), ("b", 0), ("a", 0), ("a", 1), ("a", 2))
    assert verdict(found, 4) == []
    assert (found.messages, found.deliveries) == (4, 6)


def test_what_comes_first_behind_a_later_one_is_a_mistake() -> None:
    (problem,) = verdict(seen(("a", 0), ("a", 2), ("b", 1), ("a", 1), ("b", 0)), 5)
    assert problem == ("2 first deliveries out of order: one got 1 of a first after 2; one got 0 of b first after 1")


def test_what_never_comes_is_a_mistake() -> None:
    assert verdict(seen(("a", 0)), 3) == ["2 of 3 messages never came"]


@pytest.mark.clients
@pytest.mark.slow
@pytest.mark.parametrize("ranges", [False, True])
def test_order_per_key_with_stock_consumers(tmp_path: Path, ranges: bool) -> None:
    server = new_server("magnetar", tmp_path, ranges=ranges)
    server.start()
    try:
        found, sent = churn(server.service_url, 4.0, 5)
    finally:
        server.stop()
    assert sent > 1_000
    assert verdict(found, sent) == []

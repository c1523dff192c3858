"""A bookie hangs or dies under load: publishing goes on with the others, everything stays readable, and the bookie may
come back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.faults.bookies import READ_TIMEOUT_SECONDS, BookieProcess, BrokerOnBookies
from e2e.faults.support import Publisher, assert_kept, client_of, new_publisher, read_all

TOPIC = "persistent://public/default/bookies"
BOOKIES = 4
"""One more than an ensemble takes: without a spare a lost bookie stops writing, as with BookKeeper's own client."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerOnBookies]:
    with BrokerOnBookies([BookieProcess(tmp_path / f"bookie-{index}") for index in range(BOOKIES)]) as running:
        yield running


def publish_for(publisher: Publisher, seconds: float) -> float:
    """Publishes at some 2 000 messages a second; the longest time without any receipt."""
    end = last_change = time.monotonic()
    end += seconds
    longest = 0.0
    known = len(publisher.acknowledged)
    while (now := time.monotonic()) < end:
        publisher.send(20)
        time.sleep(0.01)
        if len(publisher.acknowledged) != known:
            known = len(publisher.acknowledged)
            longest, last_change = max(longest, now - last_change), now
    return max(longest, time.monotonic() - last_change)


def in_use(broker: BrokerOnBookies) -> BookieProcess:
    """The bookie of the topic's ensemble that readers ask first."""
    assert broker.broker is not None
    topic = broker.broker.context.service.topics[TOPIC]
    writer = topic.ledger.appends.writer  # type: ignore[union-attr]
    members = writer.metadata.ensembles[-1][1]  # type: ignore[union-attr]
    asked_first = members[writer.ledger_id % len(members)]  # type: ignore[union-attr]
    return next(bookie for bookie in broker.bookies if bookie.id == asked_first)


@pytest.mark.slow
def test_a_bookie_that_hangs_holds_up_nobody(broker: BrokerOnBookies, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "magnetar"), client_of(broker) as client:
        publisher = new_publisher(client, TOPIC, "p")
        publish_for(publisher, 0.5)
        bookie = in_use(broker)
        bookie.hang()
        silent_s = publish_for(publisher, 4.0)
        publisher.settle()
        assert not publisher.failed
        assert silent_s < 1.5, f"no receipt for {silent_s:.1f} s although two of three bookies answer"
        assert f"bookie {bookie.id} failed an add" in caplog.text
        started = time.monotonic()
        assert_kept([publisher], read_all(client, TOPIC, publisher.acknowledged, 60))
        assert time.monotonic() - started < READ_TIMEOUT_SECONDS, "every read waits for the bookie that hangs"
        bookie.wake()
        publish_for(publisher, 0.5)
        publisher.settle()
        assert "Traceback" not in caplog.text


@pytest.mark.slow
def test_a_killed_bookie_is_replaced_and_may_come_back(
    broker: BrokerOnBookies, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "magnetar"), client_of(broker) as client:
        publisher = new_publisher(client, TOPIC, "p", batching_enabled=True)
        publish_for(publisher, 0.5)
        first = in_use(broker)
        first.kill()
        silent_s = publish_for(publisher, 1.5)
        assert silent_s < 1.0, f"no receipt for {silent_s:.1f} s although two of three bookies answer"
        broker.unregister(first)
        assert "goes on with" in caplog.text
        first.start()
        first.wait_until_ready()
        broker.register(first)
        second = next(bookie for bookie in broker.bookies if bookie is not first)
        second.kill()
        publish_for(publisher, 1.5)
        publisher.settle()
        assert not publisher.failed
        assert_kept([publisher], read_all(client, TOPIC, publisher.acknowledged))
        assert "Traceback" not in caplog.text

"""The pytest plugin: a real broker for any Python project's tests, in a fraction of a second.

    pip install magnetar-standalone          # the plugin registers itself

    def test_greeting(pulsar_cluster):
        client = pulsar.Client(pulsar_cluster.service_url)
        producer = client.create_producer(pulsar_cluster.unique_topic())
        ...

Fixtures:

`pulsar_cluster`
    New and empty for each test, gone afterwards. Starting one takes some tens of milliseconds.
`pulsar_cluster_session`
    One for the whole run (with pytest-xdist: for each worker). Its tests keep out of each other's way with
    `unique_topic()`.

Both are a `magnetar.standalone.threaded.ThreadedCluster` on free ports of 127.0.0.1, with

`.service_url`, `.admin_url`
    where clients and admin tools connect
`.unique_topic(prefix="topic")`
    the name of a topic that nobody else uses
`.environment`
    PULSAR_SERVICE_URL and PULSAR_ADMIN_URL, to start programs with, or for `monkeypatch.setenv`

Options: `--magnetar-sync` forces every message to disk before it is acknowledged.

Close your clients before the test ends. A client that is still connected when the cluster stops keeps trying to
reconnect, and says so on standard error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from magnetar.standalone.threaded import ThreadedCluster


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the plugin."""
    group = parser.getgroup("magnetar", "a Pulsar broker for tests")
    group.addoption(
        "--magnetar-sync",
        action="store_true",
        help="force every message to disk before it is acknowledged (slower, and safe against power cuts)",
    )


@pytest.fixture
def pulsar_cluster(pytestconfig: pytest.Config) -> Iterator[ThreadedCluster]:
    """A Pulsar cluster of this test's own: empty at first, gone afterwards."""
    yield from _cluster(pytestconfig)


@pytest.fixture(scope="session")
def pulsar_cluster_session(pytestconfig: pytest.Config) -> Iterator[ThreadedCluster]:
    """One Pulsar cluster for all tests of the run; `unique_topic()` keeps them apart."""
    yield from _cluster(pytestconfig)


def _cluster(config: pytest.Config) -> Iterator[ThreadedCluster]:
    # Here, not above: every pytest run with this plugin installed pays for what the module imports.
    from magnetar.standalone.threaded import ThreadedCluster

    journal_sync: bool = config.getoption("--magnetar-sync")
    with ThreadedCluster(journal_sync=journal_sync) as cluster:
        yield cluster

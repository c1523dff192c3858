"""The pytest plugin: a real broker for any Python project's tests, in a fraction of a second.

    def test_greeting(pulsar_cluster):
        client = pulsar.Client(pulsar_cluster.service_url)
        ...

`pulsar_cluster` is new and empty for each test; `pulsar_cluster_session` is one for the whole run, where tests keep
out of each other's way with `pulsar_cluster_session.unique_topic()`. Both listen on free ports of 127.0.0.1.
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
        help="force the journal to disk before messages are acknowledged (slower, and safe against power cuts)",
    )


@pytest.fixture
def pulsar_cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ThreadedCluster]:
    """A cluster of this test's own: empty at first, gone afterwards."""
    yield from _cluster(tmp_path_factory, request)


@pytest.fixture(scope="session")
def pulsar_cluster_session(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ThreadedCluster]:
    """One cluster for all tests of the run."""
    yield from _cluster(tmp_path_factory, request)


def _cluster(factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ThreadedCluster]:
    # Here, not above: every pytest run with this plugin installed pays for what the module imports.
    from magnetar.standalone.threaded import ThreadedCluster

    journal_sync: bool = request.config.getoption("--magnetar-sync")
    with ThreadedCluster(factory.mktemp("pulsar"), journal_sync=journal_sync) as cluster:
        yield cluster

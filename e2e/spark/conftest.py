"""A server, topics on it that keep what they are given, and Sparks: the repository's own, and others by version.

MAGNETAR_E2E_SERVER says whose server (`magnetar` unless it says `apache`). What a Spark needs and this machine lacks
fails the tests: nothing is skipped here."""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pulsar
import pytest

from e2e.cluster import admin
from e2e.server import StandaloneProcess, new_server
from e2e.spark import environments
from e2e.spark.running import Spark

JAVA_RELEASE = 17
"""Spark 4 runs on it and on newer ones, Spark 3.4 on it and on older ones."""

NAMESPACE = "public/spark"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    running = new_server(data=Path(tmp_path_factory.mktemp("server")) / "data")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def namespace(server: StandaloneProcess) -> str:
    """Its messages stay when nobody has subscribed, and its brokers tell repetitions, as exactly-once writing needs."""
    url = f"{server.admin_url}/admin/v2/namespaces/{NAMESPACE}"
    admin.call("PUT", url, {})
    # Without subscriptions, a topic's messages are gone as soon as nobody looks, and soon the topic too.
    admin.call("POST", f"{url}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    admin.call("POST", f"{url}/deduplication", True)
    return NAMESPACE


@pytest.fixture(scope="session")
def new_topic(namespace: str, server: StandaloneProcess) -> Callable[..., str]:
    """Makes topics that nobody else has: called with a word for its name, and the partitions if it is to have any."""
    numbers = itertools.count()

    def make(word: str, partitions: int = 0) -> str:
        name = f"{word}-{next(numbers)}"
        url = f"{server.admin_url}/admin/v2/persistent/{namespace}/{name}"
        if partitions:
            admin.call("PUT", f"{url}/partitions", partitions)
        else:
            admin.call("PUT", url)
        return f"persistent://{namespace}/{name}"

    return make


@pytest.fixture(scope="session")
def urls(server: StandaloneProcess) -> dict[str, str]:
    """The options that say where the cluster is: of our data source, and of the JVM connector."""
    return {"service.url": server.service_url, "admin.url": server.admin_url}


@pytest.fixture
def stock(server: StandaloneProcess) -> Iterator[pulsar.Client]:
    """The official Python client."""
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture(scope="session")
def make_spark(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Spark]:
    """Gives a Spark: called with `pyspark` and `python`, their versions, and `configuration`; without versions, the
    repository's own, in which our data source is installed, and with it what is named as `beside`."""

    def make(
        pyspark: str | None = None,
        python: str = "3.11",
        configuration: Mapping[str, str] | None = None,
        beside: Sequence[str] = (),
        home: Path | None = None,
    ) -> Spark:
        try:
            interpreter = Path(sys.executable)
            if pyspark:
                interpreter = environments.python_with(pyspark, python)
            elif beside:
                interpreter = environments.python_beside(*beside)
            java_home = environments.java_home(JAVA_RELEASE)
        except environments.Unfit as lacking:
            pytest.fail(str(lacking), pytrace=False)
        return Spark(
            python=interpreter,
            java_home=java_home,
            folder=Path(tmp_path_factory.mktemp(f"spark-{pyspark or 'ours'}")),
            configuration=configuration or {},
            home=home,
        )

    return make


@pytest.fixture(scope="session")
def our_spark(make_spark: Callable[..., Spark]) -> Spark:
    """The repository's PySpark, with our data source."""
    return make_spark()

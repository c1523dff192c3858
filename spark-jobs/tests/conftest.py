"""What tests of the data source share: a cluster in this process, and topics on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark_fakes.topics import Topics


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    # Most tests here need none of this, and it takes a second.
    from magnetar.standalone.threaded import ThreadedCluster
    from spark_fakes.data_source import forget_clusters
    from spark_fakes.topics import Topics

    with ThreadedCluster() as cluster:
        made = Topics(cluster.service_url, cluster.admin_url)
        yield made
        forget_clusters()
        made.close()

"""What is to be replicated and is not, as there is no geo-replication: the log and the statistics say so."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.broker.testing.sessions import ProtocolClient

NAMESPACE = "/admin/v2/namespaces/public/default"
PERSISTENT = "/admin/v2/persistent/public/default"
LINE = "is to be replicated to west: there is no geo-replication yet, and nothing is"


async def test_it_is_told_once_for_a_namespace_and_in_the_statistics_of_each_topic(
    admin: Any, client: ProtocolClient, caplog: pytest.LogCaptureFixture
) -> None:
    await client.producer("first")
    await admin.check(
        ("PUT", "/admin/v2/clusters/west", {"serviceUrl": "http://west:8080"}, 200, None),
        ("POST", "/admin/v2/tenants/public", {"adminRoles": [], "allowedClusters": ["standalone", "west"]}, 204, None),
        ("POST", NAMESPACE + "/replication", ["standalone", "west"], 200, None),
    )
    await client.producer("second", producer_id=2)
    told = [message for message in caplog.messages if LINE in message]
    assert sorted(told) == [f"namespace public/default {LINE}", f"public/default, first among its topics, {LINE}"]
    for topic in ("first", "second"):
        _, stats = await admin("GET", f"{PERSISTENT}/{topic}/stats")
        assert list(stats["replication"]) == ["west"]
        assert stats["replication"]["west"]["connected"] is False
        assert stats["replication"]["west"]["replicationBacklog"] == 0
    await admin.check(("POST", NAMESPACE + "/replication", ["standalone"], 200, None))
    _, stats = await admin("GET", PERSISTENT + "/first/stats")
    assert stats["replication"] == {}

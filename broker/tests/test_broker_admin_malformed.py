"""What no client of good will sends to the admin API is refused, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from magnetar.broker.admin.application import BODY_BYTES_MAX
from magnetar.broker.admin.namespaces.permissions import GRANTS_MAX
from magnetar.broker.admin.web.documents import READ_ONLY_FLAG
from magnetar.broker.admin.web.responses import CONTAINERS_MAX
from magnetar.broker.admin.web.shapes import MEMBERS_MAX
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.wire.pulsar.messages import TEXT_CHARACTERS_MAX

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPICS = "/admin/v2/persistent/public/default"
GRANT = "/admin/v2/namespaces/grantPermissionsOnTopics"
REVOKE = "/admin/v2/namespaces/revokePermissionsOnTopics"
SCHEMAS = "/admin/v2/schemas/public/default/topic"


MANY = [str(number) for number in range(MEMBERS_MAX + 1)]


@pytest.mark.parametrize(
    "body",
    [b"[" * 20_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b'"\xed\xa0\x80"', b"\xff", b'"\\ud800"', b"{"],
    ids=["deep-list", "deep-object", "surrogate", "not-utf8", "half-a-pair", "cut"],
)
async def test_bodies_that_are_no_json(admin: Any, body: bytes) -> None:
    await admin.check(
        ("POST", NAMESPACE + "/maxTopicsPerNamespace", body, 400, "JSON"),
        ("PUT", TOPICS + "/x/partitions", body, 400, "JSON"),
        ("POST", SCHEMAS + "/schema", body, 400, "JSON"),
    )


@pytest.mark.parametrize("rate", [b'"NaN"', b'"Infinity"', b"9" * 400], ids=["nan", "infinite", "long"])
async def test_rates_that_are_no_number(admin: Any, rate: bytes) -> None:
    """They were stored for the namespace, and no topic of it could be loaded."""
    body = b'{"managedLedgerMaxMarkDeleteRate":' + rate + b"}"
    await admin.check(
        ("PUT", TOPICS + "/topic", None, 204, None),
        ("POST", NAMESPACE + "/persistence", body, 400, "is not a number"),
        ("POST", TOPICS + "/topic/persistence", body, 400, "is not a number"),
        ("PUT", NAMESPACE + "-new", b'{"persistence":' + body + b"}", 400, "is not a number"),
        ("PUT", TOPICS + "/other", None, 204, None),
    )


async def test_names_of_other_nodes(admin: Any) -> None:
    """A slash that is sent encoded leads to no other kind of node."""
    tenant, group = "/admin/v2/tenants/public%2Fdefault", "/admin/v2/resourcegroups/a%2Fb"
    cluster = "/admin/v2/clusters/standalone%2FfailureDomain%2Fx"
    info = {"adminRoles": [], "allowedClusters": ["standalone"]}
    refused = 412, "name is not valid"
    await admin.check(
        ("GET", tenant, None, *refused),
        ("POST", tenant, info, *refused),
        ("DELETE", tenant, None, *refused),
        ("GET", group, None, *refused),
        ("PUT", group, {}, *refused),
        ("DELETE", group, None, *refused),
        ("GET", "/admin/v2/resourcegroups/a%00", None, *refused),
        ("GET", cluster, None, *refused),
        ("POST", cluster, {}, *refused),
        ("POST", "/admin/v2/clusters/standalone/failureDomains/a%2Fb", {}, *refused),
        ("GET", "/admin/v2/namespaces/standalone/antiAffinity/g?tenant=../x", None, *refused),
        ("GET", NAMESPACE, None, 200, ...),
    )


@pytest.mark.parametrize("properties", ["x", 5, ["a"], {"a": {"b": 1}}])
async def test_properties_that_are_none(admin: Any, properties: Any) -> None:
    await admin.check(
        ("PUT", TOPICS + "/topic", None, 204, None),
        ("PUT", TOPICS + "/x/partitions", {"partitions": 2, "properties": properties}, 400, "is not"),
        ("GET", TOPICS + "/partitioned", None, 200, []),
        ("PUT", TOPICS + "/topic/subscription/s", {"properties": properties}, 400, "is not"),
        ("POST", SCHEMAS + "/schema", {"type": "STRING", "properties": properties}, 400, "is not"),
    )


async def test_permissions_on_topics_may_be_read_only(admin: Any) -> None:
    await admin.broker.store.put(READ_ONLY_FLAG, b"")
    await admin.check(
        ("PUT", TOPICS + "/topic", None, 204, None),
        ("POST", TOPICS + "/topic/permissions/role", ["produce"], 403, "read-write"),
        ("DELETE", TOPICS + "/topic/permissions/role", None, 403, "read-write"),
    )


async def test_words_that_are_no_permission(admin: Any) -> None:
    """Of topics as of namespaces: nothing is granted by half."""
    grants = [{"topic": "persistent://public/default/topic", "role": "role", "actions": ["ODD"]}]
    await admin.check(
        ("PUT", TOPICS + "/topic", None, 204, None),
        ("POST", TOPICS + "/topic/permissions/role", ["produce", "ODD"], 400, "ODD"),
        ("POST", TOPICS + "/topic/permissions/role", [["produce"]], 400, "produce"),
        ("POST", NAMESPACE + "/permissions/role", ["ODD"], 400, "ODD"),
        ("POST", "/admin/v2/namespaces/grantPermissionsOnTopics", grants, 400, "ODD"),
        ("GET", TOPICS + "/topic/permissions", None, 200, {}),
    )


async def test_boundaries_are_bounded_as_counts_of_bundles_are(admin: Any) -> None:
    boundaries = [f"0x{index * 0x000F0000:08x}" for index in range(4097)] + ["0xffffffff"]
    many = {"bundles": {"boundaries": boundaries, "numBundles": 1}}
    few = {"bundles": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 1}}
    await admin.check(
        ("PUT", NAMESPACE + "-many", many, 400, "between 1 and 4096"),
        ("PUT", NAMESPACE + "-few", few, 204, None),
        ("GET", NAMESPACE + "-few/bundles", None, 200, {**few["bundles"], "numBundles": 2}),
    )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", NAMESPACE + "/retention", b'{"a":"' + b"x" * BODY_BYTES_MAX + b'"}'),
        ("POST", NAMESPACE + "/retention", b"[" + b",".join([b"[]"] * CONTAINERS_MAX) + b"]"),
        ("POST", NAMESPACE + "/retention", b"[" + b",".join([b"{}"] * CONTAINERS_MAX) + b"]"),
        ("PUT", NAMESPACE + "/properties", {str(number): "v" for number in range(MEMBERS_MAX + 1)}),
        ("PUT", TOPICS + "/topic/properties", {str(number): "v" for number in range(MEMBERS_MAX + 1)}),
        ("POST", GRANT, [{"topic": "public/default/topic", "role": "r"}] * (GRANTS_MAX + 1)),
        ("PUT", TOPICS + "/new", {str(number): "v" for number in range(MEMBERS_MAX + 1)}),
        ("POST", TOPICS + "/topic/messageTTL?messageTTL=1", b" " * (BODY_BYTES_MAX + 1)),
        ("POST", TOPICS + "/topic/replication", MANY),
        ("POST", TOPICS + "/topic/subscriptionTypesEnabled", MANY),
        ("POST", TOPICS + "/topic/permissions/role", MANY),
        ("PUT", TOPICS + "/topic/shadowTopics", MANY),
        ("POST", NAMESPACE + "/replication", MANY),
        ("POST", NAMESPACE + "/allowedClusters", MANY),
        ("POST", NAMESPACE + "/permissions/role", MANY),
        ("PUT", "/admin/v2/tenants/many", {"adminRoles": MANY, "allowedClusters": ["standalone"]}),
        ("PUT", "/admin/v2/tenants/many", {"adminRoles": [], "allowedClusters": MANY}),
    ],
)
@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_bodies_that_would_take_long(admin: Any, method: str, path: str, body: Any) -> None:
    await admin.check(("PUT", TOPICS + "/topic", None, 204, None), (method, path, body, 413, ...))


async def test_properties_of_a_new_topic_are_one_write(admin: Any) -> None:
    """Each by itself would write those before it again."""
    properties = {str(number): "v" for number in range(MEMBERS_MAX)}
    path = TOPICS + "/new"
    await admin.check(("PUT", path, properties, 204, None), ("GET", path + "/properties", None, 200, properties))


async def test_a_reason_does_not_repeat_the_whole_body(admin: Any) -> None:
    status, answer = await admin("POST", NAMESPACE + "/retention", ["x" * 100_000])
    assert status == 400
    assert len(answer) <= TEXT_CHARACTERS_MAX + 1


async def test_grants_on_many_topics_at_once(admin: Any) -> None:
    async def granted(topic: str) -> Any:
        return (await admin("GET", f"{TOPICS}/{topic}/permissions"))[1]

    grants = [
        {"topic": f"public/default/{topic}", "role": f"r{number}", "actions": ["produce"]}
        for topic in "ab"
        for number in range(3)
    ]
    await admin.check(
        ("PUT", TOPICS + "/a", None, 204, None),
        ("PUT", TOPICS + "/b", None, 204, None),
        ("POST", TOPICS + "/a/permissions/old", ["consume"], 204, None),
        ("POST", GRANT, grants, 204, None),
    )
    new = {f"r{number}": ["produce"] for number in range(3)}
    assert await granted("a") == {"old": ["consume"], **new}
    assert await granted("b") == new
    await admin.check(("POST", REVOKE, grants[1:], 204, None))
    assert await granted("a") == {"old": ["consume"], "r0": ["produce"]}
    assert await granted("b") == {}
    none = [{"topic": "public/default/none", "role": "r", "actions": ["produce"]}]
    await admin.check(("POST", GRANT, none, 404, "not found"), ("POST", REVOKE, none, 404, "not found"))


@pytest.mark.parametrize(("header_bytes_max", "status"), [(8_192, 431), (16_000, 200)])
async def test_a_long_header_is_told_the_setting(header_bytes_max: int, status: int) -> None:
    settings = BrokerSettings(admin=AdminSettings(http_header_bytes_max=header_bytes_max))
    async with MemoryBroker(settings) as broker, aiohttp.ClientSession(broker.admin_url) as session:
        for target, headers in ((NAMESPACE, {"X-Long": "x" * 9_000}), (f"{NAMESPACE}?x={'x' * 9_000}", {})):
            async with session.get(target, headers=headers) as answer:
                document = await answer.json()
                assert answer.status == status
                assert ("httpMaxRequestHeaderSize" in str(document)) is (status == 431)

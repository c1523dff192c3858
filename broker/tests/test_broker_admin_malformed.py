"""What no client of good will sends to the admin API is refused, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.broker.admin.documents import READ_ONLY_FLAG

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPICS = "/admin/v2/persistent/public/default"
SCHEMAS = "/admin/v2/schemas/public/default/topic"


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b'"\xed\xa0\x80"', b"\xff", b'"\\ud800"', b"{"],
    ids=["deep-list", "deep-object", "surrogate", "not-utf8", "half-a-pair", "cut"],
)
async def test_bodies_that_are_no_json(admin: Any, body: bytes) -> None:
    await admin.check(
        ("POST", NAMESPACE + "/maxTopicsPerNamespace", body, 400, "JSON"),
        ("PUT", TOPICS + "/x/partitions", body, 400, "JSON"),
        ("POST", SCHEMAS + "/schema", body, 400, "JSON"),
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

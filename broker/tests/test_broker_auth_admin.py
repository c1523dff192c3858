"""The admin API of a broker that wants to know who calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from magnetar.auth.testing import token_of
from magnetar.broker.admin.application import make_runner
from magnetar.broker.admin.web.access_table import Scope, need_of
from magnetar.broker.auth.rules import Right
from magnetar.broker.testing.auth import ADMIN, PROXY, TENANT_ADMIN, broker_settings, grants, make_namespace
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.topic_name import TopicName
from magnetar.net.http.connections import HttpConnections
from yarl import URL

NAMESPACE = "/admin/v2/namespaces/acme/shop"
TOPIC = "/admin/v2/persistent/acme/shop/orders"
SUPER = "This operation requires super-user access"
TENANT = "Don't have permission to administrate resources on this tenant"
PAIR = "Invalid combination of Original principal cannot be empty if the request is via proxy."


class Caller:
    """Sends requests as one role or another."""

    def __init__(self, broker: MemoryBroker, session: aiohttp.ClientSession) -> None:
        self.broker = broker
        self._session = session

    async def __call__(
        self, role: str | None, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        if role is not None:
            headers["Authorization"] = "Bearer " + token_of(role)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._send(method, self.broker.admin_url + path, body, named)

    async def raw(self, role: str, method: str, url: URL, body: Any) -> tuple[int, Any]:
        """To a URL that is sent as it is."""
        return await self._send(method, url, body, {"Authorization": "Bearer " + token_of(role)})

    async def _send(self, method: str, url: str | URL, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        async with self._session.request(method, url, json=body, headers=headers) as answer:
            if answer.content_type != "application/json":
                return answer.status, await answer.text()
            document = await answer.json()
            return answer.status, document["reason"] if answer.status >= 400 else document


@pytest.fixture
async def call() -> AsyncIterator[Caller]:
    async with MemoryBroker(broker_settings()) as broker, aiohttp.ClientSession() as session:
        topics = {"persistent://acme/shop/orders": {"one": ["consume"]}}
        await make_namespace(broker, auth_policies=grants({"maker": ["produce"], "reader": ["consume"]}, topics))
        caller = Caller(broker, session)
        assert await caller(ADMIN, "PUT", TOPIC) == (204, "")
        yield caller


async def test_every_route_is_in_the_table(memory_broker: MemoryBroker) -> None:
    runner = make_runner(memory_broker.running.context, HttpConnections())
    routes = [(route.method, route.resource.canonical) for route in runner.app.router.routes() if route.resource]
    assert len(routes) > 300
    assert [route for route in routes if need_of(*route) is None] == []
    public = {
        pattern for method, pattern in routes if (need := need_of(method, pattern)) and need.scope is Scope.PUBLIC
    }
    assert public == {"/status.html", "/metrics", "/metrics/"}


@pytest.mark.parametrize(
    ("method", "pattern", "right"),
    [
        ("GET", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/stats", Right.LOOKUP),
        ("HEAD", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/stats", Right.LOOKUP),
        ("POST", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/skip_all", Right.CONSUME),
        ("POST", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema", Right.PRODUCE),
        ("PUT", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/unload", Right.ADMIN),
        ("GET", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/retention", Right.ADMIN),
        ("GET", "/admin/v2/{domain}/{tenant}/{namespace}", Right.LOOKUP),
        ("POST", "/admin/v2/namespaces/{tenant}/{namespace}/clearBacklog", Right.CONSUME),
    ],
)
def test_rights_of_operations(method: str, pattern: str, right: Right) -> None:
    need = need_of(method, pattern)
    assert need is not None
    assert need.right is right


async def test_credentials_are_wanted(call: Caller) -> None:
    for path in ("/admin/v2/clusters", "/admin/v2/brokers/ready", "/lookup/v2/topic/persistent/a/b/c", "/nothing"):
        assert await call(None, "GET", path) == (401, "Authentication required")
    for header in ("Bearer x", "Basic YTpi", "x"):
        assert await call(None, "GET", "/admin/v2/clusters", Authorization=header) == (401, "Authentication required")
    assert (await call("anybody", "GET", "/admin/v2/clusters"))[0] == 200
    assert (await call("anybody", "GET", "/nothing"))[0] == 404
    for path in ("/metrics", "/status.html"):
        assert (await call(None, "GET", path))[0] == 200


@pytest.mark.parametrize(
    ("role", "method", "path", "status", "reason"),
    [
        ("nobody", "GET", "/admin/v2/bookies/all", 401, SUPER),
        (TENANT_ADMIN, "GET", "/admin/v2/resource-quotas", 401, SUPER),
        (ADMIN, "GET", "/admin/v2/resource-quotas", 200, ...),
        (
            "nobody",
            "GET",
            "/admin/v2/clusters/standalone",
            401,
            "Unauthorized to validateBothSuperuserAndClusterOperation for originalPrincipal [null] and clientAppId "
            "[nobody] about operation [GET_CLUSTER] on cluster [standalone]",
        ),
        (
            "nobody",
            "GET",
            "/admin/v2/tenants",
            401,
            "Unauthorized to validateBothTenantOperationAndSuperUser for originalPrincipal [null] and clientAppId "
            "[nobody] about operation [LIST_TENANTS] ",
        ),
        (TENANT_ADMIN, "GET", "/admin/v2/tenants/acme", 200, ...),
        (TENANT_ADMIN, "GET", "/admin/v2/tenants/public", 401, ...),
        (
            "maker",
            "GET",
            "/admin/v2/namespaces/acme",
            401,
            "Unauthorized to validateTenantOperation for originalPrincipal [null] and clientAppId [maker] about "
            "operation [LIST_NAMESPACES] on tenant [acme]",
        ),
        ("nobody", "GET", "/admin/v2/namespaces/nowhere", 404, "Tenant does not exist"),
        (
            "nobody",
            "PUT",
            "/admin/v2/tenants/new",
            401,
            "Unauthorized to validateBothTenantOperationAndSuperUser for originalPrincipal [null] and clientAppId "
            "[nobody] about operation [CREATE_TENANT] ",
        ),
        (
            "maker",
            "GET",
            NAMESPACE + "/messageTTL",
            403,
            "Unauthorized to validateNamespacePolicyOperation for operation [READ] on namespace [acme/shop] on policy "
            "[TTL]",
        ),
        (TENANT_ADMIN, "GET", NAMESPACE + "/permissions", 200, ...),
        ("maker", "GET", NAMESPACE + "/properties", 401, TENANT),
        ("one", "GET", NAMESPACE + "/topics", 403, ...),
        ("maker", "GET", NAMESPACE + "/topics", 200, ...),
        (
            "maker",
            "POST",
            NAMESPACE + "/clearBacklog",
            403,
            "Unauthorized to validateNamespaceOperation for operation [CLEAR_BACKLOG] on namespace [acme/shop]",
        ),
        ("reader", "POST", NAMESPACE + "/clearBacklog", 204, ...),
        (
            "nobody",
            "GET",
            TOPIC + "/stats",
            401,
            "Unauthorized to validateTopicOperation for operation [GET_STATS] on topic [persistent://acme/shop/orders]",
        ),
        ("one", "GET", TOPIC + "/stats", 200, ...),
        ("maker", "GET", TOPIC + "/subscriptions", 401, ...),
        ("reader", "GET", TOPIC + "/subscriptions", 200, ...),
        ("reader", "PUT", TOPIC + "/unload", 401, ...),
        (
            "reader",
            "GET",
            TOPIC + "/retention",
            403,
            "Unauthorized to validateTopicPolicyOperation for operation [READ] on topic "
            "[persistent://acme/shop/orders] on policy [RETENTION]",
        ),
        ("one", "GET", "/lookup/v2/topic/persistent/acme/shop/orders", 200, ...),
        ("one", "GET", "/lookup/v2/topic/persistent/acme/shop/other", 401, ...),
        (TENANT_ADMIN, "PUT", TOPIC + "/unload", 204, ...),
    ],
)
async def test_who_may_do_what(call: Caller, role: str, method: str, path: str, status: int, reason: Any) -> None:
    found_status, found = await call(role, method, path)
    assert found_status == status, found
    if reason is not ...:
        assert found == reason


async def test_grants_on_topics_need_every_tenant(call: Caller) -> None:
    path = "/admin/v2/namespaces/grantPermissionsOnTopics"
    grant = {"topic": "persistent://acme/shop/orders", "role": "x", "actions": ["produce"]}
    assert await call("maker", "POST", path, [grant]) == (401, TENANT)
    assert await call(TENANT_ADMIN, "POST", path, [grant]) == (204, "")
    elsewhere = {**grant, "topic": "persistent://public/default/t"}
    assert await call(TENANT_ADMIN, "POST", path, [grant, elsewhere]) == (401, TENANT)
    damaged: tuple[Any, ...] = ([], {}, None, [1], [{"topic": "::"}])
    for body in damaged:
        assert await call(TENANT_ADMIN, "POST", path, body) == (401, TENANT)
    assert (await call("x", "GET", TOPIC + "/stats"))[0] == 200


async def test_proxies_over_http(call: Caller) -> None:
    async def as_proxy(path: str, original: str) -> tuple[int, Any]:
        return await call(PROXY, "GET", path, X_Original_Principal=original)

    assert await call(PROXY, "GET", "/admin/v2/clusters") == (401, PAIR)
    assert await as_proxy("/admin/v2/clusters", PROXY) == (401, PAIR)
    assert await call("maker", "GET", TOPIC + "/stats", X_Original_Principal=ADMIN) == (401, PAIR)
    assert (await call(ADMIN, "GET", "/admin/v2/tenants", X_Original_Principal=ADMIN))[0] == 200
    assert await as_proxy("/admin/v2/bookies/all", ADMIN) == (
        401,
        f"Proxy not authorized for super-user operation (proxy:{PROXY})",
    )
    assert await as_proxy(NAMESPACE + "/properties", TENANT_ADMIN) == (
        401,
        f"Proxy not authorized to access resource (proxy:{PROXY},original:{TENANT_ADMIN})",
    )
    assert (await as_proxy(TOPIC + "/stats", "maker"))[0] == 401
    await make_namespace(call.broker, auth_policies=grants({PROXY: ["consume"], "maker": ["produce"]}))
    assert (await as_proxy(TOPIC + "/stats", "maker"))[0] == 200
    assert (await as_proxy(TOPIC + "/stats", "nobody"))[0] == 401


async def test_metrics_may_be_shut_off() -> None:
    async with (
        MemoryBroker(broker_settings(metrics_authenticated=True)) as broker,
        aiohttp.ClientSession() as session,
    ):
        call = Caller(broker, session)
        assert (await call(None, "GET", "/metrics"))[0] == 401
        assert (await call("anybody", "GET", "/metrics"))[0] == 200
        assert (await call(None, "GET", "/status.html"))[0] == 200


async def test_work_on_partitions_is_done_with_the_brokers_own_credentials(call: Caller) -> None:
    assert await call(TENANT_ADMIN, "PUT", TOPIC + "-many/partitions", 3) == (204, "")
    assert await call(TENANT_ADMIN, "PUT", TOPIC + "-many/unload") == (204, "")
    status, stats = await call("reader", "GET", TOPIC + "-many/partitioned-stats")
    assert (status, stats["metadata"]["partitions"]) == (200, 3)


async def test_secrets_are_not_told(call: Caller) -> None:
    status, told = await call(ADMIN, "GET", "/admin/v2/brokers/configuration/runtime")
    assert (status, told["authenticationEnabled"], told["superUserRoles"]) == (200, "true", ADMIN)
    assert not {"tokenSecretKey", "brokerClientAuthenticationParameters", "basicAuthConf"} & set(told)


async def test_what_partitions_are_asked_needs_no_more_rights_than_what_was_asked(call: Caller) -> None:
    many = TOPIC + "-many"
    assert await call(TENANT_ADMIN, "PUT", many + "/partitions", 2) == (204, "")
    assert await call(TENANT_ADMIN, "POST", f"{NAMESPACE}/permissions/eater", ["consume"]) == (204, "")
    assert (await call("eater", "PUT", many + "/properties", {"a": "b"}))[0] == 401
    # The broker asks the partitions with its own rights: this must not become `…-partition-0/properties`.
    for dots in ("%2E%2E", "%2e%2e", ".%2E"):
        path = URL(f"{call.broker.admin_url}{many}/subscription/{dots}/properties", encoded=True)
        assert (await call.raw("eater", "PUT", path, {"a": "b"}))[0] == 404
    assert await call(TENANT_ADMIN, "GET", many + "-partition-0/properties") == (200, {})


EVENTS = "/admin/v2/persistent/acme/shop/__change_events"
POSITION = {"ledgerId": 1, "entryId": 0}


async def test_what_brokers_read_of_their_own_topics_is_not_moved_by_a_grant_to_consume(call: Caller) -> None:
    """A broker whose reader is made to skip changes does not have them in force."""
    service = call.broker.service
    await call.broker.running.context.topic_policies.update(
        TopicName.parse("persistent://acme/shop/orders"), lambda policies: {**policies, "maxMessageSize": 5}
    )
    topic = await service.topic(TopicName.parse("persistent://acme/shop/__change_events"), create=False)
    (reader,) = [name for name in topic.subscriptions if name.startswith("__system_reader")]
    assert (await call(TENANT_ADMIN, "PUT", EVENTS + "/subscription/own"))[0] == 204
    for subscription, refused in ((reader, True), ("__compaction", True), ("own", False)):
        one = f"{EVENTS}/subscription/{subscription}"
        for method, path, body in (
            ("POST", one + "/skip_all", None),
            ("POST", one + "/skip/1", None),
            ("POST", one + "/expireMessages/1", None),
            ("POST", one + "/expireMessages", POSITION),
            ("POST", one + "/resetcursor/1", None),
            ("POST", one + "/resetcursor", POSITION),
            ("POST", one + "/analyzeBacklog", None),
            ("PUT", one + "/properties", {}),
            ("DELETE", one + "?force=true", None),
        ):
            status, _ = await call("reader", method, path, body)
            assert (status == 401) is refused, (method, path, status)
    assert (await call("reader", "POST", EVENTS + "/all_subscription/expireMessages/1"))[0] == 401
    assert (await call("reader", "POST", TOPIC + "/all_subscription/expireMessages/1"))[0] == 204
    assert (await call("reader", "POST", NAMESPACE + "/clearBacklog"))[0] == 204
    assert reader in topic.subscriptions
    assert topic.subscriptions[reader].consumers

"""Who is there: Apache's own tools and clients at brokers of ours, and through proxies of either side.

A broker that authenticates stands behind a proxy that does: ours before ours, ours before Apache's, Apache's before
ours.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
from magnetar.auth.settings import TOKEN_PROVIDER
from magnetar.auth.testing import SECRET, token_of

from e2e import processes
from e2e.cluster.local import LocalCluster, Size
from e2e.cluster.test_proxy_interchange import ApacheProxy, OurProxy, ProxyPart
from e2e.faults.support import client_of
from e2e.interchange import parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.ours import PROGRAM
from e2e.interchange.parts import BrokerPart, jvm_environment
from e2e.part import START_SECONDS_MAX
from e2e.peers import distribution
from e2e.processes import wait_for

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(300)]

PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
ROLES = ("admin", "chief", "maker", "reader", "nobody")
TOPIC = "persistent://acme/shop/orders"
COMMAND_SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    output: str


def run(*command: object, environment: dict[str, str] | None = None) -> Ran:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    return Ran(done.returncode, done.stdout + done.stderr)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A cluster, and Apache's tools as one role or another."""

    cluster: LocalCluster
    folder: Path
    tokens: dict[str, str]

    def admin(self, role: str, *words: str) -> Ran:
        """`pulsar-admin`."""
        return self._apache("pulsar-admin", "--admin-url", self.cluster.admin_url, *self._shown(role), *words)

    def client(self, role: str, *words: str) -> Ran:
        """`pulsar-client`."""
        return self._apache("pulsar-client", "--url", self.cluster.service_url, *self._shown(role), *words)

    def _shown(self, role: str) -> list[str]:
        return ["--auth-plugin", PLUGIN, "--auth-params", f"token:{self.tokens[role]}"]

    def _apache(self, program: str, *words: object) -> Ran:
        return run(distribution.home() / "bin" / program, *words, environment=jvm_environment(self.folder / "logs"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("guarded")
    key = folder / "secret.key"
    assert run(PROGRAM, "tokens", "create-secret-key", "-o", key).code == 0
    tokens = {role: run(PROGRAM, "tokens", "create", "-sk", key, "-s", role).output.strip() for role in ROLES}
    own = folder / "broker.token"
    own.write_text(tokens["admin"])
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
        "tokenSecretKey": f"file://{key}",
        "brokerClientAuthenticationPlugin": PLUGIN,
        "brokerClientAuthenticationParameters": f"file://{own}",
    }
    with LocalCluster(folder, Size(bookies=1, brokers=2, proxies=0), broker_settings=settings) as cluster:
        cluster.start()
        yield Guarded(cluster, folder, tokens)


def test_keys_and_tokens_of_either_tool(guarded: Guarded) -> None:
    apache = distribution.home() / "bin" / "pulsar"
    environment = jvm_environment(guarded.folder / "logs")
    key = f"file://{guarded.folder / 'secret.key'}"
    assert run(apache, "tokens", "validate", "-sk", key, guarded.tokens["maker"], environment=environment) == Ran(
        0, "{sub=maker}\n"
    )
    made = run(apache, "tokens", "create", "-sk", key, "-s", "maker", environment=environment).output.strip()
    assert made == guarded.tokens["maker"]


def test_pulsar_admin_and_pulsar_client(guarded: Guarded) -> None:
    name = guarded.cluster.name
    refused = guarded.admin("nobody", "tenants", "create", "acme", "--admin-roles", "chief")
    assert refused.code != 0
    assert "Unauthorized to validateBothTenantOperationAndSuperUser" in refused.output
    assert guarded.admin("admin", "tenants", "create", "acme", "--admin-roles", "chief", "-c", name).code == 0
    assert guarded.admin("chief", "namespaces", "create", "acme/shop", "--bundles", "4").code == 0
    for role, action in (("maker", "produce"), ("reader", "consume")):
        granted = guarded.admin(
            "chief", "namespaces", "grant-permission", "acme/shop", "--role", role, "--actions", action
        )
        assert granted.code == 0, granted.output
    assert guarded.admin("chief", "topics", "create-partitioned-topic", TOPIC, "-p", "3").code == 0
    assert guarded.admin("chief", "topics", "create-subscription", TOPIC, "-s", "all").code == 0

    sent = guarded.client("maker", "produce", TOPIC, "-m", "hello", "-n", "6", "--disable-batching")
    assert sent.code == 0, sent.output
    assert "6 messages successfully produced" in sent.output
    # Partitions, wherever they are served, are asked with the broker's own credentials.
    assert guarded.admin("admin", "namespaces", "unload", "acme/shop").code == 0
    received = guarded.client("reader", "consume", TOPIC, "-s", "all", "-n", "6")
    assert received.code == 0, received.output
    assert received.output.count("content:hello") == 6

    stats = guarded.admin("reader", "topics", "partitioned-stats", TOPIC)
    assert stats.code == 0, stats.output
    assert '"msgOutCounter" : 6' in stats.output
    not_hers = guarded.client("reader", "produce", TOPIC, "-m", "x")
    assert not_hers.code != 0
    assert "not authorized" in not_hers.output
    not_his = guarded.admin("maker", "topics", "unload", TOPIC)
    assert not_his.code != 0
    assert "Unauthorized to validateTopicOperation for operation [UNLOAD]" in not_his.output


# --- through proxies

REFRESH_SECONDS = 1
TOKENS = {
    "authenticationEnabled": "true",
    "authenticationProviders": TOKEN_PROVIDER,
    "tokenSecretKey": f"data:;base64,{SECRET}",
    "authenticationRefreshCheckSeconds": str(REFRESH_SECONDS),
}
OURS, APACHE = "ours", "apache"


def shown(role: str) -> dict[str, str]:
    """How a broker or a proxy shows itself to brokers."""
    return {
        "brokerClientAuthenticationPlugin": PLUGIN,
        "brokerClientAuthenticationParameters": f"token:{token_of(role)}",
    }


AUTHENTICATING = {**TOKENS, **shown("proxy"), "forwardAuthorizationCredentials": "true"}
"""A proxy that finds out who its clients are."""


def ask(url: str, token: str | None = None, **headers: str) -> tuple[int, str]:
    """Status and body."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): text for name, text in headers.items()})
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@dataclass(frozen=True, slots=True)
class Front:
    """A broker that wants to know who is there, and proxies before it."""

    cluster: Cluster
    broker: BrokerPart
    proxy_side: str

    def proxy(self, name: str, **settings: str) -> ProxyPart:
        """One more, that serves."""
        make = OurProxy if self.proxy_side == OURS else ApacheProxy
        proxy = make(self.cluster.folder / name, self.cluster.zookeeper.address, **settings)
        self.cluster.keep(proxy).launch()
        wait_for(lambda: serves(proxy), START_SECONDS_MAX, f"{name} does not come up")
        return proxy


def serves(part: BrokerPart | ProxyPart) -> bool:
    path = "/admin/v2/namespaces/public/default"
    return processes.accepts(part.port) and ask(part.admin_url + path, token_of("admin"))[0] == 200


our_proxy_only = pytest.mark.parametrize(
    "front", [(OURS, OURS), (OURS, APACHE)], ids="-before-".join, indirect=True, scope="module"
)
"""For what Apache's proxy does not do, or says otherwise in its log."""


@pytest.fixture(scope="module", params=[(OURS, OURS), (OURS, APACHE), (APACHE, OURS)], ids="-before-".join)
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    proxy_side, broker_side = request.param
    with Cluster(tmp_path_factory.mktemp(f"{proxy_side}-{broker_side}")) as cluster:
        cluster.initialize_pulsar()
        cluster.start(cluster.our_bookie("bookie"))
        settings = {
            **TOKENS,
            **shown("admin"),
            "authorizationEnabled": "true",
            "superUserRoles": "admin,proxy",
            "proxyRoles": "proxy",
            "authenticateOriginalAuthData": "true",
        }
        make = cluster.our_broker if broker_side == OURS else cluster.apache_broker
        broker = make((1, 1, 1), **settings)
        broker.launch()
        wait_for(lambda: serves(broker), START_SECONDS_MAX, "the broker does not come up")
        yield Front(cluster, broker, proxy_side)


@pytest.fixture(scope="module")
def proxy(front: Front) -> ProxyPart:
    return front.proxy("proxy", **AUTHENTICATING, authorizationEnabled="true", superUserRoles="admin")


def client_as(front: ProxyPart, token: str | Callable[[], str]) -> Any:
    """Python's."""
    return client_of(front, authentication=pulsar.AuthenticationToken(token))


def exchange(front: ProxyPart, token: str | Callable[[], str], topic: str) -> None:
    """Publish and receive."""
    with client_as(front, token) as client:
        consumer = client.subscribe(topic, "all")
        client.create_producer(topic).send(b"hello")
        assert consumer.receive(20_000).data() == b"hello"


def test_clients_and_tools_through_a_proxy(front: Front, proxy: ProxyPart) -> None:
    home, environment = distribution.home(), jvm_environment(front.cluster.folder / "logs")
    topic = "persistent://public/default/through"

    def as_role(role: str) -> list[str]:
        return ["--auth-plugin", PLUGIN, "--auth-params", f"token:{token_of(role)}"]

    def admin(role: str, *words: str) -> Ran:
        command = [home / "bin" / "pulsar-admin", "--admin-url", proxy.admin_url, *as_role(role), *words]
        return run(*command, environment=environment)

    grant = ("namespaces", "grant-permission", "public/default", "--role", "maker", "--actions", "produce,consume")
    refused = admin("maker", *grant)
    assert refused.code != 0
    assert "Unauthorized to validateNamespaceOperation for operation [GRANT_PERMISSION]" in refused.output
    granted = admin("admin", *grant)
    assert granted.code == 0, granted.output

    exchange(proxy, token_of("maker"), topic)
    command = [home / "bin" / "pulsar-client", "--url", proxy.service_url, *as_role("maker"), "produce", topic]
    sent = run(*command, "-m", "hello", "-n", "2", environment=environment)
    assert sent.code == 0, sent.output
    assert "2 messages successfully produced" in sent.output
    stats = admin("maker", "topics", "stats", topic)
    assert stats.code == 0, stats.output
    assert '"msgInCounter" : 3' in stats.output
    with client_as(proxy, token_of("nobody")) as client, pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)


def test_nobody_can_claim_to_be_somebody_else(front: Front, proxy: ProxyPart) -> None:
    url = f"{proxy.admin_url}/admin/v2/namespaces/public"
    assert ask(url, token_of("admin"))[0] == 200
    assert ask(url, token_of("nobody"), X_Original_Principal="admin")[0] == 401
    # Apache's proxy passes that header on, beside its own.
    believed = front.proxy_side == APACHE
    assert ask(url, token_of("proxy"), X_Original_Principal="admin")[0] == (200 if believed else 401)
    # A proxy's role is no client's.
    assert ask(url, token_of("proxy"))[0] == 401
    for token in (None, "nonsense", token_of("admin", exp=1)):
        assert ask(url, token, X_Original_Principal="admin")[0] == 401
        assert ask(f"{proxy.admin_url}/metrics/", token)[0] == 401
        assert ask(f"{proxy.admin_url}/proxy-stats/connections", token)[0] == 401
    assert ask(f"{proxy.admin_url}/metrics/", token_of("nobody"))[0] == 200
    status, told = ask(f"{proxy.admin_url}/proxy-stats/connections", token_of("nobody"))
    assert (status, "Client is not authorized to perform operation" in told) == (401, True)
    assert ask(f"{proxy.admin_url}/proxy-stats/connections", token_of("admin")) == (200, "[]")


def test_tokens_that_run_out_are_renewed(front: Front, proxy: ProxyPart) -> None:
    del front
    seconds = 2

    def fresh() -> str:
        asked.append(time.time())
        return token_of("admin", exp=time.time() + seconds)

    asked: list[float] = []
    with client_as(proxy, fresh) as client:
        consumer = client.subscribe("renewed", "all")
        producer = client.create_producer("renewed")
        producer.send(b"first")
        connections = len(asked)
        time.sleep(seconds + 2 * REFRESH_SECONDS + 0.5)
        assert len(asked) > connections
        producer.send(b"second")
        # Lookups are asked with the new one.
        client.create_producer("another").send(b"x")
        assert [consumer.receive(20_000).data() for _ in range(2)] == [b"first", b"second"]


@our_proxy_only
def test_credentials_pass_through_a_proxy_that_authenticates_nobody(front: Front) -> None:
    proxy = front.proxy("open")
    exchange(proxy, token_of("admin"), "passed-on")
    command = [distribution.home() / "bin" / "pulsar-client", "--url", proxy.service_url, "--auth-plugin", PLUGIN]
    command += ["--auth-params", f"token:{token_of('admin')}", "produce", "passed-on", "-m", "hello"]
    sent = run(*command, environment=jvm_environment(front.cluster.folder / "logs"))
    assert sent.code == 0, sent.output
    with client_as(proxy, token_of("nobody")) as client, pytest.raises(pulsar.AuthorizationError):
        client.create_producer("passed-on")
    url = f"{proxy.admin_url}/admin/v2/namespaces/public"
    assert (ask(url, token_of("admin"))[0], ask(url)[0]) == (200, 401)


@our_proxy_only
@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("nonsense", "brokerClientAuthenticationParameters are not good"),
        (token_of("admin"), "must be among the broker's proxyRoles"),
    ],
    ids=["unknown", "no proxy"],
)
def test_a_proxy_whose_own_credentials_are_not_good(front: Front, own: str, said: str) -> None:
    parameters = {"brokerClientAuthenticationParameters": f"token:{own}"}
    proxy = front.proxy("untrusted", **{**AUTHENTICATING, **parameters})
    authentication = pulsar.AuthenticationToken(token_of("admin"))
    client = pulsar.Client(proxy.service_url, authentication, operation_timeout_seconds=2)
    try:
        with pytest.raises((pulsar.AuthorizationError, pulsar.Timeout)):
            client.create_producer("untrusted")
    finally:
        client.close()
        proxy.kill()
    assert said in proxy.log_text()

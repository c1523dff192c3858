"""Apache's own tools at brokers of ours that want to know who is there, and ours with Apache's keys and tokens."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster.local import LocalCluster, Size
from e2e.cluster.parts import PROGRAM
from e2e.interchange import parts
from e2e.interchange.parts import jvm_environment
from e2e.peers import distribution

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

"""TLS and credentials of brokers and proxies: which ports there are, which files are mounted, which settings follow."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.children.context import SERVICE_PORT, SERVICE_PORT_TLS, WEB_PORT, WEB_PORT_TLS, ClusterContext
from magnetar.operator.children.naming import BROKER, PROXY
from magnetar.operator.resources.cluster import AuthenticationSpec, TokenSpec
from magnetar.operator.resources.common import Scalar

TLS_DIRECTORY: Final = "/tls"
TOKEN_DIRECTORY: Final = "/token"  # noqa: S105  (where it is mounted)

BROKER_TOKEN_KEY: Final = f"{BROKER}-token"
"""The key, in the Secret with the tokens, of what brokers show to each other."""
PROXY_TOKEN_KEY: Final = f"{PROXY}-token"
"""The key of what proxies show to brokers."""

_PROVIDER: Final = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
TOKEN_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"  # noqa: S105  (a class)


def plain_ports(cluster: ClusterContext) -> bool:
    """Whether clients may come without TLS."""
    return cluster.spec.tls is None or cluster.spec.tls.plain_ports


def client_ports(cluster: ClusterContext) -> dict[str, int]:
    """What clients and tools connect to, of brokers and proxies alike, by name."""
    found = {"pulsar": SERVICE_PORT, "http": WEB_PORT} if plain_ports(cluster) else {}
    return found | ({"pulsar-tls": SERVICE_PORT_TLS, "https": WEB_PORT_TLS} if cluster.spec.tls is not None else {})


def service_ports(cluster: ClusterContext) -> list[dict[str, Any]]:
    """The ports of a component, as a Service has them."""
    return [{"name": name, "port": port, "targetPort": name} for name, port in client_ports(cluster).items()]


def service_url(cluster: ClusterContext, address: str) -> str:
    """What clients are told."""
    if cluster.spec.tls is not None:
        return f"pulsar+ssl://{address}:{SERVICE_PORT_TLS}"
    return f"pulsar://{address}:{SERVICE_PORT}"


def web_service_url(cluster: ClusterContext, address: str) -> str:
    """The URL of the admin API that tools are told."""
    return f"https://{address}:{WEB_PORT_TLS}" if cluster.spec.tls is not None else f"http://{address}:{WEB_PORT}"


def access_volumes(cluster: ClusterContext) -> list[dict[str, Any]]:
    """The Secrets that a component mounts for its access."""
    found = []
    if cluster.spec.tls is not None:
        found.append({"name": "tls", "secret": {"secretName": cluster.spec.tls.secret_name, "defaultMode": 0o440}})
    if (token := _token(cluster)) is not None:
        found.append({"name": "token", "secret": {"secretName": token.secret_name, "defaultMode": 0o440}})
    return found


def access_mounts(cluster: ClusterContext) -> list[dict[str, Any]]:
    """Where their files are. They change while pods run: brokers and proxies read them anew."""
    paths = {"tls": TLS_DIRECTORY, "token": TOKEN_DIRECTORY}
    names = [volume["name"] for volume in access_volumes(cluster)]
    return [{"name": name, "mountPath": paths[name], "readOnly": True} for name in names]


def broker_access_settings(cluster: ClusterContext) -> dict[str, Scalar]:
    """Settings of brokers: what they ask of clients, and what they show to other brokers. Their ports without TLS are
    always there, for proxies and for each other; network policies keep clients from them if they are not to use
    them."""
    ports: dict[str, Scalar] = {"brokerServicePort": SERVICE_PORT, "webServicePort": WEB_PORT}
    if cluster.spec.tls is not None:
        ports |= {"brokerServicePortTls": SERVICE_PORT_TLS, "webServicePortTls": WEB_PORT_TLS}
    found = ports | _tls(cluster) | _credentials(cluster, BROKER)
    if cluster.spec.authentication is not None:
        # Who has this role must name for whom it speaks: it cannot be the brokers' own.
        found["proxyRoles"] = cluster.spec.authentication.token.proxy_role
    return found


def proxy_access_settings(cluster: ClusterContext) -> dict[str, Scalar]:
    """Settings of proxies: what they ask of clients, what they show to brokers, and that they pass clients' credentials
    on."""
    ports: dict[str, Scalar] = {
        "servicePort": SERVICE_PORT if plain_ports(cluster) else "",
        "webServicePort": WEB_PORT if plain_ports(cluster) else "",
    }
    if cluster.spec.tls is not None:
        ports |= {"servicePortTls": SERVICE_PORT_TLS, "webServicePortTls": WEB_PORT_TLS}
    found = ports | _tls(cluster) | _credentials(cluster, PROXY)
    if cluster.spec.authentication is not None:
        # Brokers, who know the grants, decide; the proxy only lets nobody in who has no token.
        found |= {"authorizationEnabled": False, "forwardAuthorizationCredentials": True}
    return found


def _tls(cluster: ClusterContext) -> dict[str, Scalar]:
    tls = cluster.spec.tls
    if tls is None:
        return {}
    found: dict[str, Scalar] = {
        "tlsCertificateFilePath": f"{TLS_DIRECTORY}/tls.crt",
        "tlsKeyFilePath": f"{TLS_DIRECTORY}/tls.key",
    }
    if tls.require_client_certificates:
        authority = f"{TLS_DIRECTORY}/ca.crt"
        found |= {"tlsTrustCertsFilePath": authority, "tlsRequireTrustedClientCertOnConnect": True}
    return found


def _token(cluster: ClusterContext) -> TokenSpec | None:
    return cluster.spec.authentication.token if cluster.spec.authentication is not None else None


def _credentials(cluster: ClusterContext, component: str) -> dict[str, Scalar]:
    wanted: AuthenticationSpec | None = cluster.spec.authentication
    if wanted is None:
        return {}
    token = wanted.token
    key, file = ("tokenSecretKey", "secret.key") if token.key == "Secret" else ("tokenPublicKey", "public.key")
    roles = {token.broker_role, token.proxy_role, *(wanted.super_user_roles or ())}
    return {
        "authenticationEnabled": True,
        "authenticationProviders": _PROVIDER,
        key: f"file://{TOKEN_DIRECTORY}/{file}",
        "authorizationEnabled": wanted.authorization,
        "superUserRoles": ",".join(sorted(roles)),
        "brokerClientAuthenticationPlugin": TOKEN_PLUGIN,
        "brokerClientAuthenticationParameters": f"file://{TOKEN_DIRECTORY}/{component}-token",
    }

"""Settings that the operator sets itself: where people set them too, theirs have no effect, and are told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from magnetar.operator.children import bookies, brokers, proxies
from magnetar.operator.children.configuration import setting_text
from magnetar.operator.children.context import ClusterContext
from magnetar.operator.resources.bookie import BookieSpec
from magnetar.operator.resources.cluster import ZookeeperSpec
from magnetar.operator.resources.common import Scalar

_ADDRESSES: Final = "ports and addresses of pods are fixed; spec.tls adds the TLS ports"
_ACCESS: Final = "use spec.authentication"
_INSTEAD: Final = {
    "advertisedAddress": _ADDRESSES,
    "authenticationEnabled": _ACCESS,
    "authenticationProviders": _ACCESS,
    "authorizationEnabled": "use spec.authentication.authorization",
    "bookiePort": _ADDRESSES,
    "brokerClientAuthenticationParameters": "use the Secret of spec.authentication.token",
    "brokerClientAuthenticationPlugin": _ACCESS,
    "brokerServicePort": _ADDRESSES,
    "brokerServicePortTls": _ADDRESSES,
    "clusterName": "use the PulsarCluster's own name",
    "configurationMetadataStoreUrl": "use spec.metadata.configurationUrl",
    "controlPort": "the operator needs that port",
    "controlTokenFile": "use the Secret CLUSTER-control",
    "forwardAuthorizationCredentials": _ACCESS,
    "journalDirectories": "use storage.journal.count",
    "ledgerDirectories": "use storage.ledgers.count",
    "loadBalancerAutoBundleSplitEnabled": "use spec.balance.splits",
    "metadataServiceUri": "use spec.metadata.url",
    "metadataStoreUrl": "use spec.metadata.url",
    "prometheusStatsHttpPort": "PodMonitors go by that port",
    "proxyRoles": "use spec.authentication.token.proxyRole",
    "servicePort": "use spec.tls.plainPorts",
    "servicePortTls": _ADDRESSES,
    "superUserRoles": "use spec.authentication.superUserRoles",
    "tlsCertificateFilePath": "use spec.tls.secretName",
    "tlsKeyFilePath": "use spec.tls.secretName",
    "tlsRequireTrustedClientCertOnConnect": "use spec.tls.requireClientCertificates",
    "tlsTrustCertsFilePath": "use ca.crt in the Secret of spec.tls",
    "tokenPublicKey": "use the Secret of spec.authentication.token, with key: Public",
    "tokenSecretKey": "use the Secret of spec.authentication.token",
    "webServicePort": _ADDRESSES,
    "webServicePortTls": _ADDRESSES,
}
"""What to do instead, by the setting's name."""

_CONTROL_TOKEN: Final = "controlTokenFile"  # noqa: S105  (a setting's name)
_BY_ADDRESS: Final = frozenset({"advertisedAddress", _CONTROL_TOKEN})
"""What pods have by their environment, which goes before the file."""
_BY_TOKEN: Final = frozenset({_CONTROL_TOKEN})


def cluster_settings_without_effect(cluster: ClusterContext) -> list[str]:
    """Settings of a PulsarCluster that say otherwise than the operator's own, each with what to use instead. Those of
    its bookies are told by the pool."""
    shared = ("spec.settings", cluster.spec.settings)
    broker = ("spec.broker.settings", cluster.spec.broker.settings)
    found = _without_effect((shared, broker), brokers.owned_settings(cluster), _BY_ADDRESS)
    if cluster.spec.proxy.replicas:
        proxy = ("spec.proxy.settings", cluster.spec.proxy.settings)
        found += _without_effect((shared, proxy), proxies.owned_settings(cluster), _BY_TOKEN)
    zookeeper = cluster.spec.metadata.zookeeper or ZookeeperSpec()
    if zookeeper.replicas > 1:
        servers = [name for name in sorted(zookeeper.settings or {}) if name.startswith("server.")]
        found += [f"spec.metadata.zookeeper.settings.{name} (use spec.metadata.zookeeper.replicas)" for name in servers]
    return list(dict.fromkeys(found))


def pool_settings_without_effect(cluster: ClusterContext, spec: BookieSpec) -> list[str]:
    """Settings of a pool that say otherwise than the operator's own, each with what to use instead."""
    return _without_effect((("spec.settings", spec.settings),), bookies.owned_settings(cluster, spec), _BY_ADDRESS)


def _without_effect(
    given: Iterable[tuple[str, Mapping[str, Scalar] | None]], owned: Mapping[str, Scalar], by_pods: frozenset[str]
) -> list[str]:
    found = []
    for place, settings in given:
        for name, value in sorted((settings or {}).items()):
            differs = name in owned and setting_text(value) != setting_text(owned[name])
            if differs or name in by_pods:
                found.append(f"{place}.{name} ({_INSTEAD.get(name, 'leave it out')})")
    return found

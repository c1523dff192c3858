"""Settings that the operator sets itself: where people set them too, theirs have no effect, and are told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from magnetar.operator.children import bookies, brokers, proxies, read_only
from magnetar.operator.children.configuration import setting_text
from magnetar.operator.children.context import ClusterContext
from magnetar.operator.resources.bookie import BookieSpec
from magnetar.operator.resources.cluster import ZookeeperSpec
from magnetar.operator.resources.common import Scalar

_Given: TypeAlias = tuple[str, Mapping[str, Scalar] | None]
"""Where settings stand in the spec, and what they are."""

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
    read_only.READ_ONLY_SETTING: "spec.readOnlyBrokers is about such brokers, spec.broker about the others",
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
_INSTEAD_ATTACHED: Final = _INSTEAD | {
    "brokerClientAuthenticationParameters": "use the Secret of spec.attach.credentials",
    "brokerClientAuthenticationPlugin": "use spec.attach.credentials",
    "brokerClientTlsEnabled": "use spec.attach.brokerTls",
    "brokerClientTrustCertsFilePath": "use ca.crt in the Secret of spec.attach.brokerTls",
    "clusterName": "use spec.attach.clusterName",
}
"""What to do instead where the cluster is one that others run."""

_CONTROL_TOKEN: Final = "controlTokenFile"  # noqa: S105  (a setting's name)
_BY_ADDRESS: Final = frozenset({"advertisedAddress", _CONTROL_TOKEN})
"""What pods have by their environment, which goes before the file."""
_BY_TOKEN: Final = frozenset({_CONTROL_TOKEN})


def cluster_settings_without_effect(cluster: ClusterContext) -> list[str]:
    """Settings of a PulsarCluster that say otherwise than the operator's own, each with what to use instead. Those of
    its bookies are told by the pool."""
    shared = ("spec.settings", cluster.spec.settings)
    if cluster.attached:
        return list(dict.fromkeys(_read_only_without_effect(cluster, shared, _INSTEAD_ATTACHED)))
    broker = ("spec.broker.settings", cluster.spec.broker.settings)
    found = _without_effect((shared, broker), brokers.owned_settings(cluster), _BY_ADDRESS)
    if cluster.spec.proxy.replicas:
        proxy = ("spec.proxy.settings", cluster.spec.proxy.settings)
        found += _without_effect((shared, proxy), proxies.owned_settings(cluster), _BY_TOKEN)
    found += _read_only_without_effect(cluster, shared, _INSTEAD)
    zookeeper = cluster.spec.metadata.zookeeper or ZookeeperSpec()
    if zookeeper.replicas > 1:
        servers = [name for name in sorted(zookeeper.settings or {}) if name.startswith("server.")]
        found += [f"spec.metadata.zookeeper.settings.{name} (use spec.metadata.zookeeper.replicas)" for name in servers]
    return list(dict.fromkeys(found))


def _read_only_without_effect(cluster: ClusterContext, shared: _Given, instead: Mapping[str, str]) -> list[str]:
    spec = cluster.spec.read_only_brokers
    if spec is None:
        return []
    given = (shared, ("spec.readOnlyBrokers.settings", spec.settings))
    by_pods = _BY_ADDRESS | read_only.parameters_by_environment(cluster)
    return _without_effect(given, read_only.owned_settings(cluster), by_pods, instead)


def pool_settings_without_effect(cluster: ClusterContext, spec: BookieSpec) -> list[str]:
    """Settings of a pool that say otherwise than the operator's own, each with what to use instead."""
    return _without_effect((("spec.settings", spec.settings),), bookies.owned_settings(cluster, spec), _BY_ADDRESS)


def _without_effect(
    given: Iterable[_Given],
    owned: Mapping[str, Scalar],
    by_pods: frozenset[str],
    instead: Mapping[str, str] = _INSTEAD,
) -> list[str]:
    found = []
    for place, settings in given:
        for name, value in sorted((settings or {}).items()):
            differs = name in owned and setting_text(value) != setting_text(owned[name])
            if differs or name in by_pods:
                found.append(f"{place}.{name} ({instead.get(name, 'leave it out')})")
    return found

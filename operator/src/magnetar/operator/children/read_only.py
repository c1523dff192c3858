"""The read-only brokers: a Deployment, their Service and their configuration. Also over a cluster that others run."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.children.access import TOKEN_PLUGIN, broker_access_settings, client_ports
from magnetar.operator.children.brokers import GRACE_SECONDS, HAND_OVER_SECONDS, RESOURCES
from magnetar.operator.children.configuration import settings_file, settings_map
from magnetar.operator.children.context import BROKER_CONTROL_PORT, SERVICE_PORT, WEB_PORT, ClusterContext
from magnetar.operator.children.naming import BROKER, READ_ONLY_BROKER, READER_LABEL, labels
from magnetar.operator.children.pods import field_variable
from magnetar.operator.children.servers import Server, client_service, server_deployment
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import Scalar
from magnetar.operator.resources.read_only import AttachCredentials

FILE: Final = "broker.conf"
READ_ONLY_SETTING: Final = "readOnlyBrokerEnabled"
"""What makes a broker one that serves consumers and readers, and writes nothing."""

CREDENTIALS_DIRECTORY: Final = "/credentials"
BROKER_TLS_DIRECTORY: Final = "/broker-tls"
TOKEN_KEY: Final = "token"  # noqa: S105  (a key's name)
"""The key of a Secret with what is shown to the brokers of a cluster that others run, without a plugin's name."""
PARAMETERS_KEY: Final = "parameters"
"""The key with the parameters of a plugin that is named."""

_PARAMETERS: Final = "brokerClientAuthenticationParameters"


def read_only_children(cluster: ClusterContext, replicas: int | None) -> list[Manifest]:
    """Everything of the read-only brokers; nothing if there are to be none. Without `replicas` their number is not the
    operator's to set."""
    spec = cluster.spec.read_only_brokers
    if spec is None:
        return []
    its_labels = labels(cluster.name, READ_ONLY_BROKER, version=cluster.version)
    configuration = settings_map(cluster.owner, cluster.read_only_broker, its_labels, {FILE: _settings(cluster)})
    server = Server(
        component=READ_ONLY_BROKER,
        program=BROKER,
        spec=spec,
        # The other cluster may be one of ours, behind network policies.
        labels=its_labels | ({READER_LABEL: "true"} if cluster.attached else {}),
        configuration=configuration,
        file=FILE,
        ports={"pulsar": SERVICE_PORT, "http": WEB_PORT, **client_ports(cluster), "control": BROKER_CONTROL_PORT},
        resources=RESOURCES,
        grace_seconds=GRACE_SECONDS,
        environment=[
            field_variable("POD_IP", "status.podIP"),
            {"name": "PULSAR_PREFIX_advertisedAddress", "value": "$(POD_IP)"},
            *_environment(cluster),
        ],
        data_mounts=[
            {"name": name, "mountPath": path, "readOnly": True} for name, path, _ in _attached_secrets(cluster)
        ],
        volumes=[
            {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}
            for name, _, secret in _attached_secrets(cluster)
        ],
    )
    service = client_service(cluster, READ_ONLY_BROKER, its_labels, spec.service)
    return [configuration, service, server_deployment(cluster, server, replicas)]


def owned_settings(cluster: ClusterContext) -> dict[str, Scalar]:
    """What people cannot set of read-only brokers."""
    return (
        broker_access_settings(cluster)
        | _attached_settings(cluster)
        | {
            "clusterName": cluster.pulsar_name,
            "metadataStoreUrl": cluster.metadata_url,
            "configurationMetadataStoreUrl": cluster.configuration_url,
            "controlPort": BROKER_CONTROL_PORT,
            READ_ONLY_SETTING: True,
        }
    )


def parameters_by_environment(cluster: ClusterContext) -> frozenset[str]:
    """The settings that pods have by their environment, because a Secret has them."""
    return frozenset({_PARAMETERS} if _environment(cluster) else ())


def _settings(cluster: ClusterContext) -> str:
    spec = cluster.spec.read_only_brokers
    defaults: dict[str, Scalar] = {
        "brokerShutdownTimeoutMs": HAND_OVER_SECONDS * 1000,
        # A pod that is gone is known to be: consumers need not wait for the subscriptions that it held.
        "metadataStoreSessionTimeoutMillis": 10_000,
    }
    own = spec.settings if spec is not None else None
    return settings_file(defaults, cluster.spec.settings, own, owned_settings(cluster))


def _credentials(cluster: ClusterContext) -> AttachCredentials | None:
    return cluster.spec.attach.credentials if cluster.spec.attach is not None else None


def _attached_secrets(cluster: ClusterContext) -> list[tuple[str, str, str]]:
    """Volume, path and Secret of what the other cluster's brokers are shown, and are known by."""
    found = []
    if (credentials := _credentials(cluster)) is not None:
        found.append(("credentials", CREDENTIALS_DIRECTORY, credentials.secret_name))
    if cluster.spec.attach is not None and (tls := cluster.spec.attach.broker_tls) is not None:
        found.append(("broker-tls", BROKER_TLS_DIRECTORY, tls.secret_name))
    return found


def _attached_settings(cluster: ClusterContext) -> dict[str, Scalar]:
    """How the other cluster's brokers are spoken to."""
    found: dict[str, Scalar] = {}
    if (credentials := _credentials(cluster)) is not None:
        found["brokerClientAuthenticationPlugin"] = credentials.plugin or TOKEN_PLUGIN
        # A token's file is read each time: a new one needs no restart. A plugin's parameters are in the environment.
        found[_PARAMETERS] = "" if credentials.plugin else f"file://{CREDENTIALS_DIRECTORY}/{TOKEN_KEY}"
    if cluster.spec.attach is not None and cluster.spec.attach.broker_tls is not None:
        found |= {
            "brokerClientTlsEnabled": True,
            "brokerClientTrustCertsFilePath": f"{BROKER_TLS_DIRECTORY}/ca.crt",
        }
    return found


def _environment(cluster: ClusterContext) -> list[dict[str, Any]]:
    credentials = _credentials(cluster)
    if credentials is None or credentials.plugin is None:
        return []
    source = {"secretKeyRef": {"name": credentials.secret_name, "key": PARAMETERS_KEY}}
    return [{"name": f"PULSAR_PREFIX_{_PARAMETERS}", "valueFrom": source}]

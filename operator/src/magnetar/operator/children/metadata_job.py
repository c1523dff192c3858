"""The Job that writes into a new cluster's metadata store what bookies and brokers expect to find there."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from magnetar.operator.children.access import plain_ports
from magnetar.operator.children.configuration import digest
from magnetar.operator.children.context import SERVICE_PORT, SERVICE_PORT_TLS, WEB_PORT, WEB_PORT_TLS, ClusterContext
from magnetar.operator.children.naming import INIT, child, labels, selector
from magnetar.operator.children.pods import Container, Pod, pod_template
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import Component, PodTemplate

RESOURCES: Final[dict[str, Any]] = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}

RETRIES_MAX: Final = 30
"""Each waits longer, up to six minutes: a store that is not up within an hour or two is somebody's to look at."""


def metadata_job(cluster: ClusterContext) -> Manifest:
    """Its name carries the digest of what it is told, for a Job cannot be changed. Running it again does no harm."""
    arguments = ["init-metadata", *_options(cluster)]
    broker = cluster.spec.broker
    container = Container(
        name=INIT,
        # The brokers' own image, so that a new kind of node's first version is the brokers'.
        image=cluster.image("broker", Component(image=broker.image)),
        pull_policy=cluster.spec.image_pull_policy,
        arguments=arguments,
        ports={},
        resources=RESOURCES,
    )
    its_labels = labels(cluster.name, INIT, version=cluster.version)
    pod = Pod(
        container=container,
        labels=its_labels,
        selector=selector(cluster.name, INIT),
        grace_seconds=10,
        pull_secrets=cluster.spec.image_pull_secrets or (),
    )
    template = pod_template(pod, _where_brokers_run(cluster), None)
    template["spec"]["restartPolicy"] = "OnFailure"
    spec = {"backoffLimit": RETRIES_MAX, "template": template}
    return child(cluster.owner, "Job", f"{cluster.name}-{INIT}-{digest(spec)}", its_labels, spec=spec)


def _where_brokers_run(cluster: ClusterContext) -> PodTemplate | None:
    """Tolerations, node selectors and such, without what is of the brokers' own container."""
    wanted = cluster.spec.broker.pod
    if wanted is None:
        return None
    return msgspec.structs.replace(wanted, env=None, volumes=None, volume_mounts=None, sidecars=None)


def public_urls(cluster: ClusterContext) -> dict[str, str]:
    """Where other clusters and old clients reach this one, by the options that say it; empty: not so."""
    address, plain, tls = cluster.address(cluster.entrance), plain_ports(cluster), cluster.spec.tls is not None
    return {
        "--web-service-url": f"http://{address}:{WEB_PORT}" if plain else "",
        "--broker-service-url": f"pulsar://{address}:{SERVICE_PORT}" if plain else "",
        "--web-service-url-tls": f"https://{address}:{WEB_PORT_TLS}" if tls else "",
        "--broker-service-url-tls": f"pulsar+ssl://{address}:{SERVICE_PORT_TLS}" if tls else "",
    }


def metadata_digest(cluster: ClusterContext) -> str:
    """A digest of what the Job writes: another one must run when it changes."""
    return digest(_options(cluster))


def _options(cluster: ClusterContext) -> list[str]:
    found = ["--cluster", cluster.name, "--metadata-store", cluster.metadata_url]
    for option, url in public_urls(cluster).items():
        # Empty, it takes away what is written there.
        found += [option, url]
    if cluster.spec.metadata.configuration_url is not None:
        found += ["--configuration-metadata-store", cluster.spec.metadata.configuration_url]
    return found

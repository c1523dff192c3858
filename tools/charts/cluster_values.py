"""The values of the chart `magnetar-cluster`: from these types come its values.yaml, schema and table."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from magnetar.operator.resources.bookie import BookieSpec
from magnetar.operator.resources.cluster import PulsarClusterSpec
from magnetar.operator.resources.common import NAME_LENGTH_MAX, Free, Part, ResourceRequirements
from magnetar.operator.resources.crd import structural_schema
from magnetar.operator.resources.markers import says

NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

EXAMPLE: Final = """\
bookkeeper:
  replicas: 3
  ensembleSize: 3
  storage:
    journal: {size: 20Gi, storageClassName: fast}
    ledgers: {size: 200Gi}
broker:
  autoscaling: {minReplicas: 2, maxReplicas: 8}
  resources:
    requests: {cpu: "2", memory: 4Gi}
    limits: {memory: 4Gi}
proxy:
  service: {type: LoadBalancer}
tls: {secretName: pulsar-tls}
authentication:
  token: {secretName: pulsar-tokens}
"""
"""Of `cluster`, in values.yaml as a comment: what is set most often."""

POOL_EXAMPLE: Final = """\
archive:
  replicas: 3
  storage:
    journal: {size: 10Gi}
    ledgers: {size: 2Ti, storageClassName: large}
"""


class SmokeTest(Part, kw_only=True, frozen=True):
    """What `helm test` runs: a pod that publishes through the Service that clients use, reads back and compares."""

    enabled: Annotated[bool, says("Whether there is a test.")] = True
    image: Annotated[
        str, says("By default `cluster.imageRepository`/tools:`cluster.version`, or `imageRepository` and appVersion.")
    ] = ""
    image_repository: Annotated[
        str, says("What the image's name begins with where `cluster.imageRepository` is not given.")
    ] = "magnetar"
    service_url: Annotated[
        str,
        msgspec.Meta(pattern=r"^(pulsar(\+ssl)?://.+)?$"),
        says("By default the cluster's Service, with TLS if it has that."),
    ] = ""
    topic: Annotated[str, msgspec.Meta(min_length=1), says("Where to; it comes to be by being used.")] = (
        "persistent://public/default/smoke-test"
    )
    messages: Annotated[int, msgspec.Meta(ge=1, le=100_000), says("How many.")] = 100
    timeout_seconds: Annotated[
        int, msgspec.Meta(ge=1), says("How long each step may take; a cluster that is starting is waited for.")
    ] = 180
    verify_host_name: Annotated[bool, says("Whether the certificate must be for the Service's name.")] = True
    certificate_secret_name: Annotated[
        str, says("A Secret with the certificate's authority as ca.crt; by default `cluster.tls.secretName`.")
    ] = ""
    token_secret_name: Annotated[
        str,
        says(
            "A Secret with a client's token as `token`; by default the brokers' own, "
            "`cluster.authentication.token.secretName`."
        ),
    ] = ""
    resources: Annotated[ResourceRequirements, says("Processor and memory.")] = ResourceRequirements(
        requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "256Mi"}
    )
    node_selector: Annotated[dict[str, str], says("Labels that a node must have.")] = msgspec.field(
        default_factory=dict
    )
    tolerations: Annotated[list[Free], says("Taints of nodes that do not keep the pod away.")] = msgspec.field(
        default_factory=list
    )
    labels: Annotated[dict[str, str], says("Further labels of the pod.")] = msgspec.field(default_factory=dict)
    annotations: Annotated[dict[str, str], says("Further annotations of the pod.")] = msgspec.field(
        default_factory=dict
    )


class ClusterValues(Part, kw_only=True, frozen=True):
    """All values of the chart."""

    name: Annotated[
        str,
        msgspec.Meta(max_length=NAME_LENGTH_MAX, pattern=f"({NAME_PATTERN})|^$"),
        says("Of the PulsarCluster, and so of all that is made for it; by default the release's. It cannot change."),
    ] = ""
    labels: Annotated[dict[str, str], says("Further labels of the resources.")] = msgspec.field(default_factory=dict)
    annotations: Annotated[dict[str, str], says("Annotations of the resources.")] = msgspec.field(default_factory=dict)
    cluster: Annotated[
        PulsarClusterSpec,
        says("The PulsarCluster's `spec`, as it is. What is left out has the operator's defaults."),
    ] = PulsarClusterSpec()
    pools: Annotated[
        dict[str, BookieSpec],
        says(
            "Further pools of bookies, by the last part of their names: each is the `spec` of a Bookie resource called "
            "after the cluster and this, without `clusterName`."
        ),
    ] = msgspec.field(default_factory=dict)
    test: Annotated[SmokeTest, says("What `helm test` does.")] = SmokeTest()


def cluster_schema() -> dict[str, Any]:
    """The structural schema of the values: what the chart fills in by itself cannot be given."""
    schema = structural_schema(ClusterValues)
    pools = schema["properties"]["pools"]
    pool = pools["additionalProperties"]
    del pool["properties"]["clusterName"]
    pool["required"] = [name for name in pool.get("required", []) if name != "clusterName"]
    pools["propertyNames"] = {"pattern": NAME_PATTERN, "maxLength": NAME_LENGTH_MAX - 2}
    return schema

"""What an operator may set for the admin API, under Pulsar's own meanings (`ServiceConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.core.limits import MIB
from magnetar.core.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """What is allowed, and what is told of where the cluster keeps its metadata."""

    force_delete_namespace_allowed: bool = setting("forceDeleteNamespaceAllowed", False, dynamic="broker")
    """Whether `force` deletes a namespace with its topics."""
    force_delete_tenant_allowed: bool = setting("forceDeleteTenantAllowed", False, dynamic="broker")
    """Whether `force` deletes a tenant with its namespaces and their topics."""
    tenants_max: int = setting("maxTenants", 0, dynamic="broker", below_zero=0)
    """Tenants that the cluster may have; 0 is no limit."""
    namespaces_per_tenant_max: int = setting("maxNamespacesPerTenant", 0, dynamic="broker", below_zero=0)
    """Namespaces that a tenant may have; 0 is no limit."""
    metadata_store_url: str = setting("metadataStoreUrl", "")
    """The metadata store's URL that tools are told which need the cluster's metadata."""
    configuration_metadata_store_url: str = setting("configurationMetadataStoreUrl", "")
    """The URL of the store that the clusters of an instance share; empty: `metadata_store_url`."""
    bookkeeper_metadata_service_uri: str = setting("bookkeeperMetadataServiceUri", "")
    """The URL of the bookies' metadata store that tools are told; empty: the cluster's own store."""
    topic_metrics: bool = setting("exposeTopicLevelMetricsInPrometheus", True)
    """Whether `/metrics` has a line for each topic and subscription; else one for each namespace."""
    consumer_metrics: bool = setting("exposeConsumerLevelMetricsInPrometheus", False)
    """Whether `/metrics` has lines for each consumer, too."""
    unknown_members_refused: bool = setting("httpRequestsFailOnUnknownPropertiesEnabled", False, dynamic="broker")
    """Whether a body with a member that nobody knows is refused; else the member is passed over."""
    client_versions_checked: bool = setting("clientLibraryVersionCheckEnabled", False, dynamic="broker")
    """Whether clients that are too old for partitioned topics, or do not name themselves, are told no counts."""
    status_file: str = setting("statusFilePath", "")
    """The file without which /status.html is 404, as load balancers ask; empty: no such file is wanted."""
    http_connections_max: int = setting("maxHttpServerConnections", 2_048, low=1)
    """HTTP connections at a time; when another one comes, the one goes that has asked for nothing for the longest."""
    http_header_bytes_max: int = setting("httpMaxRequestHeaderSize", 8_192, low=256, high=16 * MIB)
    """Bytes of the first line of an HTTP request, and of each of its headers, at most."""
    region_aware_placement: bool = setting("bookkeeperClientRegionawarePolicyEnabled", False)
    """Whether a bookie's rack may be set with its region."""

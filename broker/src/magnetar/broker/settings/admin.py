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
    """The same for a tenant with its namespaces."""
    tenants_max: int = setting("maxTenants", 0, dynamic="broker", below_zero=0)
    """0 is no limit."""
    namespaces_per_tenant_max: int = setting("maxNamespacesPerTenant", 0, dynamic="broker", below_zero=0)
    """0 is no limit."""
    metadata_store_url: str = setting("metadataStoreUrl", "")
    """As tools that need the cluster's metadata are told it."""
    configuration_metadata_store_url: str = setting("configurationMetadataStoreUrl", "")
    """Empty: the same."""
    bookkeeper_metadata_service_uri: str = setting("bookkeeperMetadataServiceUri", "")
    """Empty: the bookies use the cluster's own store."""
    status_file: str = setting("statusFilePath", "")
    """/status.html is 404 while this file is not there; empty: no such file is wanted."""
    http_connections_max: int = setting("maxHttpServerConnections", 2_048, low=1)
    """When another one comes, the one goes that has asked for nothing for the longest."""
    http_header_bytes_max: int = setting("httpMaxRequestHeaderSize", 8_192, low=256, high=16 * MIB)
    """Of the first line, and of each header."""
    region_aware_placement: bool = setting("bookkeeperClientRegionawarePolicyEnabled", False)
    """Whether racks may be told with their region."""

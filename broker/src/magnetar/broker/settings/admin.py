"""What an operator may set for the admin API, under Pulsar's own meanings (`ServiceConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """What is allowed, and what is told of where the cluster keeps its metadata."""

    force_delete_namespace_allowed: bool = False
    """`forceDeleteNamespaceAllowed`: whether `force` deletes a namespace with its topics."""
    force_delete_tenant_allowed: bool = False
    """`forceDeleteTenantAllowed`: the same for a tenant with its namespaces."""
    tenants_max: int = 0
    """`maxTenants`; 0 is no limit."""
    namespaces_per_tenant_max: int = 0
    """`maxNamespacesPerTenant`; 0 is no limit."""
    metadata_store_url: str = ""
    """`metadataStoreUrl`, as tools that need the cluster's metadata are told it."""
    configuration_metadata_store_url: str = ""
    """`configurationMetadataStoreUrl`; empty: the same."""
    bookkeeper_metadata_service_uri: str = ""
    """`bookkeeperMetadataServiceUri`; empty: the bookies use the cluster's own store."""
    status_file: str = ""
    """`statusFilePath`: /status.html is 404 while this file is not there; empty: no such file is wanted."""
    http_connections_max: int = 2_048
    """`maxHttpServerConnections`: when another one comes, the one goes that has asked for nothing for the longest."""
    http_header_bytes_max: int = 8_192
    """`httpMaxRequestHeaderSize`: of the first line, and of each header."""
    region_aware_placement: bool = False
    """`bookkeeperClientRegionawarePolicyEnabled`: whether racks may be told with their region."""


ADMIN_NAMES: Final[dict[str, str]] = {
    "bookkeeperClientRegionawarePolicyEnabled": "region_aware_placement",
    "bookkeeperMetadataServiceUri": "bookkeeper_metadata_service_uri",
    "configurationMetadataStoreUrl": "configuration_metadata_store_url",
    "forceDeleteNamespaceAllowed": "force_delete_namespace_allowed",
    "forceDeleteTenantAllowed": "force_delete_tenant_allowed",
    "httpMaxRequestHeaderSize": "http_header_bytes_max",
    "maxHttpServerConnections": "http_connections_max",
    "maxNamespacesPerTenant": "namespaces_per_tenant_max",
    "maxTenants": "tenants_max",
    "metadataStoreUrl": "metadata_store_url",
    "statusFilePath": "status_file",
}

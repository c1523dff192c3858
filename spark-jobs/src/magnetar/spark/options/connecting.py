"""How a cluster is reached: what drivers and executors need alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Pickled with every task and used as the key of what a process keeps open, so plain and hashable."""

    service_url: str
    """pulsar://host:port or pulsar+ssl://…, brokers or proxies [service.url]."""
    admin_url: str = ""
    """http(s)://host:port [admin.url]; empty: the admin API is not used."""
    metadata_url: str = ""
    """zk:… or etcd:… [metadata.url]; empty: the brokers are asked for it (by the admin API)."""
    token: str = ""
    """A JSON Web Token for brokers and the admin API."""
    auth_plugin: str = ""
    auth_params: str = ""
    tls_trust_certificates_file: str = ""
    tls_allow_insecure: bool = False
    tls_hostname_verification: bool = True
    operation_timeout_seconds: float = 30.0

    def __repr__(self) -> str:
        """Without the credentials: this is printed in errors and logs."""
        return f"ConnectionOptions({self.service_url!r}, admin {self.admin_url!r}, metadata {self.metadata_url!r})"

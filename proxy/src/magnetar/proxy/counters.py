"""What the proxy counts; plain numbers, read when somebody asks for metrics."""

from __future__ import annotations


class ProxyCounters:
    """What the proxy counts since its start."""

    def __init__(self) -> None:
        self.new_connections = 0
        self.closed_reads = 0
        self.closed_bytes = 0
        """Bytes of data connections that have ended; those that stand count for themselves."""
        self.lookup_requests = 0
        self.partitions_metadata_requests = 0
        self.get_topics_of_namespace_requests = 0
        self.get_schema_requests = 0
        self.rejected_lookup_requests = 0
        self.rejected_partitions_metadata_requests = 0
        self.rejected_get_topics_of_namespace_requests = 0
        self.denied_targets = 0
        self.authentication_failures = 0
        self.broker_connection_failures = 0
        self.http_requests = 0
        self.http_failures = 0

"""What the proxy counts; plain numbers, read when somebody asks for metrics."""

from __future__ import annotations

from collections import Counter


class ProxyCounters:
    """What the proxy counts since its start."""

    def __init__(self) -> None:
        self.new_connections = 0
        self.closed_reads = 0
        self.closed_bytes = 0
        """Bytes of data connections that have ended; those that stand count for themselves."""
        self.requests: Counter[int] = Counter()
        """Of lookup connections, by the command's type."""
        self.rejected_requests: Counter[int] = Counter()
        self.denied_targets = 0
        self.authentication_failures = 0
        self.broker_connection_failures = 0
        self.http_requests = 0
        self.http_failures = 0

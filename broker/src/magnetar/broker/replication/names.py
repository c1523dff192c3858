"""What Apache's brokers call the cursors and producers of replication. Pure.

Facts: Pulsar `AbstractReplicator.getReplicatorName`, `GeoPersistentReplicator.getProducerName`."""

from __future__ import annotations

from typing import Final

from magnetar.core.errors import Misuse

REPLICATOR_PREFIX: Final = "pulsar.repl"
"""Apache's default of the setting `replicatorPrefix`."""

ARROW: Final = "-->"
"""Between the source and the destination in the name of a producer."""


def check_cluster(name: str) -> None:
    """Raises `Misuse` for a cluster that no cursor can be called after: it is read back up to the last dot."""
    if not name or "." in name or ARROW in name:
        raise Misuse(f"cluster {name!r} cannot be replicated to: its name must be without dots and without {ARROW!r}")


def cursor_name(remote: str, prefix: str = REPLICATOR_PREFIX) -> str:
    """The cursor that remembers what a remote cluster has. Raises `Misuse` for a name with dots."""
    check_cluster(remote)
    return f"{prefix}.{remote}"


def producer_name(local: str, remote: str, prefix: str = REPLICATOR_PREFIX) -> str:
    """The producer that writes to the remote cluster. Raises `Misuse` for names with dots."""
    check_cluster(local)
    return f"{cursor_name(remote, prefix)[: -len(remote)]}{local}{ARROW}{remote}"


def remote_of_cursor(name: str, prefix: str = REPLICATOR_PREFIX) -> str | None:
    """The remote cluster of a replication cursor; None for any other cursor."""
    head, dot, remote = name.rpartition(".")
    return remote if dot and remote and head == prefix else None


def clusters_of_producer(name: str, prefix: str = REPLICATOR_PREFIX) -> tuple[str, str] | None:
    """Source and destination of a replication producer; None for any other producer.

    The destination is empty where an old sender named only the source."""
    start = f"{prefix}."
    if not name.startswith(start):
        return None
    source, _, destination = name[len(start) :].partition(ARROW)
    return (source, destination) if source else None

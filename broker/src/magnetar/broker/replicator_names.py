"""What Apache's brokers call the cursors and producers of replication, and the property that goes with it. Pure.

Facts: Pulsar `AbstractReplicator.getReplicatorName`, `GeoPersistentReplicator.getProducerName`,
`GeoReplicationProducerImpl`."""

from __future__ import annotations

from typing import Final

from magnetar.core.errors import Misuse
from magnetar.core.topic_name import java_url_encode

REPLICATOR_PREFIX: Final = "pulsar.repl"
"""How producers of other clusters and their cursors are called (Apache's default of `replicatorPrefix`); they are no
clients and do not count."""

CLUSTER_PREFIX: Final = REPLICATOR_PREFIX + "."
"""Before the name of a cluster."""

SHADOW_PREFIX: Final = REPLICATOR_PREFIX + "-"
"""Before the name of a shadow topic in its cursor's, and of its source in its producer's."""

ARROW: Final = "-->"
"""Between the source and the destination in a producer's name. Old brokers leave it out, and the destination with
it."""

SOURCE_POSITION_PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
"""The property of a message that says where it stands at its source: `<ledger>:<entry>`."""


def is_replicator(producer_name: str) -> bool:
    """Whether it is the producer of another cluster, or of a shadow topic's source."""
    return producer_name.startswith(REPLICATOR_PREFIX)


def check_cluster(name: str) -> None:
    """Raises `Misuse` for a cluster that no cursor can be called after: it is read back up to the last dot."""
    if not name or "." in name or ARROW in name:
        raise Misuse(f"cluster {name!r} cannot be replicated to: its name must be without dots and without {ARROW!r}")


def cursor_name(remote: str) -> str:
    """The cursor that remembers what a remote cluster has. Raises `Misuse` for a name with dots."""
    check_cluster(remote)
    return CLUSTER_PREFIX + remote


def producer_name(local: str, remote: str) -> str:
    """The producer that writes to the remote cluster. Raises `Misuse` for names with dots."""
    check_cluster(local)
    check_cluster(remote)
    return producer_of(local, remote)


def producer_of(source: str, destination: str) -> str:
    """The producer by which one cluster replicates to another, whatever these are called."""
    return f"{CLUSTER_PREFIX}{source}{ARROW}{destination}"


def shadow_cursor_name(shadow: str) -> str:
    """The cursor that remembers what a shadow topic was told of; in memory only."""
    return SHADOW_PREFIX + java_url_encode(shadow)


def shadow_producer_name(source: str, shadow: str) -> str:
    """The producer by which a topic tells its shadow topic of its entries."""
    return f"{SHADOW_PREFIX}{source}{ARROW}{shadow}"


def is_shadow_producer(producer_name: str) -> bool:
    """Whether it is the producer by which a topic tells its shadow topic of its entries."""
    return producer_name.startswith(SHADOW_PREFIX)


def remote_of_cursor(name: str) -> str | None:
    """The remote cluster of a replication cursor; None for any other cursor."""
    head, dot, remote = name.rpartition(".")
    return remote if dot and remote and head == REPLICATOR_PREFIX else None


def source_cluster(producer_name: str) -> str | None:
    """The cluster whose replicator has this name; None when it is nobody's or a shadow topic's."""
    if not producer_name.startswith(CLUSTER_PREFIX):
        return None
    return producer_name.removeprefix(CLUSTER_PREFIX).partition(ARROW)[0] or None

"""How a client behaves: times, and bounds on what it holds."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.core.limits import MIB, PULSAR_FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """One client's settings; the defaults are those of Pulsar's Java client unless said otherwise."""

    client_version: str = "Magnetar"
    """What brokers show of who is connected."""
    connect_timeout_seconds: float = 10.0
    """For the TCP connection, and again for the handshake on it."""
    operation_timeout_seconds: float = 30.0
    """For an answer to a request, and for opening a producer or a consumer with all its attempts."""
    send_timeout_seconds: float = 30.0
    """After this long without a receipt a message fails, and with it those that were sent after it."""
    keep_alive_seconds: float = 30.0
    """How often the other side is asked whether it lives; it is given up when nothing came since the last time. 0:
    it is never asked."""
    backoff_seconds_min: float = 0.1
    """Pause after a first failed attempt; doubled with each further one."""
    backoff_seconds_max: float = 10.0
    """Java's is 60: what uses this client is a part of the cluster and is missed while it waits. Pauses are shorter
    while few wait (`magnetar.client.pauses`)."""
    attempts_per_second_max: float = 1_000.0
    """Of all producers and consumers that are on their way to a broker, about; with so many that pauses of
    `backoff_seconds_max` do not hold them to it, there are more."""
    redirects_max: int = 20
    """Brokers that one lookup may be sent to before it fails."""
    requests_max: int = 5_000
    """Requests without an answer on one connection, so that a broker that is silent cannot fill the memory."""
    connections_max: int = 1_000
    """Brokers connected to at once; more than any cluster has, so that only a mistake meets it."""
    pending_messages_max: int = 1_000
    """Messages of one producer without a receipt, after which `send` waits."""
    pending_bytes_max: int = 64 * MIB
    """Bytes of one producer without a receipt, after which `send` waits; one message may come on top."""
    receiver_queue_size: int = 1_000
    """Messages that a broker may send ahead to one consumer; one batch may come on top."""
    frame_bytes_max: int = PULSAR_FRAME_BYTES_MAX
    """The largest frame taken; where brokers take larger messages it has to grow with them."""
    relays: bool = False
    """Whether connections announce that messages of this cluster come with their source positions (Pulsar: the feature
    flag `supports_repl_dedup_by_lid_and_eid`); only replication does."""

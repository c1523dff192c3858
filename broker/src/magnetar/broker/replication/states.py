"""What a replicator is at, and why it stands still. Pure."""

from __future__ import annotations

import enum
from typing import Final

from magnetar.core.errors import MagnetarError, Misuse
from magnetar.core.transitions import Transitions
from magnetar.wire.pulsar.errors import PulsarError, ServerError


class ReplicatorState(enum.Enum):
    """Apache's states of a replicator (`AbstractReplicator.State`)."""

    DISCONNECTED = "Disconnected"
    STARTING = "Starting"
    """It connects to the remote cluster."""
    STARTED = "Started"
    DISCONNECTING = "Disconnecting"
    """It closes its producer: to begin again from what the cursor says, or because nobody uses the topic."""
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"


REPLICATOR_TRANSITIONS: Final = Transitions(
    "a replicator",
    {
        ReplicatorState.DISCONNECTED: {ReplicatorState.STARTING, ReplicatorState.TERMINATING},
        ReplicatorState.STARTING: {
            ReplicatorState.STARTED,
            ReplicatorState.DISCONNECTED,
            ReplicatorState.TERMINATING,
        },
        ReplicatorState.STARTED: {
            ReplicatorState.DISCONNECTING,
            ReplicatorState.DISCONNECTED,
            ReplicatorState.TERMINATING,
        },
        ReplicatorState.DISCONNECTING: {ReplicatorState.DISCONNECTED, ReplicatorState.TERMINATING},
        ReplicatorState.TERMINATING: {ReplicatorState.TERMINATED},
        ReplicatorState.TERMINATED: (),
    },
)


class Reason(enum.Enum):
    """Why a replicator stands still."""

    NONE = ""
    NO_REMOTE = "no remote"
    """Nothing says where the remote cluster is."""
    UNREACHABLE = "unreachable"
    NOT_AUTHORIZED = "not authorized"
    REFUSED = "refused by remote"
    SCHEMA = "schema"
    """It registers a schema at the remote cluster."""
    SCHEMA_REFUSED = "refused schema"
    RATE = "rate"
    """The dispatch rate of replicators, or of a resource group, is used up."""
    TRANSACTION = "open transaction"
    """What comes next belongs to a transaction that has not ended, or comes after it."""
    SILENT = "silent"
    """The watchdog found that nothing went on."""
    FULL = "full"
    """The remote cluster takes less than comes: the topic keeps nothing, and the rest is dropped."""
    IDLE = "idle"
    """Nobody uses the topic, and the remote cluster has everything: it connects with the next producer or message."""


class NoRemote(Misuse):
    """Nothing says where a remote cluster is, or how to be let in."""


class SchemaUnknown(MagnetarError):
    """A message names a version of a schema that this cluster does not have any more, or never had."""


def reason_of(error: MagnetarError) -> Reason:
    """The reason that an error is for standing still."""
    if isinstance(error, NoRemote):
        return Reason.NO_REMOTE
    if not isinstance(error, PulsarError):
        return Reason.UNREACHABLE
    if error.code in (ServerError.AUTHENTICATION_ERROR, ServerError.AUTHORIZATION_ERROR):
        return Reason.NOT_AUTHORIZED
    if error.code == ServerError.INCOMPATIBLE_SCHEMA:
        return Reason.SCHEMA_REFUSED
    return Reason.REFUSED

"""What administrators are shown of a subscription's acknowledgements in transactions."""

from __future__ import annotations

from typing import Any, Final

from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.transactions.pending_handle import PendingAckHandle, PendingAckState
from magnetar.core.ids import Position

_STATE_NAMES: Final = {
    PendingAckState.NEW: "None",
    PendingAckState.REPLAYING: "Initializing",
    PendingAckState.READY: "Ready",
    PendingAckState.FAILED: "Error",
    PendingAckState.CLOSED: "Close",
}
"""Apache's names (`PendingAckHandleState.State`)."""


def statistics(handle: PendingAckHandle, *, low_water_marks: bool) -> dict[str, Any]:
    """As Pulsar's `TransactionPendingAckStats`."""
    unused = handle.state is PendingAckState.READY and (handle.log is None or handle.log.ledger is None)
    marks = {str(coordinator): mark for coordinator, mark in handle.held.low_water_marks.items()}
    return {
        "state": "None" if unused else _STATE_NAMES[handle.state],
        "lowWaterMarks": marks if low_water_marks else None,
        "ongoingTxnSize": handle.held.open_transactions,
        "recoverStartTime": handle.recover_started_ms,
        "recoverEndTime": handle.recover_ended_ms,
    }


def cumulative_position(handle: PendingAckHandle, transaction: TransactionBits) -> str | None:
    """Up to where a transaction acknowledges: `ledger:entry`, within a batch with the message's index."""
    cumulative = handle.held.cumulative_of(transaction)
    if cumulative is None:
        return None
    text = f"{cumulative.position[0]}:{cumulative.position[1]}"
    if cumulative.left:
        text += f":{(cumulative.left & -cumulative.left).bit_length() - 2}"
    return text


def state_of(handle: PendingAckHandle, position: Position, batch_index: int | None) -> str:
    """Where a message stands, as Pulsar's `PositionInPendingAckStats.State`."""
    if handle.state is not PendingAckState.READY:
        return "PendingAckNotReady"
    if position <= handle.subscription.cursor.mark_delete:
        return "MarkDelete"
    bits = handle.held.entries.get(position)
    if bits is None:
        return "NotInPendingAck"
    if batch_index is None:
        return "PendingAck"
    if batch_index < 0 or batch_index >= handle.held.sizes.get(position, 0):
        return "InvalidPosition"
    return "PendingAck" if bits >> batch_index & 1 else "NotInPendingAck"

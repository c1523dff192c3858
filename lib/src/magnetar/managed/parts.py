"""What one managed ledger consists of, for those who work on it."""

from __future__ import annotations

from typing import NamedTuple

from magnetar.managed.append_path import AppendPath
from magnetar.managed.info_node import InfoNode
from magnetar.managed.ledger_readers import LedgerReaders
from magnetar.managed.ledger_rollover import LedgerRollover
from magnetar.managed.shared import Shared


class ManagedLedgerParts(NamedTuple):
    """Made once for each managed ledger."""

    shared: Shared
    node: InfoNode
    appends: AppendPath
    rollover: LedgerRollover
    readers: LedgerReaders

"""The parts of one managed ledger, as its helpers (offloads, trimming) are given them."""

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

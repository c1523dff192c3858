"""What a compaction leaves at a managed ledger: a cursor that holds what it went through, and names its ledger."""

from __future__ import annotations

from typing import Final

COMPACTION_CURSOR: Final = "__compaction"
"""The cursor that holds a topic's compaction (Pulsar: `Compactor.COMPACTION_SUBSCRIPTION`)."""

LEDGER_PROPERTY: Final = "CompactedTopicLedger"
"""Stored with that cursor's position (Pulsar: `Compactor.COMPACTED_TOPIC_LEDGER_PROPERTY`)."""

"""The names of the faults that `faults.Faults` knows; a seed draws some of them."""

from __future__ import annotations

from typing import Final

FAULT_KINDS: Final = (
    "drain_bookie",
    "expire_session",
    "failing_checkpoints",
    "failing_disk",
    "flip_bits",
    "full_disk",
    "kill_bookie",
    "kill_client",
    "kill_in_operation",
    "late_bookie",
    "lose_answers",
    "lose_bookie",
    "metadata_away",
    "one_way",
    "partition",
    "pause_bookie",
    "pause_client",
    "power_loss",
    "power_loss_in_operation",
    "power_loss_of_all",
    "resets",
    "rolling_restart",
    "slow_disk",
    "slow_links",
    "split_client",
    "stop_bookie",
    "swizzle",
)
"""May happen at any moment."""

AT_TAKEOVER: Final = (
    "dark_after_takeover",
    "kill_after_takeover",
    "kill_at_takeover",
    "resets_after_takeover",
    "split_at_takeover",
)
"""Happen when a recovery begins, or when it has ended."""

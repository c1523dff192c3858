"""Which bookies of an ensemble keep an entry: BookKeeper's round-robin schedule.

The write set of entry e is the indexes (e + i) mod E for i < Qw. It depends on the entry's id alone, not on where its
segment begins (BookKeeper: client/RoundRobinDistributionSchedule).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> list[int]:
    """Indexes of the bookies that keep the entry, in the order in which readers ask them."""
    return [(entry_id + offset) % ensemble_size for offset in range(write_quorum)]


def keeps(bookie_index: int, entry_id: int, ensemble_size: int, write_quorum: int) -> bool:
    """Whether the bookie at this index keeps the entry."""
    return (bookie_index - entry_id) % ensemble_size < write_quorum


def kept_entries(
    bookie_index: int, first_entry_id: int, last_entry_id: int, ensemble_size: int, write_quorum: int
) -> Sequence[int]:
    """The entries of first..last that the bookie keeps, ascending."""
    entries = range(first_entry_id, last_entry_id + 1)
    if ensemble_size == write_quorum:
        return entries
    return [entry for entry in entries if (bookie_index - entry) % ensemble_size < write_quorum]


def covered(answered: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Whether no entry can gather an ack quorum from the bookies that are not among `answered`.

    That is: in every run of Qw consecutive bookies, wrapping round, fewer than Qa are missing."""
    for start in range(ensemble_size):
        run = range(start, start + write_quorum)
        missing = len([index for index in run if index % ensemble_size not in answered])
        if missing >= ack_quorum:
            return False
    return True

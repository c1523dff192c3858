"""How many producers the deduplication of one topic knows: those that fit into its snapshot, and those that are there.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.core.limits import KIB, MIB
from magnetar.managed.info_codec import size_of_property
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from collections.abc import Container

SNAPSHOT_BYTES_MAX: Final = 2 * MIB
"""Bytes of a snapshot, with the names: 10 000 producers, which are Apache's limit, with names of 180 characters. It is
one entry of the cursor's ledger, of which bookies take 5 MiB, and is written for every 1 000 entries of the topic."""

SOURCES_BYTES_MAX: Final = SNAPSHOT_BYTES_MAX // 4
"""Of these for positions of other clusters: 1 000 sources with names of 200 characters."""

NAME_BYTES_MAX: Final = KIB
"""Bytes of a producer's name that deduplication takes: 2 000 of these fill a snapshot. Names that applications, brokers
and replicators make have less than 200."""


def is_too_long(name: str) -> bool:
    """Whether deduplication takes no producer of this name."""
    return len(name) > NAME_BYTES_MAX or (not name.isascii() and len(name.encode()) > NAME_BYTES_MAX)


def refusal_of_name() -> PulsarError:
    """What a producer hears whose name is too long. Apache's clients give up at that, and show the text."""
    return PulsarError(
        ServerError.NOT_ALLOWED_ERROR,
        f"The topic has deduplication, which keeps the names of producers: they have at most {NAME_BYTES_MAX} bytes",
    )


def most_recent(stored: dict[str, int], gone: Container[str], count_max: int, bytes_max: int) -> dict[str, int]:
    """As many producers as fit into a snapshot: first those that are connected, then those that are `gone`.

    The order is that of their last messages, the latest last; so it is in the answer."""
    sizes = {name: size_of_property(name) for name in stored}
    if len(sizes) <= count_max and sum(sizes.values()) <= bytes_max:
        return stored.copy()
    latest_first = list(reversed(stored))
    kept: set[str] = set()
    for name in [
        *(each for each in latest_first if each not in gone),
        *(each for each in latest_first if each in gone),
    ]:
        if len(kept) >= count_max:
            break
        if sizes[name] <= bytes_max:
            bytes_max -= sizes[name]
            kept.add(name)
    return {name: sequence_id for name, sequence_id in stored.items() if name in kept}

"""Judges histories. Knows nothing of bookies: only what clients did and what they were told."""

from __future__ import annotations

from collections.abc import Iterator

from e2e.simulation.history import (
    Appended,
    Confirmed,
    History,
    LedgerHistory,
    Opened,
    Read,
    Replicas,
    Unreadable,
    WriterClosed,
)


def check(history: History) -> list[str]:
    """Everything that is wrong, in words; nothing when the promises were kept."""
    found = list(history.stuck)
    for ledger in history.ledgers.values():
        for rule in RULES:
            found.extend(f"ledger {ledger.ledger_id}: {violation}" for violation in rule(ledger))
    return found


def _confirmed(ledger: LedgerHistory) -> int:
    return max((event.last_add_confirmed for event in ledger.events if isinstance(event, Confirmed)), default=-1)


def _ends(ledger: LedgerHistory) -> list[tuple[int, int, str, float]]:
    """(last entry id, length in bytes, who was told, when), in order of time."""
    ends: list[tuple[int, int, str, float]] = []
    for event in ledger.events:
        if isinstance(event, WriterClosed):
            ends.append((event.last_add_confirmed, event.length_bytes, "the writer", event.at_seconds))
        elif isinstance(event, Opened) and event.closed:
            ends.append((event.last_add_confirmed, event.length_bytes, event.who, event.at_seconds))
    return ends


def confirmations_go_up(ledger: LedgerHistory) -> Iterator[str]:
    last = -1
    for event in ledger.events:
        if isinstance(event, Confirmed):
            if event.last_add_confirmed <= last:
                yield f"the writer was told {event.last_add_confirmed} after {last} at {event.at_seconds:.6f}"
            if event.last_add_confirmed >= len(ledger.payloads):
                yield f"the writer was told {event.last_add_confirmed} but appended {len(ledger.payloads)} entries"
            last = event.last_add_confirmed


def all_agree_on_the_end(ledger: LedgerHistory) -> Iterator[str]:
    ends = _ends(ledger)
    for last, length, who, at in ends[1:]:
        if (last, length) != ends[0][:2]:
            first = ends[0]
            yield (
                f"{who} was told at {at:.6f} that it ends at {last} with {length} bytes, "
                f"{first[2]} at {first[3]:.6f} at {first[0]} with {first[1]} bytes"
            )


def what_was_confirmed_is_kept(ledger: LedgerHistory) -> Iterator[str]:
    ends = _ends(ledger)
    if not ends:
        return
    last, _, who, told_at = ends[0]
    for event in ledger.events:
        if isinstance(event, Confirmed) and event.last_add_confirmed > last:
            past = "past the fence" if event.at_seconds > told_at else "and lost"
            yield (
                f"entry {event.last_add_confirmed} was confirmed at {event.at_seconds:.6f} {past}: "
                f"{who} was told at {told_at:.6f} that it ends at {last}"
            )


def nothing_is_invented(ledger: LedgerHistory) -> Iterator[str]:
    ends = _ends(ledger)
    for last, length, who, _ in ends:
        wanted = sum(map(len, ledger.payloads[: last + 1]))
        if last >= len(ledger.payloads):
            yield f"{who} was told that it ends at {last}, but {len(ledger.payloads)} entries were appended"
        elif length != wanted and _knows_the_length(ends[0][2]):
            yield f"{who} was told that it has {length} bytes up to entry {last}, but they are {wanted}"


def _knows_the_length(closer: str) -> bool:
    """A recovery that finds nothing behind the last confirmed entry, and whose bookies with that entry are all away,
    closes with the length that it has heard of, as BookKeeper's does."""
    return closer == "the writer" or closer.startswith("final")


def nothing_is_beyond_the_end(ledger: LedgerHistory) -> Iterator[str]:
    ends = _ends(ledger)
    if not ends:
        return
    end = ends[0][0]
    for event in ledger.events:
        if isinstance(event, Opened) and event.last_add_confirmed > end:
            yield (
                f"{event.who} was told at {event.at_seconds:.6f} that {event.last_add_confirmed} is confirmed; "
                f"it ends at {end}"
            )
        elif isinstance(event, Read) and event.first_entry_id + len(event.payloads) - 1 > end:
            yield (
                f"{event.who} was given {len(event.payloads)} entries from {event.first_entry_id} "
                f"at {event.at_seconds:.6f}; it ends at {end}"
            )


def readers_get_what_was_written(ledger: LedgerHistory) -> Iterator[str]:
    for event in ledger.events:
        if isinstance(event, Read):
            for entry_id, payload in enumerate(event.payloads, event.first_entry_id):
                if entry_id >= len(ledger.payloads) or payload != ledger.payloads[entry_id]:
                    yield f"{event.who} was given another entry {entry_id} at {event.at_seconds:.6f} than was appended"


def readers_do_not_fall_behind(ledger: LedgerHistory) -> Iterator[str]:
    """The LAC that readers learn is monotonic in this sense: an entry that was confirmed proves what it carries, to
    everybody who asks later. (What a single bookie's unconfirmed entry carries may be unknown to the next reader.)"""
    carried: list[int] = []
    proofs: list[tuple[float, int]] = []
    for event in ledger.events:
        if isinstance(event, Appended):
            carried.extend([event.last_add_confirmed] * event.count)
        elif isinstance(event, Confirmed) and event.last_add_confirmed < len(carried):
            proofs.append((event.at_seconds, carried[event.last_add_confirmed]))
    told_closed: dict[str, float] = {}
    for event in ledger.events:
        if not isinstance(event, Opened) or event.at_seconds >= ledger.deleted_at_seconds:
            continue
        # With old metadata a bookie may be asked that was replaced since.
        asked_seconds = event.began_seconds - ledger.staleness_seconds
        proven = max((lac for at, lac in proofs if at < asked_seconds), default=-1)
        if event.last_add_confirmed < proven:
            yield (
                f"{event.who} was told at {event.at_seconds:.6f} that {event.last_add_confirmed} is confirmed, "
                f"{proven} was known before {asked_seconds:.6f}"
            )
        if event.closed:
            told_closed.setdefault(event.who, event.at_seconds)
        elif min(told_closed.values(), default=float("inf")) < asked_seconds:
            yield f"{event.who} found it open at {event.at_seconds:.6f}, after it was closed"


def everything_is_readable(ledger: LedgerHistory) -> Iterator[str]:
    for event in ledger.events:
        if isinstance(event, Unreadable):
            yield f"{event.who} cannot read entry {event.entry_id} at the end: {event.error}"
    if ledger.deleted:
        return
    if not ledger.finished:
        yield "nobody could read all of it at the end"
        return
    ends = _ends(ledger)
    given: dict[str, set[int]] = {}
    for event in ledger.events:
        if isinstance(event, Read) and event.who.startswith("final"):
            given.setdefault(event.who, set()).update(
                range(event.first_entry_id, event.first_entry_id + len(event.payloads))
            )
    for who, entry_ids in sorted(given.items()):
        missing = set(range(ends[0][0] + 1)) - entry_ids
        if missing:
            yield f"{who} was not given {sorted(missing)[:5]}"
    if ends[0][0] >= 0 and len(given) < 2:
        yield f"only {sorted(given)} have read it at the end"


def replicas_are_enough(ledger: LedgerHistory) -> Iterator[str]:
    for event in ledger.events:
        if isinstance(event, Replicas) and len(event.holders) < event.wanted:
            yield f"entry {event.entry_id} is on {event.holders} only, {event.wanted} are wanted"


RULES = (
    confirmations_go_up,
    all_agree_on_the_end,
    what_was_confirmed_is_kept,
    nothing_is_invented,
    nothing_is_beyond_the_end,
    readers_get_what_was_written,
    readers_do_not_fall_behind,
    everything_is_readable,
    replicas_are_enough,
)

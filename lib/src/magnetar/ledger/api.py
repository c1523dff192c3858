"""What the layers above the ledger client rely on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata


class LedgerError(MagnetarError):
    """Something about one ledger went wrong; subclasses say what."""


class LedgerFenced(LedgerError):
    """Another writer has taken the ledger over (client code -101): stop."""


class LedgerClosed(LedgerError):
    """The ledger is closed (client code -11)."""


class LedgerNotFound(LedgerError):
    """No such ledger in the metadata (client code -25)."""


class LedgerUnauthorized(LedgerError):
    """The password does not match, or the bookie does not serve who asks (client code -102)."""


def unauthorized(bookie_id: str, ledger_id: int) -> LedgerUnauthorized:
    """A bookie answered EUA, which has two reasons and one code."""
    return LedgerUnauthorized(
        f"{bookie_id} refuses ledger {ledger_id} (EUA): it knows the ledger by another key, or it wants TLS and a "
        "certificate with another role"
    )


class EntryNotFound(LedgerError):
    """The entry is beyond what the ledger has, or enough bookies say that it never was (client code -13)."""


class NotEnoughBookies(Unavailable):
    """Fewer writable bookies than the ensemble needs (client code -6)."""


class LedgerUnavailable(Unavailable):
    """No quorum answered; the entries may or may not be stored."""


class EntryUnreadable(LedgerUnavailable):
    """Every bookie that should have the entry answers, and none can give it undamaged (client codes -1, -5)."""

    def __init__(self, position: tuple[int, int], message: str) -> None:
        super().__init__(message)
        self.position = position


Announce: TypeAlias = Callable[[int], Awaitable[None]]
"""Told a ledger's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOptions:
    """How a new ledger is spread and protected. Pulsar's names: managedLedgerDefault*."""

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    digest_type: str = "CRC32C"
    """CRC32C (Pulsar's default), CRC32 (BookKeeper's), HMAC or DUMMY."""
    password: bytes = b""
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    announce: Announce | None = field(default=None, compare=False)
    """Awaited with the id that the ledger is to have before there is anything of it, so that whoever notes it finds it
    after a crash. What it raises ends the creation. It may be told another id when one turns out to be taken."""

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1


class LedgerListener(Protocol):
    """Told how an open ledger's appends fare, always from the event loop, in entry order."""

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """All entries up to this one are on an ack quorum of disks. One call for a whole group."""
        ...

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        """No append after the last confirmed one will succeed. Called once; the ledger takes no more."""
        ...


class LedgerWriter(Protocol):
    """A ledger that this process writes. One writer; never waits on append."""

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        ...

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is on an ack quorum of disks, as all before it are."""
        ...

    @property
    def last_add_pushed(self) -> int:
        """The last entry that was appended."""
        ...

    @property
    def length_bytes(self) -> int:
        """Bytes of all payloads that were appended."""
        ...

    def append(self, payloads: Sequence[bytes]) -> int:
        """Send entries on their way; returns the first one's id, the rest follow. The listener hears the outcome.

        Raises `LedgerClosed` or `LedgerFenced` if the ledger takes no more."""
        ...

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last (both confirmed), digests checked."""
        ...

    async def close(self) -> None:
        """Wait for what is outstanding, then write the closed state. Closing twice is no error."""
        ...

    async def abandon(self) -> None:
        """Let go without writing anything; the next owner recovers the ledger."""
        ...


class LedgerReader(Protocol):
    """A ledger opened for reading: closed, or open up to the last confirmed entry that could be learnt."""

    ledger_id: int
    last_add_confirmed: int
    length_bytes: int
    closed: bool

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last, digests checked; fewer, at least one, when a later one cannot be had.

        `EntryNotFound` beyond the last confirmed one, `EntryUnreadable`, `LedgerUnavailable`."""
        ...

    async def close(self) -> None:
        """Let go of it. Nothing is written."""
        ...


def nobody_told() -> None:
    """For an observer that nobody tells of changes."""


@dataclass(frozen=True, slots=True)
class EntriesSeen:
    """What one look at the end of a ledger brought: consecutive entries that a bookie has."""

    payloads: list[bytes]
    length_bytes: int
    """Payload bytes of the ledger before the first of these; 0 when there is none."""


class LedgerObserver(LedgerReader, Protocol):
    """A ledger that somebody else may be writing, read while it grows. It fences nothing and writes nothing.

    `last_add_confirmed` is what bookies, the ledger's metadata or whoever vouched say is confirmed; it never goes back
    while the ledger is open. `closed`: that is its end, for ever."""

    @property
    def nothing_beyond(self) -> bool:
        """Whether so many bookies have said that they have nothing behind what was seen, since the last time that
        anything was, that no confirmed entry can have been there when they did."""
        ...

    def vouch(self, last_entry_id: int) -> None:
        """Somebody knows that all up to this entry are confirmed: they may be read."""
        ...

    async def refresh(self) -> None:
        """Read the ledger's metadata again: other bookies, or its end. `LedgerNotFound`, `Unavailable`."""
        ...

    async def ask(self) -> None:
        """Ask the last bookies how far the ledger is confirmed. `LedgerUnavailable`: too few have answered."""
        ...

    async def look(self, first_entry_id: int, size_bytes_max: int, *, told: bool = False) -> EntriesSeen:
        """The entries from this one on that a bookie has, confirmed or not: at least one when it has the first, and no
        more than about so many bytes. One bookie is asked, the next time another one; all of them when the first entry
        is known to be confirmed, or `told` to be there. `LedgerUnavailable`: none answers."""
        ...


class LedgerClient(Protocol):
    """Creates, opens and deletes ledgers."""

    async def create(self, options: LedgerOptions, listener: LedgerListener) -> LedgerWriter:
        """A new, empty, open ledger. `NotEnoughBookies`, `Unavailable`."""
        ...

    async def open(self, ledger_id: int, *, password: bytes = b"", recover: bool) -> LedgerReader:
        """Open for reading. With `recover`: fence the writer, find the true end, close it. Without: look only."""
        ...

    async def observe(
        self, ledger_id: int, *, password: bytes = b"", changed: Callable[[], None] = nobody_told
    ) -> LedgerObserver:
        """Open a ledger that somebody else may be writing, without recovery. `changed` is called after its metadata
        may have changed: then `refresh`. Raises `LedgerNotFound`, `LedgerUnauthorized`, `Unavailable`."""
        ...

    async def describe(self, ledger_id: int) -> LedgerMetadata:
        """What the metadata store holds about a ledger. `LedgerNotFound`, `Unavailable`."""
        ...

    async def delete(self, ledger_id: int) -> None:
        """Remove the ledger's metadata; bookies collect the entries. A missing ledger is no error."""
        ...

    async def close(self) -> None:
        """Close the client; open writers are left to be recovered by the next owner."""
        ...

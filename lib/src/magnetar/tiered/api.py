"""The interface of tiered storage: closed ledgers are copied to a slower store, read back from there, and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from magnetar.ledger.api import EntryUnreadable, LedgerNotFound, LedgerReader, LedgerUnavailable
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

MANAGED_LEDGER_KEY: Final = "ManagedLedgerName"
"""Among what `open` and `delete` are told was stored: the managed ledger's name. A store of files looks there first."""


class OffloadedLedgerNotFound(LedgerNotFound):
    """The store answers, and has no such object: the data or the index of the ledger is gone."""


class OffloadDamaged(EntryUnreadable):
    """An object is there, but is not what was written: cut short, of another format, or with numbers that lie."""


class OffloadRefused(LedgerUnavailable):
    """The store answers, and will not do it: credentials, rights, or a bucket that is missing. Repeating won't help."""


class OffloadUnavailable(LedgerUnavailable):
    """The store does not answer, or fails, after all attempts; it may or may not have done what it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadedObject:
    """One object of a store that is named as offloads name them."""

    key: str
    ledger_id: int | None
    """None for the streaming form, which has several ledgers in one object and no id in its name."""
    uid: UUID
    is_index: bool
    size_bytes: int
    modified_ms: int
    """When it was written, by the store's clock: what is young may belong to an offload that is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadedPage:
    """Some objects of a store, in the order of their keys."""

    objects: Sequence[OffloadedObject]
    next_after: str | None = field(default=None)
    """The key to go on after; None at the end."""


class Offloader(Protocol):
    """One store as one setting describes it. Several managed ledgers share one. Every call names, in its error, the
    object and the cause."""

    @property
    def driver(self) -> str:
        """As Pulsar names it (`OffloadDriverMetadata.name`): `aws-s3`, `S3`, `google-cloud-storage`, `filesystem`."""
        ...

    def stored_metadata(self) -> Mapping[str, str]:
        """Driver properties stored beside a ledger's offload (`OffloadDriverMetadata.properties`): bucket, region,
        endpoint, sizes. Never credentials."""
        ...

    async def offload(
        self, ledger: LedgerReader, described: LedgerMetadata, uid: UUID, managed_ledger_name: str
    ) -> None:
        """Copy a closed ledger that is not empty. When this returns, all of it can be read back.

        `described` is what the metadata store holds about it; its password is not written. The index is written last,
        so that a ledger without one was never whole. What fails, or is cancelled, is removed where the store lets it;
        `delete` with the same `uid` removes the rest. `OffloadRefused`, `OffloadUnavailable`, `Misuse` for a ledger
        that is open or empty, and what reading the ledger raises."""
        ...

    async def open(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> LedgerReader:
        """Open what was offloaded. `stored` is what `stored_metadata` said when it was: its bucket is the one to read.

        The reader's `read` gives fewer entries than asked for where a later one is not at hand. It and this raise
        `OffloadedLedgerNotFound`, `OffloadDamaged`, `OffloadRefused`, `OffloadUnavailable`; `read` also `EntryNotFound`
        beyond the last entry."""
        ...

    async def delete(self, ledger_id: int, uid: UUID, stored: Mapping[str, str]) -> None:
        """Remove the objects of one offload, whole or not. Missing ones are no error. `OffloadRefused`,
        `OffloadUnavailable`: repeat it later."""
        ...

    async def page(self, after: str = "", *, count_max: int = 1000) -> OffloadedPage:
        """The objects of offloads in today's bucket whose keys come after this one: for the list of what is stored, and
        to find what no managed ledger knows. `OffloadRefused`, `OffloadUnavailable`."""
        ...

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        """The user metadata of one object, names in lower case: `managedledgername`, `role`, the versions.
        `OffloadedLedgerNotFound`, `OffloadRefused`, `OffloadUnavailable`."""
        ...

    async def close(self) -> None:
        """Let go of connections. Readers that are open cannot be used any more."""
        ...

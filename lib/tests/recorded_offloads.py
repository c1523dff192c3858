"""Objects that the offloader of Apache Pulsar 4.0.8 wrote (`recorded_offloads.json`, in base64).

`one-block`, `blocks` and `exact` are ledgers of its BlobStoreManagedLedgerOffloader, cut at 5 MiB, 600 and 512 bytes;
`streaming` is one object with three blocks of two ledgers, put together by BufferedOffloadStream and
OffloadIndexBlockV2Builder. `files-none`, `files-record` and `files-block` are one ledger of its
FileSystemManagedLedgerOffloader, by Hadoop 3.4.1, without compression and with both kinds. All payloads follow one
formula."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

UID: Final = "01234567-89ab-cdef-0123-456789abcdef"
LEDGER_ID: Final = 4711
SIZES: Final = {
    "one-block": (5 << 20, [10, 0, 300, 1]),
    "blocks": (600, [100, 200, *[50] * 7, 0, 1, 400, 13, *[120] * 3]),
    "exact": (512, [372, 372, 5]),
}
"""The largest block, and the sizes of the payloads."""
STREAMING_BLOCKS: Final = ((100, 5, 3, 40), (100, 8, 2, 300), (101, 0, 4, 10))
"""Ledger, first entry, entries, bytes of each."""
STREAMING_BLOCK_BYTES_MIN: Final = 400


def payload(entry_id: int, size_bytes: int) -> bytes:
    """The bytes of an entry."""
    return bytes((entry_id * 31 + place * 7) & 0xFF for place in range(size_bytes))


def payloads(name: str) -> list[bytes]:
    """All of a ledger."""
    return [payload(entry_id, size_bytes) for entry_id, size_bytes in enumerate(SIZES[name][1])]


def recorded(name: str) -> bytes:
    """The bytes of one object, as `blocks-data`."""
    texts = json.loads(Path(__file__).with_suffix(".json").read_text())
    return base64.b64decode("".join(texts[name]))


FILE_SIZES: Final = [10, 0, 300, 1, *[4] * 140, 60]
"""The payloads of the ledger in files."""


def file_payloads() -> list[bytes]:
    """All of the ledger in files."""
    return [payload(entry_id, size_bytes) for entry_id, size_bytes in enumerate(FILE_SIZES)]

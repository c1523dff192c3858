"""The columns that every topic has, made of positions and numbers, thousands of rows at a time.

Text is checked: what a foreign producer sent as a key or a property and is not UTF-8 gets U+FFFD where it is broken, as
a JVM would read it. Arrow does not check text that is built from buffers, and Spark relies on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from magnetar.spark.decode.pieces import Flags, Numbers, Ranges, numbers
from magnetar.spark.message_keys import KEY_IS_BYTES, KeyType
from magnetar.spark.options.pushdown import EVENT_TIME, KEY, PUBLISH_TIME, TOPIC

MESSAGE_ID: Final = "__messageId"
PROPERTIES: Final = "__messageProperties"

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
METADATA_TYPES: Final[dict[str, pa.DataType]] = {
    KEY: pa.string(),
    TOPIC: pa.string(),
    MESSAGE_ID: pa.string(),
    PUBLISH_TIME: TIMESTAMP,
    EVENT_TIME: TIMESTAMP,
    PROPERTIES: pa.map_(pa.string(), pa.string()),
}
"""In the order in which a table has them, behind its value columns; of keys as texts."""
METADATA_NAMES: Final = frozenset((*METADATA_TYPES, KEY_IS_BYTES))
"""A field of the topic's records with one of these names gives way to it."""


def metadata_types(key_type: KeyType) -> dict[str, pa.DataType]:
    """`METADATA_TYPES`, with keys as they are to be shown."""
    return {**METADATA_TYPES, KEY: pa.binary() if key_type == "binary" else pa.string()}


def texts(raw: pa.Array) -> pa.Array:
    """Strings of binary; what is no UTF-8 in them is replaced."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        found = (None if each is None else each.decode("utf-8", "replace") for each in raw.to_pylist())
        return pa.array(found, pa.string())


def timestamps(times_ms: Numbers, absent: Flags) -> pa.Array:
    """Null where `absent` says so. The times fit into microseconds of 64 bits."""
    return pa.array(times_ms * 1000, mask=absent if absent.any() else None).view(TIMESTAMP)


class RepeatedText:
    """A column with one text in all rows. The longest so far is kept: shorter ones are parts of it."""

    def __init__(self, text: str) -> None:
        self._scalar = pa.scalar(text, pa.string())
        self._longest = pa.array([], pa.string())

    def rows(self, count: int) -> pa.Array:
        """A column of so many rows."""
        if len(self._longest) < count:
            self._longest = pa.repeat(self._scalar, count)
        return self._longest.slice(0, count)


class MessageIdTexts:
    """`ledger:entry`, and `ledger:entry:index` for the messages of batches."""

    def __init__(self) -> None:
        self._indexes: list[str] = [""]
        """Then "0", "1", …: as many as the longest batch has needed, and that has fitted into memory."""
        self._digits: Numbers = np.zeros(0, np.int64)
        """How many digits 0, 1, … have."""

    def column(self, entry_texts: Sequence[str], batched: Flags, row_counts: Numbers) -> pa.Array:
        """A text for each message of entries. `entry_texts` are `ledger:entry`; all have an element an entry."""
        if not batched.any():
            return pa.array(entry_texts, pa.string())  # An entry that is no batch has one row.
        self._grow(int(row_counts.max()))
        indexes = self._indexes
        pieces: list[str] = []
        for text, more, count in zip(entry_texts, batched.tolist(), row_counts.tolist(), strict=True):
            # With the entry's text between them: nothing, text 0 text 1 text 2 …
            pieces.append(f"{text}:".join(indexes[: count + 1]) if more else text)
        lengths = np.repeat(numbers([len(text) for text in entry_texts]), row_counts)
        of_batch = np.repeat(batched, row_counts)
        index = np.arange(len(lengths)) - np.repeat(np.cumsum(row_counts) - row_counts, row_counts)
        lengths[of_batch] += 1 + self._digits[index[of_batch]]
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        data = pa.py_buffer("".join(pieces).encode())
        return pa.Array.from_buffers(pa.string(), len(lengths), [None, pa.py_buffer(offsets), data])

    def _grow(self, count: int) -> None:
        if count >= len(self._indexes):
            self._indexes = ["", *map(str, range(2 * count))]
            self._digits = numbers([len(text) for text in self._indexes[1:]])


def properties_column(
    column_type: pa.DataType, property_rows: Numbers, keys: Ranges, values: Ranges, rows: Numbers
) -> pa.Array:
    """The map column of `rows` (ascending). `property_rows` (ascending) says whose each property is."""
    first = np.searchsorted(property_rows, rows, "left")
    counts = np.searchsorted(property_rows, rows, "right") - first
    places = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    names = texts(keys.take(places))
    if len(counts) and counts.max() > 1:
        row_of_each = np.repeat(np.arange(len(rows)), counts)
        last = _last_of_each(names, row_of_each)
        if last is not None:
            names, places = names.filter(pa.array(last)), places[last]
            counts = np.bincount(row_of_each[last], minlength=len(rows))
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    pairs = pa.StructArray.from_arrays(
        [names, texts(values.take(places))], fields=[column_type.key_field, column_type.item_field]
    )
    return pa.Array.from_buffers(column_type, len(rows), [None, pa.py_buffer(offsets)], children=[pairs])


def _last_of_each(names: pa.Array, rows: Numbers) -> Flags | None:
    """Which properties to keep, so that a row has each name once, the last time it stands there; None: all."""
    codes = names.dictionary_encode()
    pairs = rows * len(codes.dictionary) + codes.indices.to_numpy()
    _, from_behind = np.unique(pairs[::-1], return_index=True)
    if len(from_behind) == len(pairs):
        return None
    kept = np.zeros(len(pairs), np.bool_)
    kept[len(pairs) - 1 - from_behind] = True
    return kept

"""The columns about keys. Only keys with the flag are looked at one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from magnetar.spark.decode.metadata_columns import texts
from magnetar.spark.message_keys import KeyType, as_bytes, as_text, is_base64


def shown_keys(keys: pa.Array, in_base64: pa.Array | None, key_type: KeyType) -> pa.Array:
    """`__key`: strings, or binary. `keys` are as the metadata has them (binary), `in_base64` says which have the flag;
    None: none has."""
    if in_base64 is not None:
        shown = as_bytes if key_type == "binary" else as_text
        flagged = keys.filter(in_base64).to_pylist()
        decoded = pa.array([None if key is None else shown(key) for key in flagged], pa.binary())
        keys = pc.replace_with_mask(keys, in_base64, decoded)
    return keys if key_type == "binary" else texts(keys)


def keys_are_bytes(keys: pa.Array, in_base64: pa.Array | None) -> pa.Array:
    """`__keyIsBytes`: null without a key."""
    found = np.zeros(len(keys), np.bool_)
    if in_base64 is not None:
        flagged = np.flatnonzero(in_base64.to_numpy(zero_copy_only=False))
        found[flagged] = [key is not None and is_base64(key) for key in keys.filter(in_base64).to_pylist()]
    absent = keys.is_null().to_numpy(zero_copy_only=False) if keys.null_count else None
    return pa.array(found, pa.bool_(), mask=absent)

"""Keys of messages: texts on the wire. Of one that a producer gave as bytes it is their base64, with a flag beside it
(PulsarApi.proto: partition_key_b64_encoded; Java's `keyBytes`)."""

from __future__ import annotations

import binascii
from typing import Final, Literal, TypeAlias

KeyType: TypeAlias = Literal["text", "binary"]
"""How a table shows keys."""

KEY_IS_BYTES: Final = "__keyIsBytes"
"""The column that tells keys given as bytes from texts, which neither type of `__key` does alone: only with both does a
key come back as what it was. It is there if it is named."""


def decoded_key(key: bytes) -> bytes:
    """What a key in base64 was made of. Padding may be absent, as for Java's decoder. `binascii.Error`: it is none."""
    return binascii.a2b_base64(key + b"=" * (-len(key) % 4), strict_mode=True)


def is_base64(key: bytes) -> bool:
    """Whether a key that should be is; one that is not counts as the text that it is."""
    try:
        decoded_key(key)
    except binascii.Error:
        return False
    return True


def as_bytes(key: bytes) -> bytes:
    """A key with the flag as a binary column shows it: decoded; what is no base64, as it is."""
    try:
        return decoded_key(key)
    except binascii.Error:
        return key


def as_text(key: bytes) -> bytes:
    """A key with the flag as a text column shows it: decoded if that is a text (UTF-8), else as it is."""
    decoded = as_bytes(key)
    try:
        decoded.decode()
    except UnicodeDecodeError:
        return key
    return decoded

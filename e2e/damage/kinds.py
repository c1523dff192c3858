"""What a disk does to a file. Pure: bytes and chance in, bytes out."""

from __future__ import annotations

import enum
from random import Random
from typing import Final

BLOCK_BYTES: Final = 4096


class Kind(enum.StrEnum):
    """One way of damage."""

    FLIP = "flip"
    """One bit is another."""
    ZERO = "zero"
    """A block is zeros."""
    CUT = "cut"
    """The rest of the file is gone."""
    DOUBLE = "double"
    """A block stands there twice, and what follows it is moved."""
    OVER = "over"
    """A block stands over the one behind it as well."""
    TAIL = "tail"
    """From somewhere on there are zeros, as where nothing was written yet."""
    EMPTY = "empty"
    """The file has no bytes."""
    MISSING = "missing"
    """There is no file."""


def damaged(content: bytes, kind: Kind, rng: Random) -> bytes | None:
    """The content afterwards; None: no file. It differs from the content unless that is empty or all the same."""
    if kind is Kind.MISSING:
        return None
    # What is behind the last byte that is not zero was preallocated.
    used = len(content.rstrip(b"\0"))
    if kind is Kind.EMPTY or not used:
        return b""
    at = rng.randrange(used)
    if kind is Kind.FLIP:
        return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    if kind is Kind.CUT:
        return content[:at]
    if kind is Kind.TAIL:
        return content[:at] + bytes(len(content) - at)
    # A block that holds something; half a file where that is smaller than a block.
    size = min(BLOCK_BYTES, max(1, used // 2))
    begin = at - at % size
    block = content[begin : begin + size]
    behind = begin + len(block)
    if kind is Kind.ZERO:
        return content[:begin] + bytes(len(block)) + content[behind:]
    if kind is Kind.DOUBLE:
        return content[:behind] + block + content[behind:]
    return content[:behind] + block + content[behind + len(block) :]

"""Real text for messages: the non-blank lines of the Python standard library's sources, which every machine has."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

# Long enough to tell two lines apart, short enough to keep a history of 100 000 messages small.
DIGEST_HEX_DIGITS = 16
KEY_CHARACTERS_MAX = 24


def lines(count: int) -> list[bytes]:
    """The first `count` non-blank lines, modules in the order of their names; begins again when they run out."""
    found: list[bytes] = []
    while len(found) < count:
        before = len(found)
        for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            text = source.read_bytes().splitlines()
            found.extend(line for line in text if line.strip() and line.isascii())
            if len(found) >= count:
                break
        assert len(found) > before, "the standard library has no sources here"
    return found[:count]


def write(path: Path, count: int) -> None:
    """A file with one message a line, which every client program reads."""
    path.write_bytes(b"\n".join(lines(count)) + b"\n")


def digest(payload: bytes) -> str:
    """What a consumer notes instead of the payload."""
    return hashlib.sha256(payload).hexdigest()[:DIGEST_HEX_DIGITS]


def key(payload: bytes) -> str:
    """The line's first word: a skewed, realistic set of keys (`def`, `return`, `#`, names)."""
    return payload.split()[0][:KEY_CHARACTERS_MAX].decode("ascii")

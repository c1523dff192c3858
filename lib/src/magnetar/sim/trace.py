"""What happened in a run, as one number, and as text for people.

Two runs of a seed must give the same number; where they differ, the texts show the first difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

DIGEST_BYTES: Final = 8


class Trace:
    """Notes in the order in which they came."""

    def __init__(self, *, keep: bool = False) -> None:
        """With `keep` the lines are there to be read afterwards; else only their digest is."""
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._keep = keep
        self.lines: list[str] = []
        self.notes = 0
        self._now: Callable[[], float] = lambda: 0.0

    def follow(self, now: Callable[[], float]) -> None:
        """Take times from here on from this clock."""
        self._now = now

    @property
    def kept(self) -> bool:
        """Whether lines are kept."""
        return self._keep

    @property
    def digest(self) -> str:
        """A digest of all notes so far, in hexadecimal."""
        return self._hash.hexdigest()

    def note(self, who: str, what: str) -> None:
        """One thing that happened. It counts for the digest."""
        line = f"{self._now():.9f} {who} {what}\n"
        self._hash.update(line.encode())
        self.notes += 1
        if self._keep:
            self.lines.append(line)

    def remark(self, who: str, what: str) -> None:
        """Something for people, such as a line that production code logs. It does not count."""
        if self._keep:
            self.lines.append(f"{self._now():.9f} {who} # {what}\n")

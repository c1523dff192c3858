"""The root of every error that Magnetar raises on purpose.

Three families, because three different people act on them:

* `Misuse`: our own code broke the contract of an object. Fix the code.
* `PeerError`: the other side broke a protocol. Answer it, close, count.
* `Unavailable`: the world failed (disk, network, quorum). Retry or report, never ignore.
"""

from __future__ import annotations

from collections.abc import Sequence


class MagnetarError(Exception):
    """Everything we raise on purpose."""


class Misuse(MagnetarError):
    """A caller of this object broke its contract."""


class PeerError(MagnetarError):
    """The other side of a connection broke the protocol or asked for what it may not have."""


class Unavailable(MagnetarError):
    """Disk, network or quorum failed; the operation may be tried again."""


class SettingError(MagnetarError):
    """A setting has an unknown name or a value that is out of bounds; the text names both."""


class SettingErrors(SettingError):
    """Several settings are wrong; the text has a line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def forget_frames(error: BaseException | None) -> None:
    """It was dealt with, and is not raised again: an error that a variable, a future or a request refers to refers to
    these by its traceback, and all of it would wait for the collector of cycles."""
    left = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        # Each once: an error that several wait for may be the cause of what it is raised under the next time.
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)

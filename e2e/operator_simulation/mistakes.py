"""Known mistakes, planted in the operator's real code for a run: the simulator must find each of them.

Each is a patch of a function or method where it is used, undone afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

Patch = tuple[Any, str, Any]
Mistake = Callable[[], list[Patch]]

MISTAKES: Final[dict[str, Mistake]] = {}


@contextlib.contextmanager
def planted(mistake: Mistake | None) -> Iterator[None]:
    """Have the mistake in the code for a while."""
    if mistake is None:
        yield
        return
    before: list[Patch] = []
    try:
        for owner, name, wrong in mistake():
            right = owner.__dict__[name]
            setattr(owner, name, wrong)
            before.append((owner, name, right))
        yield
    finally:
        for owner, name, right in reversed(before):
            setattr(owner, name, right)

"""How a mistake is planted: methods are exchanged for a run, and put back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Patch: TypeAlias = tuple[Any, str, Any]
"""A class or a module, the name in it, and what stands there instead."""

Mistake: TypeAlias = Callable[[], list[Patch]]


def original(owner: Any, name: str) -> Any:
    """The method that a mistake is made around."""
    return getattr(owner, name)


class CodeIsCompiled(Exception):
    """A compiled class cannot be patched: `make decompile` first."""


@contextlib.contextmanager
def planted(mistake: Mistake | None) -> Iterator[None]:
    """Have the mistake in the code for a while. `CodeIsCompiled`."""
    if mistake is None:
        yield
        return
    before: list[Patch] = []
    try:
        for owner, name, wrong in mistake():
            right = owner.__dict__[name]
            try:
                setattr(owner, name, wrong)
            except TypeError:
                raise CodeIsCompiled(f"{owner.__name__} is compiled: make decompile") from None
            before.append((owner, name, right))
        yield
    finally:
        for owner, name, right in reversed(before):
            setattr(owner, name, right)

"""How a mistake is planted: methods are exchanged for a run, and put back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType
from typing import Any, TypeAlias

Patch: TypeAlias = tuple[Any, str, Any]
"""A class or a module, the name in it, and what stands there instead."""

Mistake: TypeAlias = Callable[[], list[Patch]]


def original(owner: Any, name: str) -> Any:
    """The method that a mistake is made around."""
    return getattr(owner, name)


class CodeIsCompiled(Exception):
    """A compiled module cannot be patched: `make decompile` first."""


def _check_plain(owner: Any) -> None:
    """Compiled code calls its own functions past what is written into a class or a module."""
    module = owner if isinstance(owner, ModuleType) else sys.modules[owner.__module__]
    if (module.__file__ or "").endswith(tuple(EXTENSION_SUFFIXES)):
        raise CodeIsCompiled(f"{module.__name__} is compiled: make decompile")


@contextlib.contextmanager
def planted(mistake: Mistake | None) -> Iterator[None]:
    """Have the mistake in the code for a while. `CodeIsCompiled`."""
    if mistake is None:
        yield
        return
    before: list[Patch] = []
    try:
        for owner, name, wrong in mistake():
            _check_plain(owner)
            right = owner.__dict__[name]
            setattr(owner, name, wrong)
            before.append((owner, name, right))
        yield
    finally:
        for owner, name, right in reversed(before):
            setattr(owner, name, right)

"""All settings of one component: every name that its settings file may hold. A bad row is refused when it is made."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Collection
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final

from magnetar.core.errors import Misuse
from magnetar.core.setting import Row, rows_of
from magnetar.core.settings_file import kind_of, unit_factor

_PLAIN: Final = (int, float, str, bytes, Path, types.NoneType)
_Missing: Final = type(MISSING)
_WHY: Final = {
    "retired": "earlier versions of Apache's had it, those of today ignore it, and so does this one",
    "later": "it is of later versions of Apache's, and has no effect here",
}


class Catalogue:
    """The rows of several settings classes, checked against the names that Apache's component knows."""

    def __init__(
        self,
        upstream: Path,
        *parts: type,
        ignored: Path | None = None,
        unlisted: Collection[str] = (),
        read_apart: Collection[str] = (),
    ) -> None:
        """`upstream` lists Apache's names (made by `tools/generate_setting_names.py`); it lacks those in `unlisted`.
        `ignored` lists names of other versions of Apache's, each with `retired` or `later`.
        `read_apart` are names that are no field's. `Misuse` names the row that is wrong."""
        listed = frozenset(upstream.read_text(encoding="utf-8").split())
        self.rows: tuple[Row, ...] = tuple(row for part in parts for row in rows_of(part))
        for row in self.rows:
            _check(row, listed.union(unlisted))
        self.with_effect = frozenset(read_apart).union(*(row.names for row in self.rows))
        """Names of settings that change something."""
        self.names = self.with_effect | listed
        """Names that are no mistake."""
        self.ignored = _read_ignored(ignored) if ignored is not None else {}
        """Names that Apache's component of this version does not know either, and passes over: why."""
        if doubted := self.names.intersection(self.ignored):
            raise Misuse(f"{min(doubted)} is known, and cannot be ignored")


def _read_ignored(path: Path) -> dict[str, str]:
    return {name: _WHY[why] for name, why in map(str.split, path.read_text(encoding="utf-8").splitlines())}


def _check(row: Row, upstream: Collection[str]) -> None:
    where = f"the setting {row.name} ({row.path})"
    unknown = [name for name in row.names if name not in upstream]
    if unknown and not row.ours:
        raise Misuse(f"{where}: Apache knows no {unknown[0]}; what is ours says so by `ours=True`")
    if row.ours and not unknown:
        raise Misuse(f"{where}: Apache knows it, so it is not ours")
    try:
        _check_value(row)
    except Misuse as error:
        raise Misuse(f"{where}: {error}") from None


def _check_value(row: Row) -> None:
    kind, default = kind_of(row), _default(row)
    if not _can_be(kind, default):
        raise Misuse(f"the default {default!r} is no {kind}")
    for name in row.names:
        unit_factor(row, name)


def _default(row: Row) -> Any:
    return next(one.default for one in fields(row.owner) if one.name == row.path.rpartition(".")[2])


def _can_be(kind: Any, value: object) -> bool:
    """Whether a field of this type can have the value, or lacks one. `Misuse` for a type that no setting has."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_can_be(argument, value) for argument in arguments)
    if origin is tuple:
        inner = value if isinstance(value, tuple) else ()
        return all(_can_be(arguments[0], one) for one in (MISSING, *inner)) and isinstance(value, tuple | _Missing)
    if not isinstance(kind, type) or not issubclass(kind, (*_PLAIN, enum.Enum)):
        raise Misuse(f"no setting can be a {kind}")
    if isinstance(value, bool | _Missing):
        return kind is bool or value is MISSING
    return isinstance(value, int | float if kind is float else kind)

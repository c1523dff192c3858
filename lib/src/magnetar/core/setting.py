"""One row for each setting: the field of a settings class that holds it.

    retention_minutes: int = setting("defaultRetentionTimeInMinutes", 0, below_zero=-1)

The row says Apache's name, the type and the default, and by keywords what else there is to say. What reads settings
files, what a component tells of itself, what can be changed while it runs, and the documentation's tables are derived
from the rows, by `magnetar.core.settings_file` and `magnetar.core.setting_catalogue`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, Final, Literal, TypeVar

from magnetar.core.errors import Misuse, SettingError

T = TypeVar("T")
E = TypeVar("E", bound=enum.Enum)

_ROW: Final = "row"
_NAMES: Final = "names"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting."""

    name: str
    """The setting's name: Apache's own, or ours where Apache has none."""
    path: str = ""
    """The field, below the class whose rows are asked for: `part.field`."""
    owner: Any = None
    """The class that has the field."""
    older: str = ""
    """Another name that Apache takes for the same; it counts when `name` is not given."""
    unit: Literal["", "ms", "seconds", "mib"] = ""
    """The unit of a name whose end does not tell it. A number of bytes needs none."""
    read: Callable[[str], object] | None = None
    """For a value that is written otherwise than its type; raises ValueError with what was expected."""
    low: float | None = None
    """The smallest number, in the field's unit; None: 0, as `settings_file.range_of` says, which whoever reads settings
    goes by."""
    high: float | None = None
    """The largest; None: the largest that Apache's type has, in the unit that is written."""
    below_zero: int | None = None
    """What a number below 0 means, where Apache takes any of them for the same: 0, as a rule, which is no limit."""
    words: Mapping[str, object] | None = None
    """The values by the words that stand for them in a settings file, where their type does not tell it."""
    port: bool = False
    """An empty value means that there is none; other settings keep their default then."""
    dynamic: Literal["", "broker", "load"] = ""
    """What takes a new value while it runs: all of the broker, or its load management."""
    secret: bool = False
    """Whether the value is a secret, such as a password: it is never told to anybody."""
    ours: bool = False
    """Apache has no such setting."""
    shared: bool = False
    """Other fields may have the same name, as both sides of TLS do."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be called; the last one counts most."""
        return (self.older, self.name) if self.older else (self.name,)


def setting(name: str, default: T, **said: Any) -> T:
    """A field that is a setting; `said` are further fields of its `Row`."""
    return field(default=default, metadata=named(name, **said))


def named(name: str, **said: Any) -> dict[str, Row]:
    """The metadata of a field that is a setting, for one without a default."""
    return {_ROW: Row(name=name, **said)}


def part(kind: type[T], names: Mapping[str, str]) -> T:
    """A field that holds settings whose names depend on whose part they are; `names` has them by field."""
    return field(default_factory=kind, metadata={_NAMES: names})


def class_named(kind: type[E]) -> Callable[[str], E]:
    """Reads a member by the last part of a Java class's name."""

    def read(text: str) -> E:
        members = {str(member.value): member for member in kind}
        member = members.get(text.rpartition(".")[2])
        if member is None:
            raise ValueError("the class name of one of " + ", ".join(members))
        return member

    return read


def rows_of(kind: type) -> tuple[Row, ...]:
    """All rows of a settings class and its parts. `Misuse` when two of them have one name."""
    return _rows_of(kind)


def check_ranges(settings: object, accepted: bool = True) -> None:
    """`SettingError` names the setting of this class that is out of its range, and with `accepted` the range."""
    for row in rows_of(type(settings)):
        low, high = row.low, row.high
        if "." in row.path or (low is None and high is None):
            continue
        value = getattr(settings, row.path)
        if value is None:
            continue
        if (low is not None and value < low) or (high is not None and value > high):
            told = f"; {_range(low, high)} accepted" if accepted else ""
            raise SettingError(f"{row.name} is out of bounds: {value}{told}")


def _range(low: float | None, high: float | None) -> str:
    if high is None:
        return f"{low} or more is"
    return f"{high} or less is" if low is None else f"{low} to {high} are"


@cache
def _rows_of(kind: Any) -> tuple[Row, ...]:
    rows = tuple(_rows(kind, ""))
    seen: dict[str, Row] = {}
    for row in rows:
        for name in row.names:
            other = seen.setdefault(name, row)
            if other is not row and not (other.shared and row.shared):
                raise Misuse(f"{kind.__name__}: {other.path} and {row.path} are both called {name}")
    return rows


def _rows(kind: Any, prefix: str) -> Iterator[Row]:
    for one in fields(kind):
        path, inner = prefix + one.name, _part_of(one)
        if _ROW in one.metadata:
            yield replace(one.metadata[_ROW], path=path, owner=kind)
        elif _NAMES in one.metadata:
            for member, name in one.metadata[_NAMES].items():
                yield Row(name=name, path=f"{path}.{member}", owner=inner, shared=True)
        elif inner is not None:
            yield from _rows(inner, f"{path}.")


def _part_of(one: Field[Any]) -> type | None:
    """The class of a field that holds further settings."""
    found = type(one.default) if one.default_factory is MISSING else one.default_factory
    return found if isinstance(found, type) and is_dataclass(found) else None

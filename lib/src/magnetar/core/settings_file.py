"""Settings as operators give them: files written for Apache's components, environment variables, the command line.

Everything is named as Apache names it. A component says which of its settings' fields a name stands for; the unit of
the field is told by its own name's end (`_seconds`, `_bytes_max` …), the unit of Apache's by that name's end or by the
component's table.

Three things can happen to a name: it is used; Apache knows it but it has no effect here (`without_effect`, to be told
once at the start); nobody knows it, which is a `SettingError`, because a misspelt setting must not be lost silently.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from magnetar.core.errors import Misuse, SettingError
from magnetar.core.properties import BadProperties, parse_properties

T = TypeVar("T")

ENVIRONMENT_PREFIX: Final = "PULSAR_PREFIX_"
"""What Pulsar's images want before a setting's name; without it they take names that the shipped file has."""


HIDDEN: Final = "…"
"""In the place of a secret."""

_SECRET: Final = re.compile(
    "token(?!s?Audience|Auth)|passw|secret|credential|private|Authentication.*Parameters|basicAuthConf|PluginParams",
    re.I,
)
_PLACES: Final = ("file:", "/")


class Unit(enum.Enum):
    """A unit, as a multiple of bytes or of seconds."""

    BYTES = ("bytes", Fraction(1))
    KIB = ("bytes", Fraction(1024))
    MIB = ("bytes", Fraction(1024**2))
    GIB = ("bytes", Fraction(1024**3))
    MS = ("time", Fraction(1, 1000))
    SECONDS = ("time", Fraction(1))
    MINUTES = ("time", Fraction(60))
    HOURS = ("time", Fraction(3600))
    DAYS = ("time", Fraction(86_400))


_UPSTREAM_ENDINGS: Final = (
    ("kb", Unit.KIB),
    ("mb", Unit.MIB),
    ("mbytes", Unit.MIB),
    ("gb", Unit.GIB),
    ("bytes", Unit.BYTES),
    ("ms", Unit.MS),
    ("msec", Unit.MS),
    ("millis", Unit.MS),
    ("mills", Unit.MS),
    ("sec", Unit.SECONDS),
    ("secs", Unit.SECONDS),
    ("seconds", Unit.SECONDS),
    ("minutes", Unit.MINUTES),
    ("hours", Unit.HOURS),
)
_OUR_ENDINGS: Final = (("bytes", Unit.BYTES), ("seconds", Unit.SECONDS), ("ms", Unit.MS))
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{0,18})?")
_WORDS_FOR_TRUE: Final = ("true", "yes", "on")
_WORDS_FOR_FALSE: Final = ("false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingNames:
    """Which fields of a settings class (a dataclass, others inside it by `part.field`) Apache's names stand for."""

    fields: Mapping[str, str]
    units: Mapping[str, Unit] = field(default_factory=dict)
    """The unit of names whose end does not tell it. A number of bytes needs none."""
    readers: Mapping[str, Callable[[str], object]] = field(default_factory=dict)
    """For values that are written otherwise than the field's type; raise ValueError with what was expected."""


@dataclass(frozen=True, slots=True)
class Given:
    """One setting as it was given."""

    value: str
    where: str
    """For people: file and line, environment variable or option."""


class GivenSettings:
    """All settings that were given for one process; what is added later wins."""

    def __init__(self, known: Collection[str]) -> None:
        """`known` are the names that are no mistake: Apache's, and any of our own."""
        self._known = frozenset(known)
        self._given: dict[str, Given] = {}
        self._used: set[str] = set()
        self.repeated: list[str] = []
        """Names that one file gives twice with different values, and where; the last one counts."""

    def add(self, name: str, value: str, where: str) -> None:
        """Take one. `SettingError` for a name that nobody knows."""
        if name not in self._known:
            raise SettingError(f"{where}: there is no setting {name!r}{_suggestion(name, self._known)}")
        self._given[name] = Given(value.strip(), where)

    def add_file(self, path: Path) -> None:
        """Take all settings of a properties file. `SettingError`, also when it cannot be read."""
        try:
            properties = parse_properties(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingError(f"the settings file {path} cannot be read: {error.strerror}") from None
        except (BadProperties, UnicodeDecodeError) as error:
            raise SettingError(f"the settings file {path} is damaged: {error}") from None
        seen: dict[str, str] = {}
        for name, value, line in properties:
            where = f"{path}:{line}"
            if seen.get(name, value) != value:
                self.repeated.append(f"{name} ({where})")
            seen[name] = value
            self.add(name, value, where)

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """Take known names and all that have Pulsar's prefix. `SettingError` for unknown ones with the prefix."""
        for variable, value in environment.items():
            if variable.startswith(ENVIRONMENT_PREFIX):
                self.add(variable.removeprefix(ENVIRONMENT_PREFIX), value, f"environment variable {variable}")
            elif variable in self._known:
                self.add(variable, value, f"environment variable {variable}")

    def text(self, *names: str) -> str | None:
        """The value of the first of these names that has one; an empty value is none. All of them count as used."""
        self._used.update(names)
        for name in names:
            given = self._given.get(name)
            if given is not None and given.value:
                return given.value
        return None

    def text_unused(self, name: str) -> str | None:
        """The value as it was given, if it was, without counting as used: for showing."""
        given = self._given.get(name)
        return given.value if given is not None and given.value else None

    def emptied(self, name: str) -> bool:
        """Whether it was given with an empty value, which switches some settings off (ports)."""
        self._used.add(name)
        given = self._given.get(name)
        return given is not None and not given.value

    def flag(self, name: str, default: bool) -> bool:
        """A value that is true or false. `SettingError`."""
        return cast(bool, self._read(name, lambda text: parse_value(text, bool), default))

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number within bounds. `SettingError`."""

        def read(text: str) -> int:
            value = cast(int, parse_value(text, int))
            if not low <= value <= high:
                raise ValueError(f"a number from {low} to {high}")
            return value

        return cast(int, self._read(name, read, default))

    def build(self, base: T, names: SettingNames) -> T:
        """`base`, a settings object, with every field replaced that was given a value. `SettingError`."""
        changes: dict[str, Any] = {}
        for name, path in names.fields.items():
            self._used.add(name)
            given = self._given.get(name)
            if given is None or not given.value:
                continue
            kind = _field_type(base, path)
            read = names.readers.get(name)
            if read is None:
                unit = names.units.get(name)
                changes[path] = self._read(name, _ValueReader(name, path, kind, unit), None)
            else:
                changes[path] = self._read(name, read, None)
        try:
            return _replaced(base, changes)
        except SettingError as error:
            raise SettingError(self._explained(str(error), names.fields)) from None

    def without_effect(self) -> list[str]:
        """Names that were given a value and that nobody asked for, sorted."""
        return sorted(name for name, given in self._given.items() if given.value and name not in self._used)

    def _read(self, name: str, read: Callable[[str], object], default: object) -> object:
        self._used.add(name)
        given = self._given.get(name)
        if given is None or not given.value:
            return default
        try:
            return read(given.value)
        except ValueError as error:
            raise SettingError(f"{given.where}: {name} is {_shown(name, given.value)!r}, and not {error}") from None

    def _explained(self, message: str, names: Collection[str]) -> str:
        found = [name for name in names if name in message and name in self._given]
        if not found:
            return message
        name = max(found, key=len)
        given = self._given[name]
        return f"{message} ({given.where}: {name}={_shown(name, given.value)})"


def _shown(name: str, value: str) -> str:
    """A value as others may see it, who read logs: not a secret, but where it is kept."""
    return HIDDEN if _SECRET.search(name) and not value.startswith(_PLACES) else value


class _ValueReader:
    def __init__(self, name: str, path: str, kind: Any, unit: Unit | None) -> None:
        self._kind = kind
        self._unit = unit or _unit_by_ending(name.lower(), _UPSTREAM_ENDINGS)
        self._factor = unit_factor(name, path, unit)

    def __call__(self, text: str) -> object:
        try:
            return parse_value(text, self._kind, self._factor)
        except ValueError as error:
            unit = f" of {self._unit.name}" if self._unit is not None and self._factor != 1 else ""
            raise ValueError(f"{error}{unit}") from None


def unit_factor(name: str, path: str, unit: Unit | None = None) -> Fraction:
    """How many of our field's units one of the upstream setting's is. `Misuse` when a time's unit is not known."""
    words = [word for word in path.rpartition(".")[2].split("_") if word not in ("max", "min")]
    ours = next((unit for ending, unit in _OUR_ENDINGS if words[-1] == ending), None)
    if ours is None:
        return Fraction(1)
    theirs = unit or _unit_by_ending(name.lower(), _UPSTREAM_ENDINGS)
    if theirs is None and ours is Unit.BYTES:
        return Fraction(1)
    if theirs is None or theirs.value[0] != ours.value[0]:
        raise Misuse(f"the unit of {name} is not known")
    return theirs.value[1] / ours.value[1]


def _unit_by_ending(name: str, endings: Collection[tuple[str, Unit]]) -> Unit | None:
    fitting = [(len(ending), unit) for ending, unit in endings if name.endswith(ending)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def parse_value(text: str, kind: Any, factor: Fraction = Fraction(1)) -> object:
    """A value of a field's type, a number times the factor. ValueError says what would be right."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        chosen = [argument for argument in arguments if argument is not type(None)]
        return parse_value(text, chosen[0], factor)
    if origin is tuple:
        parts = [part.strip() for part in text.split(",")]
        return tuple(parse_value(part, arguments[0], factor) for part in parts if part)
    if kind is bool:
        word = text.lower()
        if word not in _WORDS_FOR_TRUE + _WORDS_FOR_FALSE:
            raise ValueError("true or false")
        return word in _WORDS_FOR_TRUE
    if kind in (int, float):
        return _parse_number(text, kind, factor)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        for member in kind:
            if str(member.value) == text:
                return member
        raise ValueError("one of " + ", ".join(str(member.value) for member in kind))
    if kind is bytes:
        return text.encode()
    if kind in (str, Path):
        return kind(text)
    raise Misuse(f"no setting can be a {kind}")


def _parse_number(text: str, kind: Any, factor: Fraction) -> object:
    if not (_WHOLE if kind is int else _DECIMAL).fullmatch(text):
        raise ValueError("a whole number" if kind is int else "a number")
    scaled = Fraction(text) * factor
    if kind is float:
        return float(scaled)
    if scaled.denominator != 1:
        raise ValueError(f"a multiple of {1 / factor}")
    return int(scaled)


def _field_type(base: object, path: str) -> Any:
    owner, _, last = path.rpartition(".")
    for name in owner.split(".") if owner else ():
        base = getattr(base, name)
    hints = typing.get_type_hints(type(base))
    if not is_dataclass(base) or last not in hints:
        raise Misuse(f"there is no field {path}")
    return hints[last]


def _replaced(base: T, changes: Mapping[str, Any]) -> T:
    direct = {path: value for path, value in changes.items() if "." not in path}
    parts: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        part, dot, rest = path.partition(".")
        if dot:
            parts.setdefault(part, {})[rest] = value
    for part, inner in parts.items():
        direct[part] = _replaced(getattr(base, part), inner)
    return cast(T, replace(cast(Any, base), **direct)) if direct else base


def _suggestion(name: str, known: Collection[str]) -> str:
    import difflib  # Only a mistake needs it, and it costs start-up time.

    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""

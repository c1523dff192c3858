"""Settings as operators give them: files written for Apache's components, environment variables, the command line.

Everything is named as Apache names it; `magnetar.core.setting` says which field a name stands for. The unit of the
field is told by its own name's end (`_seconds`, `_bytes_max` …), the unit of Apache's by that name's end or by the row.

Three things can happen to a name: it is used; Apache knows it but it has no effect here (`without_effect`, to be told
once at the start); nobody knows it, which is a `SettingError`, because a misspelt setting must not be lost silently.
"""

from __future__ import annotations

import contextlib
import enum
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from magnetar.core.errors import Misuse, SettingError, SettingErrors
from magnetar.core.limits import PORT_MAX
from magnetar.core.properties import BadProperties, parse_properties
from magnetar.core.setting import Row, rows_of

T = TypeVar("T")

ENVIRONMENT_PREFIX: Final = "PULSAR_PREFIX_"
"""What Pulsar's images want before a setting's name; without it they take names that the shipped file has."""


INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
"""The largest numbers of Java's types: Apache's settings are one or the other."""

HIDDEN: Final = "…"
"""In the place of a secret."""

_SECRET: Final = re.compile(
    "token(?!s?Audience|Auth|AllowedClockSkew)|passw|secret|credential|private|Authentication.*Parameters|basicAuthConf|PluginParams",
    re.I,
)
_PLACES: Final = ("file:", "/")
_WRONG: Final = object()
_OF_BYTES: Final = ("bytes", "bytes_max", "bytes_min")


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
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{0,18})?")
_WORDS_FOR_TRUE: Final = ("true", "yes", "on")
_WORDS_FOR_FALSE: Final = ("false", "no", "off")


@dataclass(frozen=True, slots=True)
class GivenSetting:
    """One setting as it was given."""

    value: str
    where: str
    """For people: file and line, environment variable or option."""


class GivenSettings:
    """All settings that were given for one process; what is added later wins."""

    def __init__(self, known: Collection[str], ignored: Mapping[str, str] | None = None) -> None:
        """`known` are the names that are no mistake: Apache's, and any of our own. Those in `ignored`, which says why,
        are passed over."""
        self._known = frozenset(known)
        self._ignored = ignored or {}
        self.passed_over: dict[str, str] = {}
        """Lines for the log about names that were given and are ignored, by name."""
        self._given: dict[str, GivenSetting] = {}
        self._used: set[str] = set()
        self._problems: dict[str, None] | None = None
        """What is wrong, while it is gathered."""
        self.repeated: list[str] = []
        """Names that one file gives twice with different values, and where; the last one counts."""

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Within the block a mistake ends nothing: its setting keeps its default, and what is wrong with all of them is
        told together at the end. `SettingError`, or `SettingErrors` for more than one. What is made within the block
        counts only when it ends well."""
        problems = self._problems = {}
        try:
            yield
        except SettingError as error:
            problems[str(error)] = None
        finally:
            self._problems = None
        if len(problems) > 1:
            raise SettingErrors(list(problems))
        if problems:
            raise SettingError(*problems)

    def problem(self, text: str) -> None:
        """Something is wrong: to be told with the rest while problems are gathered. `SettingError` otherwise."""
        if self._problems is None:
            raise SettingError(text)
        self._problems[text] = None

    def attempt(self, work: Callable[[], T], otherwise: T) -> T:
        """What the work returns; a `SettingError` of it is a `problem`."""
        try:
            return work()
        except SettingError as error:
            self.problem(str(error))
            return otherwise

    def add(self, name: str, value: str, where: str) -> None:
        """Take one. `SettingError` for a name that nobody knows."""
        if name in self._known:
            self._given[name] = GivenSetting(value.strip(), where)
        elif name in self._ignored:
            self.passed_over[name] = f"the setting {name} is passed over ({where}): {self._ignored[name]}"
        else:
            self.problem(f"{where}: there is no setting {name!r}{_suggestion(name, self._known)}")

    def add_file(self, path: Path) -> None:
        """Take all settings of a properties file. `SettingError`, also when it cannot be read."""
        try:
            # Editors of Windows begin a file with a mark of its encoding, which is no part of the first name.
            properties = parse_properties(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise SettingError(f"the settings file {path} cannot be read: {error.strerror}") from None
        except BadProperties as error:
            raise SettingError(f"the settings file {path} is damaged: {error}") from None
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise SettingError(f"the settings file {path} is not in UTF-8: look at line {line}") from None
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

    def told(self, name: str) -> str:
        """One that was given, for the log: what and where, without secrets."""
        given = self._given[name]
        return f"{name}={_shown(name, given.value)} ({given.where})"

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

    def build(self, base: T) -> T:
        """`base`, a settings object, with every field replaced that was given a value. `SettingError`."""
        rows = rows_of(type(base))
        changes: dict[str, Any] = {}
        for row in rows:
            for name in row.names:
                given = self._given.get(name)
                if given is not None and given.value:
                    value = self._read(name, _ValueReader(row, name), _WRONG)
                    if value is not _WRONG:
                        changes[row.path] = value
                elif row.port and self.emptied(name):
                    changes[row.path] = None
                self._used.add(name)
        names = [name for row in rows for name in row.names]

        def refused(error: SettingError) -> None:
            self.problem(self._explained(str(error), names))

        return _replaced(base, changes, refused)

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
            self.problem(f"{given.where}: {name} is {_shown(name, given.value)!r}, and not {error}")
            return default

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
    def __init__(self, row: Row, name: str) -> None:
        self._row = row
        self._name = name
        self._unit = _unit_of(row, name)
        self._factor = unit_factor(row, name)

    def __call__(self, text: str) -> object:
        row, kind = self._row, kind_of(self._row)
        if row.read is not None:
            return row.read(text)
        if row.words is not None:
            if text not in row.words:
                raise ValueError("one of " + ", ".join(row.words))
            return row.words[text]
        unit = f" of {self._unit.name}" if self._unit is not None and self._factor != 1 else ""
        try:
            value = parse_value(text, kind, self._factor)
        except ValueError as error:
            raise ValueError(f"{error}{unit}") from None
        bounds = range_of(row, self._name)
        if bounds is not None and not bounds[0] <= Fraction(text) <= bounds[1]:
            low, high = (f"{float(bound):.15g}" if bound.denominator != 1 else str(bound) for bound in bounds)
            raise ValueError(f"a number from {low} to {high}{unit}")
        if row.below_zero is not None and cast(float, value) < 0:
            return row.below_zero
        return value


def range_of(row: Row, name: str) -> tuple[Fraction, Fraction] | None:
    """The smallest and the largest value as they are written under a name; None for what is no number."""
    if row.read is not None or row.words is not None or not _is_number(kind_of(row)):
        return None
    if row.port:
        return Fraction(0), Fraction(PORT_MAX)
    factor, written = unit_factor(row, name), _unit_of(row, name)
    long = written in (Unit.BYTES, Unit.MS) or (written is None and row.path.endswith(_OF_BYTES))
    largest = Fraction(LONG_MAX if long else INT_MAX)
    smallest = Fraction(0) if row.below_zero is None else -largest - 1
    low = smallest if row.low is None else Fraction(str(row.low)) / factor
    return low, largest if row.high is None else Fraction(str(row.high)) / factor


def _is_number(kind: Any) -> bool:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return any(map(_is_number, typing.get_args(kind)))
    return kind in (int, float)


def unit_factor(row: Row, name: str) -> Fraction:
    """How many of our field's units one of the upstream setting's is. `Misuse` when a time's unit is not known."""
    words = [word for word in row.path.rpartition(".")[2].split("_") if word not in ("max", "min")]
    ours = next((unit for ending, unit in _OUR_ENDINGS if words[-1] == ending), None)
    if ours is None:
        return Fraction(1)
    theirs = _unit_of(row, name)
    if theirs is None and ours is Unit.BYTES:
        return Fraction(1)
    if theirs is None or theirs.value[0] != ours.value[0]:
        raise Misuse(f"the unit of {name} is not known")
    return theirs.value[1] / ours.value[1]


def _unit_of(row: Row, name: str) -> Unit | None:
    """The unit of what is written under a name."""
    return Unit[row.unit.upper()] if row.unit else _unit_by_ending(name.lower(), _UPSTREAM_ENDINGS)


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


def kind_of(row: Row) -> Any:
    """The type of a setting's field. `Misuse` when its class has no such field."""
    hints, last = _hints(row.owner), row.path.rpartition(".")[2]
    if last not in hints:
        raise Misuse(f"there is no field {row.path}")
    return hints[last]


@cache
def _hints(owner: type) -> Mapping[str, Any]:
    return typing.get_type_hints(owner)


def _replaced(base: T, changes: Mapping[str, Any], refused: Callable[[SettingError], None]) -> T:
    """With the changes; a part that cannot have its changes stays as it was, and `refused` hears of it. What holds it
    is not told of then: it may lack only what that part would have said."""
    whole = True

    def refused_inside(error: SettingError) -> None:
        nonlocal whole
        whole = False
        refused(error)

    direct = {path: value for path, value in changes.items() if "." not in path}
    parts: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        part, dot, rest = path.partition(".")
        if dot:
            parts.setdefault(part, {})[rest] = value
    for part, inner in parts.items():
        direct[part] = _replaced(getattr(base, part), inner, refused_inside)
    try:
        return cast(T, replace(cast(Any, base), **direct)) if direct else base
    except SettingError as error:
        if whole:
            refused(error)
        return base


def _suggestion(name: str, known: Collection[str]) -> str:
    import difflib  # Only a mistake needs it, and it costs start-up time.

    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""

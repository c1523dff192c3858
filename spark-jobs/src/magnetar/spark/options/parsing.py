"""Options as Spark hands them over, texts under lower-cased names, and their values as people write them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from magnetar.core.topic_name import NON_PERSISTENT, InvalidTopicName, TopicName
from magnetar.spark.errors import BadOption


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, as it is documented."""

    name: str
    """Our spelling; Spark's options do not distinguish case."""
    default: str
    """The default as a user would write it; empty: there is none."""
    what: str
    """What it does, for people."""
    aliases: tuple[str, ...] = ()
    """Other names of the same, as other connectors have them."""
    secret: bool = False
    """The value is never printed."""


SPARKS_OWN: Final = {
    "path": "Spark adds it to tables, and `load(path)` and `save(path)` do",
    "checkpointlocation": "Spark hands it to stream writers",
    "queryname": "Spark hands it to stream writers",
    "outputmode": "Spark hands it to stream writers of tables",
    "serialization.format": "Spark's catalog adds it to tables",
}
"""Options that Spark itself adds: no user of ours has mistyped anything."""

CATALOGS_COPIES: Final = "option."
"""What Spark's catalog puts in front of a table's options (`TableCatalog.OPTION_PREFIX`). It asks a Python source for a
new table's columns with them, and later reads the table without any options (seen in 4.3)."""

_NOT_FOR_US: Final = {
    "pulsar.reader.": "settings of the Java client's Reader mean nothing here",
    "pulsar.producer.": "settings of the Java client's producer mean nothing here",
    "pulsar.admin.": "the admin API is reached with the credentials and certificates of pulsar.client.…",
    "pulsar.client.": "this setting of the Java client has no counterpart here",
    "kafka.": "this is a source of Pulsar topics",
}

_SIZE: Final = re.compile(r"(\d{1,19})\s*([kmgtp]i?b?|b)?", re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)\s*([a-z]+)", re.IGNORECASE)
_DURATION_SECONDS: Final = {
    **dict.fromkeys(("us",), 1e-6),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_MILLISECOND: Final = timedelta(milliseconds=1)
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: more is a time in microseconds by mistake, or in nanoseconds."""


def check_known(given: Iterable[str], known: Sequence[Option], refused: Mapping[str, str] | None = None) -> None:
    """That every name given is an option. `refused` has reasons for names that people may know from elsewhere.

    Raises `BadOption` for the first one that is not, with the nearest names."""
    spellings = {name.lower(): name for option in known for name in (option.name, *option.aliases)}
    reasons = {name.lower(): reason for name, reason in (refused or {}).items()}
    for name in sorted(given):
        lower = name.lower()
        if lower in spellings or lower in SPARKS_OWN:
            continue
        if lower.startswith(CATALOGS_COPIES):
            raise BadOption(
                "Spark's catalog keeps no options for tables of sources in Python, so that CREATE TABLE … USING pulsar "
                "makes none that can be read: CREATE TEMPORARY VIEW … USING pulsar OPTIONS (…) does"
            )
        if lower in reasons:
            raise BadOption(f"option {name}: {reasons[lower]}")
        foreign = [reason for prefix, reason in _NOT_FOR_US.items() if lower.startswith(prefix)]
        # A common prefix alone makes names look alike.
        cutoff = 0.9 if foreign else 0.7
        near = [spellings[one] for one in difflib.get_close_matches(lower, spellings, n=3, cutoff=cutoff)]
        if near:
            raise BadOption(f"there is no option {name}: did you mean {' or '.join(near)}?")
        if foreign:
            raise BadOption(f"option {name}: {foreign[0]}; leave it out")
        names = ", ".join(sorted(option.name for option in known))
        raise BadOption(f"there is no option {name}; those there are: {names}")


class OptionValues:
    """Looks options up, whatever the case of their names, and reads their values. Each error names the option, the
    value and what is accepted. An absent option has the default that its `Option` has."""

    def __init__(self, given: Mapping[str, str | None], known: Iterable[Option]) -> None:
        # Python's `option(name, None)` comes as it is.
        self._given = {name.lower(): value for name, value in given.items() if value is not None}
        self._options = {option.name: option for option in known}

    def given(self, name: str) -> bool:
        """Whether the user set it."""
        return self._given_text(self._options[name]) is not None

    def text(self, name: str) -> str:
        """Without blanks around it. Raises `BadOption` for one that is set to nothing."""
        option = self._options[name]
        text = self._given_text(option)
        if text is None:
            return option.default
        if not text:
            raise BadOption(f"option {name} is empty: leave it out, or give it a value. {option.what}")
        return text

    def text_or_blank(self, name: str) -> str:
        """The text of an option; one that is set to nothing is as good as absent."""
        option = self._options[name]
        return self._given_text(option) or option.default

    def choice(self, name: str, accepted: Sequence[str]) -> str:
        """One of the values, whatever its case; as it is spelled in `accepted`."""
        text = self.text(name)
        for value in accepted:
            if value.lower() == text.lower():
                return value
        near = difflib.get_close_matches(text.lower(), [value.lower() for value in accepted], n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise self.bad(name, f"{' or '.join(accepted)} is accepted{hint}")

    def boolean(self, name: str) -> bool:
        """`true` or `false`, as Spark takes them."""
        return self.choice(name, ("true", "false")) == "true"

    def integer(self, name: str, minimum: int) -> int | None:
        """None when it is not set and has no default."""
        text = self.text(name)
        if not text:
            return None
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None
        if number is None or number < minimum:
            raise self.bad(name, f"a whole number from {minimum} on is accepted")
        return number

    def size_bytes(self, name: str, minimum: int) -> int | None:
        """A number of bytes, at least `minimum`, written like Spark's settings: `1048576`, `64m`, `1g`, `512KiB`; units
        are powers of 1024. None where it is not given."""
        text = self.text(name)
        if not text:
            return None
        size = _size_bytes(text)
        if size < minimum or size >= 1 << 63:
            examples = [text for text in ("1048576", "512k", "64m", "1g") if _size_bytes(text) >= minimum]
            raise self.bad(name, f"a size from {minimum} bytes on is accepted: {', '.join(examples)}")
        return size

    def seconds(self, name: str, minimum: float) -> float:
        """A duration with its unit: `200ms`, `5s`, `1min`, `2h`. Without one nobody knows what is meant."""
        text = self.text(name)
        match = _DURATION.fullmatch(text)
        unit = _DURATION_SECONDS.get(match[2].lower()) if match else None
        seconds = float(match[1]) * unit if match and unit is not None else -1.0
        if seconds < minimum:
            raise self.bad(name, f"a duration from {minimum:g}s on with its unit is accepted: 200ms, 5s, 1min, 2h")
        return seconds

    def time_ms(self, name: str) -> int | None:
        """A point in time; None when it is not set."""
        text = self.text(name)
        if not text:
            return None
        time = parse_time_ms(text)
        if time is None:
            raise self.bad(name, TIME_FORMS)
        return time

    def names(self, name: str) -> tuple[str, ...] | None:
        """`a,b` or `["a","b"]`, without doubles; None when it is not set."""
        text = self.text(name)
        if not text:
            return None
        parts: list[object] = [part.strip() for part in text.split(",")]
        if text.startswith("["):
            try:
                parts = json.loads(text)
            except ValueError:
                raise self.bad(name, 'names with commas between them, or a JSON list ["a","b"] is accepted') from None
        found = [part for part in parts if isinstance(part, str) and part]
        if not found or len(found) < len([part for part in parts if part != ""]):
            raise self.bad(name, 'names with commas between them, or a JSON list ["a","b"] is accepted')
        return tuple(dict.fromkeys(found))

    def bad(self, name: str, accepted: str) -> BadOption:
        """The error that a value is not accepted."""
        option = self._options[name]
        value = "its value" if option.secret else repr(shortened(self._given_text(option) or option.default))
        return BadOption(f"option {name}: {value} is not understood; {accepted}. {option.what}")

    def _given_text(self, option: Option) -> str | None:
        values = {
            name: self._given[name.lower()].strip()
            for name in (option.name, *option.aliases)
            if name.lower() in self._given
        }
        if len(set(values.values())) > 1:
            raise BadOption(f"options {' and '.join(values)} are the same and have different values: give one of them")
        return next(iter(values.values()), None)


TIME_FORMS: Final = (
    "milliseconds since 1970 (1772362800000) or an ISO time (2026-03-01T12:00:00Z, 2026-03-01 12:00:00+01:00, "
    "2026-03-01; without a zone it is UTC) is accepted"
)


def _size_bytes(text: str) -> int:
    """-1: it is none."""
    match = _SIZE.fullmatch(text)
    return int(match[1]) * _SIZE_UNITS[(match[2] or "")[:1].lower()] if match else -1


def parse_time_ms(text: str) -> int | None:
    """A point in time as `TIME_FORMS` has them; None: it is none."""
    if re.fullmatch(r"[0-9]{5,20}|0", text):  # Fewer digits are a year.
        time = int(text)
        return time if time <= _TIME_MS_MAX else None
    if re.fullmatch(r"[0-9]+", text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    time = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND
    return time if time >= 0 else None


def complete_topic(option: str, text: str) -> str:
    """The complete name of a topic that may be given short: `t`, `tenant/namespace/t`. Raises `BadOption`."""
    return complete_name(f"option {option}", text)


def complete_name(where: str, text: str) -> str:
    """The complete name of a topic that may be given short. `where` says for the error where the name stands. Raises
    `BadOption`."""
    try:
        name = TopicName.parse(text)
    except InvalidTopicName as error:
        raise BadOption(
            f"{where}: {shortened(text)!r} is no topic: my-topic, tenant/namespace/my-topic or "
            f"persistent://tenant/namespace/my-topic is accepted ({error})"
        ) from None
    if name.domain == NON_PERSISTENT:
        raise BadOption(
            f"{where}: {text} is non-persistent: its messages are never stored. Persistent topics are accepted"
        )
    return str(name)


def shortened(text: str) -> str:
    """The beginning of a text, for messages: a value may be a whole file by mistake."""
    return text if len(text) <= 200 else f"{text[:200]}…"

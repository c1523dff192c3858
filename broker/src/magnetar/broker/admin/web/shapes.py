"""Request bodies read as leniently as Apache's brokers read them.

Their JSON library takes numbers written as text, ignores members that it does not know, and gives members that are
missing the defaults of their class. Kinds are functions from what was decoded to what is kept; they raise `BadValue`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from aiohttp import web
from magnetar.broker.admin.web.responses import BAD_REQUEST, PRECONDITION_FAILED, TOO_LARGE, AdminError, body_json
from magnetar.managed.info_codec import SHADOW_SOURCE_PROPERTY
from magnetar.managed.offload.owed import OWED_PREFIX

Kind: TypeAlias = Callable[[Any], Any]

INTEGER_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
MEMBERS_MAX: Final = 20_000
"""Of a list, or an object with free names, such as properties: each is looked at in one turn of the event loop."""

SOURCE_IS_GIVEN: Final = f"{SHADOW_SOURCE_PROPERTY}, whose shadow a topic is, is given at its creation and stays"

STRICT: Final = web.RequestKey("STRICT", bool)
"""Whether a request's body may have no unknown members."""

_STRICT: Final = ContextVar("_STRICT", default=False)
"""While a body is read: what is stored is read as leniently as ever."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")

TRUE_TEXTS: Final = ("true", "True", "TRUE")
FALSE_TEXTS: Final = ("false", "False", "FALSE")


class BadValue(AdminError):
    """What was sent is not of the kind that is wanted: 400."""

    def __init__(self, reason: str) -> None:
        super().__init__(BAD_REQUEST, reason)


def _whole(value: Any, largest: int) -> int:
    if isinstance(value, str):
        if not _WHOLE.fullmatch(written := value.strip() or "0"):
            raise BadValue(f"{value!r} is not a whole number")
        value = int(written)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValue(f"{value!r} is not a whole number")
    if not -largest - 1 <= value <= largest:
        raise BadValue(f"{value!r} is out of the range of a whole number here")
    return int(value)


def integer(value: Any) -> int:
    """A Java `int`; fractions are cut off."""
    return _whole(value, INTEGER_MAX)


def long(value: Any) -> int:
    """A Java `long`."""
    return _whole(value, LONG_MAX)


def number(value: Any) -> float:
    """A Java `double`, but for those that are no number, and those that have no end."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadValue(f"{value!r} is not a number") from None
    if not math.isfinite(found):
        raise BadValue(f"{value!r} is not a number")
    return found


def boolean(value: Any) -> bool:
    """True or false, also as text or as a number."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value != 0
    if isinstance(value, str) and value in TRUE_TEXTS + FALSE_TEXTS:
        return value in TRUE_TEXTS
    raise BadValue(f"{value!r} is neither true nor false")


def text(value: Any) -> str:
    """A text; numbers and truth values are taken as they are written."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise BadValue(f"{value!r} is not a text")


def one_of(*names: str) -> Kind:
    """One of these names. Apache takes an unknown one for none at all, which would silently unset what is set."""

    def kind(value: Any) -> str:
        if value not in names:
            raise BadValue(f"{value!r} is not one of {', '.join(names)}")
        return str(value)

    return kind


def list_of(kind: Kind) -> Kind:
    """A list whose members are of one kind."""

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise BadValue(f"{value!r} is not a list")
        check_members(len(value))
        return [kind(each) for each in value]

    return read


def set_of(kind: Kind) -> Kind:
    """A list in which each value counts once; the order is that of the first time."""
    read = list_of(kind)
    return lambda value: list(dict.fromkeys(read(value)))


def check_members(count: int) -> None:
    """Raises 413 for more members than a list may have, or an object whose names are free."""
    if count > MEMBERS_MAX:
        raise AdminError(TOO_LARGE, f"There are {count} members; at most {MEMBERS_MAX} are taken")


def check_source_stays(keys: Container[str]) -> None:
    """Raises 412 when the property that says whose shadow a topic is would be set or removed later."""
    if SHADOW_SOURCE_PROPERTY in keys:
        raise AdminError(PRECONDITION_FAILED, SOURCE_IS_GIVEN)


def check_not_owed(keys: Iterable[str]) -> None:
    """Raises 412 when what a broker remembers of offloads would be set or removed: it deletes what stands there, at
    the endpoint and in the bucket that it names."""
    if any(key.startswith(OWED_PREFIX) for key in keys):
        raise AdminError(PRECONDITION_FAILED, f"Properties that begin with {OWED_PREFIX} are the broker's own")


def map_of(kind: Kind) -> Kind:
    """An object with any members of one kind."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise BadValue(f"{value!r} is not an object")
        check_members(len(value))
        return {name: kind(each) for name, each in value.items() if each is not None}

    return read


class Shape:
    """An object with known members; a default of None means that a missing member stays missing."""

    def __init__(self, members: Mapping[str, tuple[Kind, Any]]) -> None:
        self.members = members

    def __call__(self, value: Any) -> dict[str, Any]:
        """The members that are known, in this shape's order."""
        if not isinstance(value, dict):
            raise BadValue(f"{value!r} is not an object")
        check_known(value, self.members)
        found: dict[str, Any] = {}
        for name, (kind, default) in self.members.items():
            given = value.get(name)
            if given is not None:
                found[name] = kind(given)
            elif default is not None:
                found[name] = default
        return found


def check_known(names: Iterable[str], known: Mapping[str, Any]) -> None:
    """Raises 400 for a member that nobody knows, where the broker's settings refuse them."""
    if _STRICT.get():
        for name in names:
            if name not in known:
                raise BadValue(f'Unrecognized field "{name}" ({len(known)} known properties: {", ".join(known)})')


def read_body(request: web.Request, kind: Kind, decoded: Any) -> Any:
    """What a request's body says, read as a kind. Raises 400."""
    token = _STRICT.set(request.get(STRICT, False))
    try:
        return kind(decoded)
    finally:
        _STRICT.reset(token)


async def body_of(request: web.Request, kind: Kind) -> Any:
    """The body read as a kind; None when there is none, or only `null`. Raises 400."""
    decoded = await body_json(request)
    return None if decoded is None else read_body(request, kind, decoded)


async def required_body(request: web.Request, kind: Kind) -> Any:
    """The JSON body of a request, checked against its kind. Raises 400 when there is none, or it does not fit."""
    value = await body_of(request, kind)
    if value is None:
        raise AdminError(BAD_REQUEST, "The request entity cannot be empty.")
    return value

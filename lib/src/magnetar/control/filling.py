"""Messages of the control port from our own values, and back, by the names that both have."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

M = TypeVar("M", bound=Message)
D = TypeVar("D", bound="DataclassInstance")


def message_of(kind: type[M], *sources: object, **given: Any) -> M:
    """A message: each of its fields is given, or an attribute of that name of one of the sources. AttributeError for
    a field that nobody has."""
    for name in kind.DESCRIPTOR.fields_by_name:
        if name not in given:
            source = next((one for one in sources if hasattr(one, name)), None)
            given[name] = getattr(source, name)
    return kind(**given)


def value_of(kind: type[D], message: Message, **given: Any) -> D:
    """A value: each of its fields is given, or the message's of that name; lists come as tuples."""
    lists = {field.name for field in message.DESCRIPTOR.fields if field.is_repeated}
    for field in fields(kind):
        if field.name not in given:
            found = getattr(message, field.name)
            given[field.name] = tuple(found) if field.name in lists else found
    return kind(**given)

"""Request bodies are read as Apache's JSON library reads them."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.broker.admin.web.shapes import (
    BadValue,
    Kind,
    Shape,
    boolean,
    integer,
    list_of,
    long,
    map_of,
    number,
    one_of,
    set_of,
    text,
)

PAIR = Shape({"a": (integer, 1), "b": (text, None)})


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (integer, 7, 7),
        (integer, "7", 7),
        (integer, 1.9, 1),
        (integer, "", 0),
        (integer, -(2**31), -(2**31)),
        (long, 2**40, 2**40),
        (number, 1, 1.0),
        (number, "1.5", 1.5),
        (boolean, True, True),
        (boolean, 1, True),
        (boolean, 0, False),
        (boolean, "False", False),
        (text, 7, "7"),
        (text, True, "true"),
        (one_of("a", "b"), "b", "b"),
        (list_of(integer), ["1", 2, 2], [1, 2, 2]),
        (set_of(text), ["b", "a", "b"], ["b", "a"]),
        (map_of(integer), {"x": "1", "y": None}, {"x": 1}),
        (PAIR, {}, {"a": 1}),
        (PAIR, {"a": None, "b": None}, {"a": 1}),
        (PAIR, {"a": 2, "b": "x", "c": "unknown"}, {"a": 2, "b": "x"}),
    ],
)
def test_read(kind: Kind, value: Any, read: Any) -> None:
    assert kind(value) == read


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (integer, "x"),
        (integer, True),
        (number, "NaN"),
        (number, "Infinity"),
        (number, "9" * 400),
        (number, 10**400),
        (integer, None),
        (integer, []),
        (integer, 2**31),
        (long, 2**63),
        (number, "x"),
        (boolean, "yes"),
        (boolean, 1.5),
        (text, {}),
        (one_of("a", "b"), "c"),
        (one_of("a", "b"), []),
        (list_of(text), "a"),
        (list_of(integer), ["x"]),
        (map_of(text), []),
        (PAIR, 7),
        (PAIR, {"a": "x"}),
    ],
)
def test_refused(kind: Kind, value: Any) -> None:
    with pytest.raises(BadValue) as refused:
        kind(value)
    assert refused.value.status == 400

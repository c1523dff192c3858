"""Paths of nodes: what is a good one, and its parts.

Every backend takes exactly the paths that ZooKeeper takes (its PathUtils.validatePath), so that a tree can move from
one backend to another: absolute, no empty, `.` or `..` part, no control, surrogate or private-use characters, and
nothing outside the basic multilingual plane, which ZooKeeper's string encoding cannot carry.
"""

from __future__ import annotations

import re
from typing import Final

from magnetar.core.errors import Misuse
from magnetar.core.limits import KIB
from magnetar.metadata.store import NodeTooLarge

NODE_BYTES_MAX: Final = 1_000_000
"""Bytes of a value with its path. ZooKeeper ends the connection, and with it all that is under way, over a request of 1
MiB (`jute.maxbuffer`); etcd refuses 1.5 MiB. What clients name and note must not do that to a broker."""

PATH_CHARACTERS_MAX: Final = 64 * KIB
"""Characters of a node's path at the most: lists of children are made of them."""

ROOT: Final = "/"

SEQUENCE_DIGITS: Final = 10
"""How many digits a sequential node's name ends with, as ZooKeeper's."""

_REFUSED: Final = "/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff"
_PART: Final = rf"/(?!\.{{1,2}}(?:/|\Z))[^{_REFUSED}]+"
_GOOD_PATH: Final = re.compile(rf"(?:{_PART})+|/")


def check_path(path: str) -> None:
    """`Misuse` unless the path is one that every backend takes, `NodeTooLarge` when it is only too long."""
    if len(path) > PATH_CHARACTERS_MAX:
        raise NodeTooLarge(f"a path of {len(path)} characters, which begins with {path[:100]!r}")
    if _GOOD_PATH.fullmatch(path) is None:
        raise Misuse(f"not a path of a metadata node: {path!r}")


def check_node(path: str, value: bytes) -> None:
    """Raise `Misuse` for a bad path, `NodeTooLarge` when no backend takes a node that large."""
    check_path(path)
    if len(path.encode()) + len(value) > NODE_BYTES_MAX:
        raise NodeTooLarge(f"{path[:100]} would have {len(value)} bytes; a node has at most {NODE_BYTES_MAX}")


def check_sequential_prefix(path: str) -> None:
    """Raise `Misuse` for a bad path, whose last part may be empty here: the digits become the whole name."""
    check_path(path + "0")


def parent_of(path: str) -> str:
    """The path of the node above; the root has none (`Misuse`)."""
    if path == ROOT:
        raise Misuse("the root has no parent")
    return path[: path.rindex("/")] or ROOT


def name_of(path: str) -> str:
    """The last part of a path."""
    return path[path.rindex("/") + 1 :]


def join(parent: str, name: str) -> str:
    """The path of a node below another."""
    return f"/{name}" if parent == ROOT else f"{parent}/{name}"


def sequential_path(prefix: str, number: int) -> str:
    """The path of a sequential node."""
    return f"{prefix}{number:0{SEQUENCE_DIGITS}d}"

"""Where managed ledgers and cursors stand in the metadata store, as Pulsar names them."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote_plus, unquote_plus

ROOT: Final = "/managed-ledgers"


def ledger_path(name: str) -> str:
    """The node of a managed ledger; `name` is "tenant/namespace/persistent/<encoded topic>"."""
    return f"{ROOT}/{name}"


def cursor_path(ledger_name: str, cursor_name: str) -> str:
    """The node of a durable cursor."""
    return f"{ROOT}/{ledger_name}/{encode(cursor_name)}"


def encode(text: str) -> str:
    """The text in a node's name, encoded like Java's URLEncoder with UTF-8: letters, digits and `.-*_` stay, a space
    becomes `+`."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def decode(text: str) -> str:
    """The inverse of `encode`."""
    return unquote_plus(text)

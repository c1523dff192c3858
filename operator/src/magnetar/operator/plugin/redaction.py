"""What a report leaves out: secrets, wherever people may have written them. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from magnetar.operator.children.naming import READABLE_ANNOTATION
from magnetar.operator.kubernetes.kinds import Manifest

REDACTED: Final = "REDACTED"

_SECRET: Final = re.compile(
    r"token|password|passwd|passphrase|secret|credential|private|api.?key|key$"
    r"|auth.*param|auth.?conf|jaas.?conf|plugin.?params",
    re.IGNORECASE,
)
_HARMLESS: Final = re.compile(r"(file|path|name|names|plugin|provider|providers|enabled|claim)$", re.IGNORECASE)
"""Names of settings that say where a secret is, or how it is used."""
_URL_PASSWORD: Final = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
_DROPPED_ANNOTATIONS: Final = ("kubectl.kubernetes.io/last-applied-configuration", READABLE_ANNOTATION)
_OPTION: Final = re.compile(r"--?([A-Za-z0-9_.-]+)(=?)(.*)", re.DOTALL)
_SETTING: Final = re.compile(r"^([ \t#!]*([A-Za-z0-9_.-]+)[ \t]*[=:][ \t]*)(?:\\\n|.)+$", re.MULTILINE)
"""A line that sets a property, as it may be written: behind blanks, switched off, on several lines."""
_ASSIGNED: Final = re.compile(r"([A-Za-z0-9_.]+)=")
_BLANK: Final = re.compile(r"\s")


def is_secret(name: str) -> bool:
    """Whether a setting or variable of this name may hold one."""
    return bool(_SECRET.search(name)) and not _HARMLESS.search(name)


def redacted(manifest: Manifest) -> Manifest:
    """An object without what may be secret: values of settings and variables by their names, passwords in addresses,
    arguments likewise, copies of the object within itself. Whole Secrets must not come here."""
    found = _walk(manifest)
    assert isinstance(found, dict)
    metadata = found.get("metadata", {})
    metadata.pop("managedFields", None)
    for name in _DROPPED_ANNOTATIONS:
        metadata.get("annotations", {}).pop(name, None)
    if found.get("kind") == "ConfigMap":
        found["data"] = {name: redacted_settings(str(text)) for name, text in (found.get("data") or {}).items()}
    return found


def redacted_settings(text: str) -> str:
    """A .conf file."""

    def line(match: re.Match[str]) -> str:
        return f"{match[1]}{REDACTED}" if is_secret(match[2]) else match[0]

    return _without_passwords(_SETTING.sub(line, text))


def _walk(value: Any) -> Any:
    if isinstance(value, dict):
        name = value.get("name")
        if isinstance(name, str) and isinstance(value.get("value"), str) and is_secret(name):
            # An environment variable.
            return {**value, "value": REDACTED}
        return {key: _value(key, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return _words(value) if all(isinstance(inner, str) for inner in value) else [_walk(inner) for inner in value]
    return _without_passwords(value) if isinstance(value, str) else value


def _words(words: list[str]) -> list[str]:
    """Such as a container's arguments: an option's value stands behind it, or is the next word."""
    found, is_value = [], False
    for word in words:
        option = _OPTION.fullmatch(word)
        if option is None:
            found.append(REDACTED if is_value else _without_passwords(word))
            is_value = False
            continue
        secret = is_secret(option[1])
        is_value = secret and not option[2]
        hidden = secret and option[2]
        found.append(f"{word[: option.start(3)]}{REDACTED}" if hidden else _without_passwords(word))
    return found


def _value(key: str, value: Any) -> Any:
    if key == "settings" and isinstance(value, dict):
        return {name: REDACTED if is_secret(name) else _walk(inner) for name, inner in value.items()}
    return _walk(value)


def _without_passwords(text: str) -> str:
    return _without_assigned(_URL_PASSWORD.sub(rf"\1{REDACTED}@", text))


def _without_assigned(text: str) -> str:
    """Of `NAME=VALUE`, wherever it stands: behind `--set`, or in a line of a shell."""
    for match in _ASSIGNED.finditer(text):
        if is_secret(match[1]):
            end = _BLANK.search(text, match.end())
            rest = text[end.start() :] if end is not None else ""
            return f"{text[: match.end()]}{REDACTED}{_without_assigned(rest)}"
    return text

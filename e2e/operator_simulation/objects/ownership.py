"""Server-side apply, simplified: who owns which field, and what an apply makes of an object. Pure.

A field is a path of keys. Lists whose items have a key are merged item by item, others are one field (Kubernetes:
structured-merge-diff; the lists' kinds are those of its own types and of the CRDs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

Path: TypeAlias = tuple[Any, ...]
Fields: TypeAlias = frozenset[Path]
Owners: TypeAlias = dict[tuple[str, str], Fields]
"""By manager and operation: Apply, Update, or Status for applies to the status."""

LIST_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "members": ("name",),
    "brokerMembers": ("name",),
    "ownerReferences": ("uid",),
    "ports": ("containerPort", "port", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""By the field's name. Of ports each kind has its own key, and lacks the other's."""
SETS: Final = ("finalizers",)

_KEY: Final = "\0key"


def item_key(field: str, item: Mapping[str, Any]) -> Path:
    """What tells an item of a keyed list from the others. A port's protocol is TCP if it does not say."""
    return (_KEY, *(item.get(name, "TCP" if name == "protocol" else None) for name in LIST_KEYS[field]))


def fields_of(value: Any, at: Path = (), name: str = "") -> Iterator[Path]:
    """The paths of everything in a value that is no map or keyed list itself."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from fields_of(part, (*at, key), key)
    elif isinstance(value, list) and _is_keyed(name, value):
        for item in value:
            yield from fields_of(item, (*at, item_key(name, item)))
    elif isinstance(value, list) and name in SETS:
        for item in value:
            yield (*at, (_KEY, item))
    else:
        yield at


def merged(current: Any, wanted: Any, name: str = "") -> Any:
    """`current` with everything that `wanted` says."""
    if isinstance(current, dict) and isinstance(wanted, dict):
        found = dict(current)
        for key, part in wanted.items():
            found[key] = merged(current.get(key), part, key)
        return found
    if isinstance(current, list) and isinstance(wanted, list) and _is_keyed(name, [*current, *wanted]):
        items = {item_key(name, item): item for item in current}
        # Items keep their places, as real API servers have it; new ones come last.
        for item in wanted:
            key = item_key(name, item)
            items[key] = merged(items.get(key), item)
        return list(items.values())
    if isinstance(current, list) and isinstance(wanted, list) and name in SETS:
        return [*current, *(item for item in wanted if item not in current)]
    return wanted


def removed(value: Any, path: Path, name: str = "") -> Any:
    """`value` without one field, and without what is empty because of that."""
    if not path:
        return None
    head, rest = path[0], path[1:]
    if isinstance(value, dict):
        if head not in value:
            return value
        part = removed(value[head], rest, head) if rest else None
        found = dict(value)
        if part is None or part in ({}, []):
            del found[head]
        else:
            found[head] = part
        return found
    if isinstance(value, list) and isinstance(head, tuple):
        kept = []
        for item in value:
            if not isinstance(item, dict):
                if (_KEY, item) != head:
                    kept.append(item)
            elif item_key(name, item) != head:
                kept.append(item)
            elif rest and (part := removed(item, rest)) not in (None, {}):
                kept.append(part)
        return kept
    return value


def value_at(value: Any, path: Path) -> Any:
    """What stands there; None for nothing."""
    name = ""
    for step in path:
        if isinstance(value, dict):
            value, name = value.get(step), str(step)
        elif isinstance(value, list):
            found = [item for item in value if _matches(name, item, step)]
            value = found[0] if found else None
        else:
            return None
    return value


def apply(current: dict[str, Any], wanted: dict[str, Any], owners: Owners, who: tuple[str, str]) -> dict[str, Any]:
    """The object after an apply with force; `owners` is brought up to date."""
    now = frozenset(fields_of(wanted))
    before = owners.get(who, frozenset())
    found: dict[str, Any] = merged(current, wanted)
    # What tells an item from others goes last, for the item is found by it.
    for path in sorted(before - now, key=lambda path: (_is_key(path), repr(path))):
        if not any(path in theirs for other, theirs in owners.items() if other != who):
            found = removed(found, path)
    for other in [name for name in owners if name != who]:
        owners[other] = frozenset(
            path for path in owners[other] if path not in now or value_at(current, path) == value_at(found, path)
        )
    owners[who] = now
    return found


def merge_patched(current: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(current) if isinstance(current, dict) else {}
    for key, part in patch.items():
        if part is None:
            found.pop(key, None)
        else:
            found[key] = merge_patched(found.get(key), part)
    return found


def updated_owners(before: dict[str, Any], after: dict[str, Any], owners: Owners, who: tuple[str, str]) -> None:
    """After a write that was no apply: what it changed is the writer's alone."""
    old, new = frozenset(fields_of(before)), frozenset(fields_of(after))
    changed = frozenset(path for path in new if path not in old or value_at(before, path) != value_at(after, path))
    for other in owners:
        owners[other] = owners[other] - changed - (old - new)
    owners[who] = owners.get(who, frozenset()) | changed


def _is_key(path: Path) -> bool:
    fields = {key for keys in LIST_KEYS.values() for key in keys}
    return len(path) > 1 and isinstance(path[-2], tuple) and path[-1] in fields


def _is_keyed(name: str, items: list[Any]) -> bool:
    return name in LIST_KEYS and all(isinstance(item, dict) for item in items)


def _matches(name: str, item: Any, step: Any) -> bool:
    if isinstance(item, dict) and name in LIST_KEYS:
        return bool(item_key(name, item) == step)
    return bool((_KEY, item) == step)

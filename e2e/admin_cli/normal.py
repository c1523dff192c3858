"""What a tool printed without what differs from run to run, and how two such prints differ."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from e2e.admin_cli.step import Outcome
from e2e.admin_cli.tools import Printed

T = TypeVar("T")

# Commands whose output is measured: of their numbers and texts only those below are compared, of the rest the type.
MEASURED = re.compile(
    r"^(topics|persistent|non-persistent) (stats|partitioned-stats|info-internal|internal-|analyze-backlog|examine)"
    r"|^(topics|persistent|subscriptions) (get-message-by-id|peek)"
)
# Commands of which only the shape is compared: the names and what kind of value each has. One prints, by a slip of the
# tool's, the state of its own waiting.
SHAPES = re.compile(
    r"^broker-stats|^brokers get-(runtime|internal)-config|^brokers version|^namespaces get-topic-positions"
    r"|^topicPolicies get-dispatcher-pause"
)

# Commands that say the same of each broker, of which the clusters have different numbers.
OF_EACH = re.compile(r"^brokers list|^ns-isolation-policy brokers")

# Commands that name topics by broker.
BY_BROKER = re.compile(r"^topics partitioned-lookup .* -s$")
ADDRESS = re.compile(r"[a-z-]+://[^\s,\]]+")

# Fields of measured output whose value is the run's own.
VOLATILE = re.compile(
    r"(?i)time|date|rate|throughput|size|bytes|address|ledger|cursor|position|entr(y|ies)|version|url|broker|uptime"
    r"|connectedsince|producername|producerid|consumername|createdat|updatedat|earliest|latest|hash|lookup|metadata|^state$|underreplicated"
)
# Not volatile although the pattern above says so.
EXACT = {
    "boundaries",
    "currentLedgerEntries",
    "entriesAddedCounter",
    "markDeletePosition",
    "numberOfEntries",
    "readPosition",
    "retentionSizeInMB",
    "retentionTimeInMinutes",
    "entries",
}
# Ledger ids are the run's own, the entry in the ledger is not.
LEDGERS = {"ledgerId"}
POSITIONS = {"markDeletePosition", "readPosition", "lastConfirmedEntry"}

INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(Z|[+-]\d\d:?\d\d)?|\b1[6-9]\d{11}\b")
# Namespaces, bundles and topics, of which each cluster has its own.
NAMED = re.compile(r"/|^0x[0-9a-f]{8}_0x[0-9a-f]{8}$")
# Members that are filled, or not, by what is at a broker just now.
OF_THE_MOMENT = re.compile(r"lastStats|publishers|subscriptions")
UNIQUE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
PLACE = re.compile(r"(?<![\w.:])\d+:(-?\d+)(?::(-?\d+))?(?::-?\d+)?(?![\w:])")
# As Java prints a set.
SET = re.compile(r"\[([\w-]+(?:, [\w-]+)+)\]")
# How a tool shows a mistake in its words: what follows is its help.
USAGE = re.compile(r"^(?:Usage|USED FOR):?", re.MULTILINE)
STACK = re.compile(r"^\s+(at |\.\.\. \d+ more|Suppressed: )|^Caused by: ")


# What is printed of an answer that Apache's broker itself broke at: whatever ours answers is as good.
BROKEN = ["the broker broke"]
BREAKS = ("--- An unexpected error occurred in the server ---", "HTTP 500")
NO_WORDS = (["Reason:"], ["[✖]  code: 404 reason:"])
# What is not compared: fields of the next version of Apache's brokers, which ours have already, and a flag that
# Apache's raises while BookKeeper's auditor has not yet looked.
UNCOMPARED = {"topicCreationTimeStamp", "lastPublishTimestamp", "underReplicated"}


def outcome(command: str, printed: Printed, names: Mapping[str, str]) -> Outcome:
    """What is kept of a command's prints; `names` says what is written for the cluster's own addresses."""
    text = printed.output
    if not printed.succeeded:
        text += "\n" + printed.complaint
        if any(sign in text for sign in BREAKS):
            return Outcome(command, False, BROKEN)
        text = USAGE.split(text)[0]
    for own, written in names.items():
        text = text.replace(own, written)
    return Outcome(command, printed.succeeded, _normalised(command, text))


def _normalised(command: str, text: str) -> object:
    if BY_BROKER.match(command) and ADDRESS.search(text):
        return _once(sorted(ADDRESS.findall(text)))
    if OF_EACH.match(command):
        return _once([line.rstrip(",") for line in _lines(text)])
    try:
        value = json.loads(text)
        # A topic's record is printed as a text that is JSON.
        value = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    except ValueError:
        if SHAPES.match(command):
            # Names and values in columns, or JSON documents one after the other.
            return _once([re.sub(r"\d+", "N", line.split("  ")[0]) for line in _lines(text)])
        return _lines(text)
    if SHAPES.match(command):
        return _shape(value)
    return _value(value, "", measured=bool(MEASURED.match(command)))


def _lines(text: str) -> list[str]:
    lines = [SET.sub(_in_order, _plain(line)) for line in text.splitlines() if not STACK.match(line)]
    return sorted(line for line in lines if line)


def _in_order(found: re.Match[str]) -> str:
    return f"[{', '.join(sorted(found[1].split(', ')))}]"


def _plain(text: str) -> str:
    """Ledgers, instants and unique ids go."""
    text = UNIQUE.sub("unique", INSTANT.sub("instant", text))
    return PLACE.sub(r"ledger:\1", text).strip()


def _once(values: list[T]) -> list[T]:
    return [value for index, value in enumerate(values) if value not in values[:index]]


def _shape(value: object) -> object:
    if isinstance(value, dict):
        if all(NAMED.search(name) for name in value):
            return {"each": _together([_shape(inner) for inner in value.values()])}
        return {_plain(name): _shape(inner) for name, inner in sorted(value.items()) if not OF_THE_MOMENT.match(name)}
    if isinstance(value, list):
        # Of plain values there may be none just now.
        shapes = [_shape(inner) for inner in value]
        return _once([shape for shape in shapes if isinstance(shape, (dict, list))])
    if isinstance(value, bool) or value is None:
        return "flag" if isinstance(value, bool) else None
    return "number" if isinstance(value, (int, float)) else "text"


def _together(shapes: list[object]) -> object:
    """The shape of things of one kind, each of which may have a part of it."""
    parts = [shape for shape in shapes if isinstance(shape, dict)]
    if len(parts) < len(shapes):
        return _once(shapes)
    names = sorted({name for part in parts for name in part})
    return {name: _one([part[name] for part in parts if name in part]) for name in names}


def _one(shapes: list[object]) -> object:
    if all(isinstance(shape, dict) for shape in shapes):
        return _together(shapes)
    found = _once([one for shape in shapes for one in (shape if isinstance(shape, list) else [shape])])
    return found[0] if len(found) == 1 and not isinstance(shapes[0], list) else found


def _value(value: object, key: str, *, measured: bool) -> object:
    if isinstance(value, dict):
        return {
            _plain(name): _value(inner, name, measured=measured)
            for name, inner in sorted(value.items())
            if name not in UNCOMPARED
        }
    if isinstance(value, list):
        found = [_value(inner, key, measured=measured) for inner in value]
        names = [inner for inner in found if isinstance(inner, str)]
        return sorted(names) if len(names) == len(found) else found
    if isinstance(value, bool) or value is None:
        return value
    if key in LEDGERS and isinstance(value, int):
        return "number"
    if measured and VOLATILE.search(key) and key not in EXACT and key not in POSITIONS:
        return "number" if isinstance(value, (int, float)) else "text"
    if isinstance(value, str):
        if key in POSITIONS:
            # Before the first entry and at it is the same place to read from.
            return re.sub(
                r"^-?\d+:(-1$)?",
                lambda at: "ledger:0" if at[1] and key == "readPosition" else "ledger:" + (at[1] or ""),
                value,
            )
        return _plain(value)
    return "instant" if isinstance(value, int) and value > 1_600_000_000_000 and value < 2_000_000_000_000 else value


def differences(expected: Sequence[Outcome], found: Sequence[Outcome]) -> list[tuple[int, str]]:
    """The number of each step whose outcome is not the expected one, and a sentence on every difference of it."""
    problems = []
    for number, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        assert wanted.command == got.command, f"{wanted.command!r} was recorded, {got.command!r} was run: record again"
        if wanted.output == BROKEN and got.output != BROKEN:
            continue
        # Apache's broker refused without a word; ours may say why.
        if wanted.output in NO_WORDS and not got.succeeded:
            continue
        if wanted.succeeded != got.succeeded:
            said = f"{'failed' if wanted.succeeded else 'succeeded'}, unlike Apache's"
            problems.append((number, f"{said}: {_short(got.output)}, Apache's {_short(wanted.output)}"))
        else:
            problems += [(number, part) for part in _parts(wanted.output, got.output, "")]
    return problems


def _parts(wanted: object, got: object, path: str) -> list[str]:
    if isinstance(wanted, dict) and isinstance(got, dict):
        found = []
        for key in sorted(wanted.keys() | got.keys()):
            if key not in got or key not in wanted:
                value = wanted.get(key, got.get(key))
                found.append(f"{path}.{key} is {'missing' if key not in got else 'unexpected'} ({_short(value)})")
            else:
                found += _parts(wanted[key], got[key], f"{path}.{key}")
        return found
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got) == 1:
        return _parts(wanted[0], got[0], f"{path}[0]")
    return [] if wanted == got else [f"{path or 'output'} is {_short(got)}, Apache's {_short(wanted)}"]


def _short(value: object, characters_max: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= characters_max else f"{text[:characters_max]}…"

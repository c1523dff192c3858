"""Which subcommands a tool has, which of them a walk takes, and which are left out, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterable

from e2e.admin_cli.step import Step
from e2e.admin_cli.tools import Tool

# Two or more spaces part a name from what it does; a wrapped name stands alone.
LISTED = re.compile(r"^  ([a-z][\w-]*)(?:, [\w-]+)*(?:\s{2,}\S.*)?$", re.IGNORECASE | re.MULTILINE)
# Not in the tool's list of groups, though it has them.
HIDDEN = {"pulsar-admin": ["persistent", "non-persistent"], "pulsarctl": []}

FUNCTIONS = "functions, sources and sinks are not part of the server yet"
LOCAL = "asks no server"
LEFT_OUT: dict[str, dict[str, str]] = {
    "pulsar-admin": {
        "functions": FUNCTIONS,
        "functions-worker": FUNCTIONS,
        "sources": FUNCTIONS,
        "sinks": FUNCTIONS,
        "packages": "packages serve functions",
        "transactions": "transactions are not part of the server yet",
        "documents": LOCAL,
        "proxy-stats": "asks a proxy, which is not a broker",
    },
    "pulsarctl": {
        "functions": FUNCTIONS,
        "functions-worker": FUNCTIONS,
        "sources": FUNCTIONS,
        "sinks": FUNCTIONS,
        "packages": "packages serve functions",
        "bookkeeper": "asks bookies by HTTP, which are not brokers",
        "completion": LOCAL,
        "context": LOCAL,
        "help": LOCAL,
        "oauth2": LOCAL,
        "plugin": LOCAL,
        "token": LOCAL,
    },
}
"""Groups of subcommands, or single ones as `group subcommand`."""


COUNTS_MIN = {"pulsar-admin": 380, "pulsarctl": 160}
"""Of subcommands that are not left out."""


def subcommands(tool: Tool) -> list[str]:
    """Every `group subcommand` that the tool's own help names, but of groups that are left out as a whole."""
    groups = [*_listed(tool, ["--help"]), *HIDDEN[tool.name]]
    left_out = LEFT_OUT[tool.name]
    return [f"{group} {name}" for group in groups if group not in left_out for name in _listed(tool, [group, "--help"])]


def unexplained(found: Iterable[str], tool: Tool, walk: Iterable[Step]) -> list[str]:
    """Subcommands that are neither walked nor left out."""
    walked = {" ".join(step.command.split()[:2]) for step in walk}
    return sorted(name for name in set(found) - walked if name not in LEFT_OUT[tool.name])


def _listed(tool: Tool, words: list[str]) -> list[str]:
    printed = tool.run(words)
    text = (printed.output + printed.complaint).partition("Commands:")[2]
    return LISTED.findall(re.split(r"^(?:Aliases|Common flags)", text, maxsplit=1, flags=re.MULTILINE)[0])

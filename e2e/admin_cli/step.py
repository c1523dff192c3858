"""What a walk is made of."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

TENANT = "acme"
SPACE = "acme/orders"
POLICY_SPACE = "acme/policies"
TOPIC = "persistent://acme/orders/plain"
PARTED = "persistent://acme/orders/parted"

# A step's words may name what differs from cluster to cluster: {cluster}, {broker} (host:port of its HTTP address),
# {bookie}, {files} (a folder with schemas), {library} (a folder of jars), {ledger} (of the last messages published).


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a tool, without the tool's name."""

    command: str
    produce: int = 0
    """Messages that are published to TOPIC before it."""
    pause_s: float = 0.0
    """How long to wait before it: topic policies reach the broker through a topic."""

    def words(self, names: Mapping[str, str]) -> list[str]:
        """Its arguments in a cluster where these names stand for these things."""
        return [word.format_map(names) for word in shlex.split(self.command)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command did: whether it succeeded, and what it printed, normalised; complaints if it did not."""

    command: str
    succeeded: bool
    output: object


def steps(*commands: str) -> list[Step]:
    """Commands in a row."""
    return [Step(command) for command in commands]

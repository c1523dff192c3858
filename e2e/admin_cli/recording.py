"""Walks of a cluster, and what a walk of Apache's printed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pulsar

from e2e.admin_cli import normal
from e2e.admin_cli.step import Outcome
from e2e.admin_cli.targets import Target
from e2e.admin_cli.tools import PulsarAdmin, Pulsarctl, Tool
from e2e.admin_cli.walks import PUBLISHED_TO, WALKS

EXPECTED = Path(__file__).parent.parent / "local" / "expected"
TOOLS: dict[str, type[Tool]] = {"pulsarctl": Pulsarctl, "pulsar-admin": PulsarAdmin}


def walk(target: Target, tool: Tool, told: Callable[[str], None] = lambda _: None) -> list[Outcome]:
    """All steps of the tool's walk, in order."""
    words, written = target.words, target.written
    outcomes = []
    for step in WALKS[tool.name]:
        if step.produce:
            words["ledger"] = str(_publish(target.service_url, PUBLISHED_TO[tool.name], step.produce))
        time.sleep(step.pause_s)
        begun = time.monotonic()
        printed = tool.run(step.words(words))
        outcome = normal.outcome(step.command, printed, written)
        outcomes.append(outcome)
        told(f"{time.monotonic() - begun:6.2f} s {step.command}: {outcome.succeeded} {outcome.output}")
    return outcomes


def _publish(service_url: str, topic: str, count: int) -> int:
    """Publishes this many messages; the ledger of the last."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(topic, producer_name="walker")
        sent = [
            producer.send(f"message-{number}".encode(), properties={"n": str(number)}, partition_key="k")
            for number in range(count)
        ]
    finally:
        client.close()
    return int(sent[-1].ledger_id())


def load(tool: str) -> list[Outcome]:
    """What Apache's brokers made the tool print."""
    return [Outcome(**item) for item in json.loads(_file(tool).read_text())]


def save(tool: str, outcomes: list[Outcome]) -> None:
    """Make this what is expected from now on."""
    items = [json.dumps({"command": o.command, "succeeded": o.succeeded, "output": o.output}) for o in outcomes]
    EXPECTED.mkdir(exist_ok=True)
    _file(tool).write_text("[\n" + ",\n".join(items) + "\n]\n")


def differences(tool: str, outcomes: list[Outcome]) -> list[tuple[int, str]]:
    """Of what a cluster printed, as `normal.differences` has them."""
    return normal.differences(load(tool), outcomes)


def _file(tool: str) -> Path:
    return EXPECTED / f"{tool.replace('-', '_')}.json"

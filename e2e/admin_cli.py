"""A walk through `pulsar-admin` against a server, and what Apache's server made it print.

`python -m e2e.admin_cli --record` runs the walk against Apache's standalone and writes the expectations beside the
tests; without `--record` it runs against `--server` and prints what differs. The tool is Apache's own, in one JVM.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pulsar

from e2e.peers import distribution
from e2e.server import StandaloneProcess, new_server

HERE = Path(__file__).parent
EXPECTED = HERE / "local" / "expected" / "admin_cli.json"
DRIVER = HERE / "clients" / "admin" / "AdminDriver.java"

# Fields whose value is the run's own: only its type is compared. The rest must be equal.
VOLATILE = re.compile(
    r"(?i)time|date|rate|throughput|size|bytes|address|ledger|cursor|position|entr(y|ies)|version|url|broker|uptime"
    r"|connectedsince|producername|producerid|consumername|createdat|updatedat|state|properties|earliest|latest|hash"
    r"|subscriptionstats|ownership|resource|jvm|epoch|buckets?index|publishers|lookup"
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
}

# Ledger ids are the run's own, the entry in the ledger is not.
POSITIONS = {"markDeletePosition", "readPosition"}

TENANT, SPACE = "acme", "acme/orders"
TOPIC, PARTED = "persistent://acme/orders/plain", "persistent://acme/orders/parted"


@dataclass(frozen=True, slots=True)
class Step:
    """One command. `produce` messages are published to TOPIC and consumed by nobody before it."""

    command: str
    produce: int = 0

    @property
    def arguments(self) -> list[str]:
        return self.command.split()


WALK = [
    Step("clusters list"),
    Step("clusters get standalone"),
    Step("brokers healthcheck"),
    Step("brokers list standalone"),
    Step("brokers leader-broker"),
    Step("tenants list"),
    Step(f"tenants create {TENANT} --allowed-clusters standalone --admin-roles admin"),
    Step(f"tenants create {TENANT} --allowed-clusters standalone"),
    Step(f"tenants get {TENANT}"),
    Step(f"tenants update {TENANT} --allowed-clusters standalone --admin-roles other"),
    Step(f"tenants get {TENANT}"),
    Step("tenants get nobody"),
    Step(f"namespaces create {SPACE} --bundles 4"),
    Step(f"namespaces create {SPACE}"),
    Step(f"namespaces list {TENANT}"),
    Step(f"namespaces bundles {SPACE}"),
    Step(f"namespaces policies {SPACE}"),
    Step(f"namespaces set-retention {SPACE} --time 10m --size 100M"),
    Step(f"namespaces get-retention {SPACE}"),
    Step(f"namespaces set-message-ttl {SPACE} --messageTTL 3600"),
    Step(f"namespaces get-message-ttl {SPACE}"),
    Step(f"namespaces set-backlog-quota {SPACE} --limit 10M --policy producer_request_hold"),
    Step(f"namespaces get-backlog-quotas {SPACE}"),
    Step(f"namespaces set-persistence {SPACE} -e 1 -w 1 -a 1 -r 0"),
    Step(f"namespaces get-persistence {SPACE}"),
    Step(f"namespaces set-deduplication {SPACE} --enable"),
    Step(f"namespaces get-deduplication {SPACE}"),
    Step(f"namespaces grant-permission {SPACE} --actions produce,consume --role app"),
    Step(f"namespaces permissions {SPACE}"),
    Step(f"namespaces revoke-permission {SPACE} --role app"),
    Step(f"namespaces permissions {SPACE}"),
    Step(f"topics create {TOPIC}"),
    Step(f"topics create {TOPIC}"),
    Step(f"topics list {SPACE}"),
    Step(f"topics create-partitioned-topic {PARTED} --partitions 2"),
    Step(f"topics list-partitioned-topics {SPACE}"),
    Step(f"topics get-partitioned-topic-metadata {PARTED}"),
    Step(f"topics update-partitioned-topic {PARTED} --partitions 3"),
    Step(f"topics get-partitioned-topic-metadata {PARTED}"),
    Step(f"topics update-partitioned-topic {PARTED} --partitions 1"),
    Step(f"topics list {SPACE}"),
    Step(f"topics lookup {TOPIC}"),
    Step(f"topics partitioned-lookup {PARTED}"),
    Step(f"topics bundle-range {TOPIC}"),
    Step(f"topics create-subscription {TOPIC} -s first -m earliest"),
    Step(f"topics create-subscription {TOPIC} -s second -m latest"),
    Step(f"topics create-subscription {TOPIC} -s first -m earliest"),
    Step(f"topics subscriptions {TOPIC}"),
    Step(f"topics create-subscription {PARTED} -s first -m earliest"),
    Step(f"topics stats {TOPIC}", produce=10),
    Step(f"topics stats-internal {TOPIC}"),
    Step(f"topics partitioned-stats {PARTED}"),
    Step(f"topics partitioned-stats {PARTED} --per-partition"),
    Step(f"topics peek-messages {TOPIC} -s first -n 2"),
    Step(f"topics examine-messages {TOPIC} -i earliest -m 1"),
    Step(f"topics skip {TOPIC} -s first -n 4"),
    Step(f"topics stats {TOPIC}"),
    Step(f"topics reset-cursor {TOPIC} -s first -m earliest"),
    Step(f"topics stats {TOPIC}"),
    Step(f"topics clear-backlog {TOPIC} -s first"),
    Step(f"topics expire-messages {TOPIC} -s first -t 1"),
    Step(f"topics reset-cursor {TOPIC} -s first -t 10m"),
    Step(f"topics stats {TOPIC}"),
    Step(f"topics last-message-id {TOPIC}"),
    Step(f"topics unsubscribe {TOPIC} -s second"),
    Step(f"topics unsubscribe {TOPIC} -s missing"),
    Step(f"topics subscriptions {TOPIC}"),
    Step(f"topics unload {TOPIC}"),
    Step(f"topics stats {TOPIC}"),
    Step(f"topics compact {TOPIC}"),
    Step(f"topics terminate {TOPIC}"),
    Step("topics stats persistent://acme/orders/missing"),
    Step(f"schemas get {TOPIC}"),
    Step(f"namespaces unload {SPACE}"),
    Step(f"topics delete {TOPIC}"),
    Step(f"topics delete {TOPIC} --force"),
    Step(f"topics delete-partitioned-topic {PARTED} --force"),
    Step(f"topics list {SPACE}"),
    Step(f"namespaces delete {SPACE}"),
    Step(f"namespaces list {TENANT}"),
    Step(f"tenants delete {TENANT}"),
    Step("tenants list"),
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command did: whether it succeeded, and its normalised output (empty when it did not)."""

    command: str
    succeeded: bool
    output: object


def walk(server: StandaloneProcess) -> list[Outcome]:
    """All steps in order; one JVM for each stretch between two publications."""
    outcomes: list[Outcome] = []
    stretch: list[Step] = []
    for step in WALK:
        if step.produce:
            outcomes += _run(server, stretch)
            stretch = []
            _publish(server, step.produce)
        stretch.append(step)
    return outcomes + _run(server, stretch)


def _publish(server: StandaloneProcess, count: int) -> None:
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(TOPIC, producer_name="walker")
    for number in range(count):
        producer.send(f"message-{number}".encode(), properties={"n": str(number)}, partition_key="k")
    client.close()


def _run(server: StandaloneProcess, steps: list[Step]) -> list[Outcome]:
    home = distribution.home()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as commands:
        commands.write("".join("\t".join(step.arguments) + "\n" for step in steps))
        commands.flush()
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-Dlog4j2.level=OFF", "-cp", f"{home / 'lib'}/*"]
        ended = subprocess.run(
            [*java, str(DRIVER), server.admin_url, commands.name],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    lines = [line.split(" ") for line in ended.stdout.splitlines() if re.match(r"(true|false) \S+ \S+$", line)]
    assert len(lines) == len(steps), f"{len(lines)} of {len(steps)} commands ran: {ended.stderr[-2000:]}"
    return [
        Outcome(step.command, line[0] == "true", normalised(_decoded(line[1])) if line[0] == "true" else "")
        for step, line in zip(steps, lines, strict=True)
    ]


def _decoded(field: str) -> str:
    return "" if field == "=" else base64.b64decode(field).decode()


def normalised(text: str) -> object:
    """JSON becomes its value without what differs from run to run; other text loses its numbers."""
    try:
        return _without_volatile(json.loads(text), "")
    except ValueError:
        return sorted(line for line in map(_without_numbers, text.splitlines()) if line)


def _without_volatile(value: object, key: str) -> object:
    if isinstance(value, dict):
        return {_without_numbers(name): _without_volatile(inner, name) for name, inner in sorted(value.items())}
    if isinstance(value, list):
        return [_without_volatile(inner, key) for inner in value]
    if isinstance(value, bool) or value is None:
        return value
    if VOLATILE.search(key) and key not in EXACT:
        return "number" if isinstance(value, (int, float)) else "text"
    if key in POSITIONS and isinstance(value, str):
        return re.sub(r"^\d+:", "ledger:", value)
    return _without_numbers(value) if isinstance(value, str) else value


def _without_numbers(text: str) -> str:
    """Ports, ids and times go; single digits (partitions, keys) and hexadecimal numbers stay."""
    text = re.sub(r"^Message ID: \d+:", "Message ID: ledger:", text)
    return re.sub(r"(?<![0-9a-fx])\d{2,}", "N", re.sub(r"\b\d+:-?\d+:-?\d+", "position", text)).strip()


def differences(expected: list[Outcome], found: list[Outcome]) -> list[str]:
    """One sentence for each step whose outcome is not the expected one."""
    problems = []
    for number, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        name = f"{number} `{wanted.command}`"
        if wanted.succeeded != got.succeeded:
            problems.append(f"{name}: {'failed' if wanted.succeeded else 'succeeded'}, unlike Apache's")
        elif wanted.output != got.output:
            problems += [f"{name}: {part}" for part in _parts(wanted.output, got.output, "")]
    return problems


def _parts(wanted: object, got: object, path: str) -> list[str]:
    if isinstance(wanted, dict) and isinstance(got, dict):
        found = []
        for key in sorted(wanted.keys() | got.keys()):
            if key not in got or key not in wanted:
                found.append(f"{path}.{key} is {'missing' if key not in got else 'unexpected'}")
            else:
                found += _parts(wanted[key], got[key], f"{path}.{key}")
        return found
    return [] if wanted == got else [f"{path or 'output'} is {got!r}, Apache's {wanted!r}"]


def load() -> list[Outcome]:
    """What Apache's server made the tool print."""
    return [Outcome(**item) for item in json.loads(EXPECTED.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write what Apache's server makes it print")
    parser.add_argument("--server", choices=["magnetar", "apache"], default=None)
    arguments = parser.parse_args()
    server = new_server("apache" if arguments.record else arguments.server)
    server.start()
    try:
        outcomes = walk(server)
    finally:
        server.stop()
    if arguments.record:
        EXPECTED.parent.mkdir(exist_ok=True)
        items = [{"command": o.command, "succeeded": o.succeeded, "output": o.output} for o in outcomes]
        EXPECTED.write_text(json.dumps(items, indent=1) + "\n")
        return 0
    problems = differences(load(), outcomes)
    sys.stdout.write("\n".join([*problems, f"{len(problems)} differences in {len(outcomes)} steps"]) + "\n")
    return min(1, len(problems))


if __name__ == "__main__":
    sys.exit(main())

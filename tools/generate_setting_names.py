"""Lists the setting names that Apache's components know, for settings files written for them.

Run `python tools/generate_setting_names.py DISTRIBUTION [BK_SERVER_CONF]` with an unpacked Apache Pulsar distribution
and BookKeeper's own example of a bookie's settings (needs javap).
Names come from the shipped configuration files, commented-out examples too, and from the configuration classes, which
know more names than the files show.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = re.compile(r"^#?\s?([A-Za-z_][A-Za-z0-9_.]*)\s*=", re.MULTILINE)
CONSTANT = re.compile(r"static final java\.lang\.String (\w+) = \"([A-Za-z][A-Za-z0-9_.]+)\"")
FIELD = re.compile(r"^  private (?!static)[^(\n]* (\w+);", re.MULTILINE)
NOT_SETTINGS: Final = ("DEFAULT_PROMETHEUS", "CLIENT_ROLE_", "AVAILABLE_NODE", "READ_SYSTEM")

BOOKKEEPER: Final = "org.apache.bookkeeper."
BOOKKEEPER_CLASSES: Final = (
    "conf.AbstractConfiguration",
    "conf.ClientConfiguration",
    "conf.ServerConfiguration",
    "bookie.storage.ldb.DbLedgerStorage",
    "bookie.storage.ldb.KeyValueStorageRocksDB",
    "stats.prometheus.PrometheusMetricsProvider",
)


def from_file(path: Path) -> set[str]:
    """Names set, or shown as an example, in a configuration file."""
    return set(EXAMPLE.findall(path.read_text(encoding="utf-8")))


def disassembled(distribution: Path, *classes: str) -> str:
    """The members of classes with the values of their constants."""
    command = ["javap", "-p", "-constants", "-cp", f"{distribution / 'lib'}/*", *classes]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def bookie_names(distribution: Path, examples: list[Path]) -> set[str]:
    """What a bookie, AutoRecovery and BookKeeper's clients know."""
    constants = CONSTANT.findall(disassembled(distribution, *(BOOKKEEPER + name for name in BOOKKEEPER_CLASSES)))
    known = {name for constant, name in constants if not constant.startswith(NOT_SETTINGS)}
    return known.union(*map(from_file, [distribution / "conf" / "bookkeeper.conf", *examples]))


def broker_names(distribution: Path) -> set[str]:
    """What a broker knows."""
    fields = FIELD.findall(disassembled(distribution, "org.apache.pulsar.broker.ServiceConfiguration"))
    files = ("broker.conf", "standalone.conf")
    return set(fields).union(*(from_file(distribution / "conf" / name) for name in files)) - {"properties"}


def proxy_names(distribution: Path) -> set[str]:
    """What a proxy knows."""
    fields = FIELD.findall(disassembled(distribution, "org.apache.pulsar.proxy.server.ProxyConfiguration"))
    return set(fields).union(from_file(distribution / "conf" / "proxy.conf")) - {"properties"}


def main(arguments: list[str]) -> int:
    """Write all lists."""
    if not 1 <= len(arguments) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    distribution, *examples = map(Path, arguments)
    lists = {
        "bookie": bookie_names(distribution, examples),
        "broker/settings": broker_names(distribution),
        "proxy": proxy_names(distribution),
    }
    for package, names in lists.items():
        target = ROOT / Path(package).parts[0] / "src" / "magnetar" / package / "upstream_settings.txt"
        target.write_text("".join(f"{name}\n" for name in sorted(names)))
        print(f"{target.relative_to(ROOT)}: {len(names)} names")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

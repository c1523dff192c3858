"""Apache's ways to say where the metadata store is, turned into the one that `factory.open_store` takes.

BookKeeper: `metadataServiceUri=zk+hierarchical://h1:2181;h2:2181/ledgers` (meta/MetadataDrivers) or `zkServers` with
`zkLedgersRootPath`. Pulsar: `zk:h1:2181,h2:2181/chroot`, for its bookies behind `metadata-store:`.
"""

from __future__ import annotations

from typing import Final

from magnetar.core.errors import SettingError

LEDGERS_NAME: Final = "/ledgers"
CONFIG_MARK: Final = "?config="
"""Between the servers of etcd and the file that says how they are reached: our own form."""
STORE_PREFIX: Final = "metadata-store:"
LEDGER_MANAGERS: Final = ("", "null", "hierarchical")
"""What may stand behind `zk+`: ways to lay out ledgers' metadata that mean the hierarchical one. `longhierarchical`
and `flat` put ledgers elsewhere."""


def store_url(given: str) -> str:
    """The store's URL for any of the forms. `SettingError` when it is none of them."""
    url = given.strip().removeprefix(STORE_PREFIX)
    scheme, slashes, rest = url.partition("://")
    kind, _, manager = scheme.partition("+")
    if not slashes or kind != "zk":
        return url
    if manager not in LEDGER_MANAGERS:
        raise SettingError(f"metadata service {given!r}: ledgers laid out as {manager!r} cannot be read")
    hosts, slash, root = rest.partition("/")
    return zookeeper_url(hosts, slash + root)


def with_config(url: str, file: str | None) -> str:
    """The URL with the file that says how its store is reached; other stores than etcd have no use for it."""
    return f"{url}{CONFIG_MARK}{file}" if file and url.startswith("etcd:") and CONFIG_MARK not in url else url


def zookeeper_url(hosts: str, ledgers_root: str = LEDGERS_NAME) -> str:
    """The URL for servers (`h1:2181,h2:2181`, or with semicolons) and the path of the node that holds ledgers.

    That node is always called `ledgers`; what stands before it becomes the chroot. `SettingError`."""
    root = ledgers_root.rstrip("/")
    if not root.endswith(LEDGERS_NAME):
        raise SettingError(f"the ledgers' root {ledgers_root!r} does not end with {LEDGERS_NAME}, as it must")
    servers = ",".join(host.strip() for host in hosts.replace(";", ",").split(",") if host.strip())
    if not servers:
        raise SettingError(f"no ZooKeeper server in {hosts!r}")
    return f"zk:{servers}{root.removesuffix(LEDGERS_NAME)}"

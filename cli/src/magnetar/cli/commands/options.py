"""Options that several commands have."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from magnetar.cli.tools.bookie_files import BookieFolders
    from magnetar.cli.tools.cluster import ClusterAccess
    from magnetar.core.settings_file import GivenSettings
    from magnetar.metadata.store import MetadataStore
    from magnetar.process.metadata_settings import MetadataSettings

T = TypeVar("T")


class LogLevel(enum.StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _conf_option(file: str, readers: str, *variables: str) -> Any:
    told = f"A {file}, as Apache's {readers} read it."
    return typer.Option("--conf", "-c", metavar="FILE", envvar=list(variables), help=told, rich_help_panel="Settings")


LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", "-l", help="How much to log, on standard error.")]

CheckOption = Annotated[bool, typer.Option("--check", help="Look at the settings and leave without starting.")]

AssignmentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting by Apache's name, over file and environment. May be repeated.",
        rich_help_panel="Settings",
    ),
]

AcceptLossOption = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Start although something that was acknowledged is damaged or gone, and give it up.",
        rich_help_panel="Storage",
    ),
]

MetadataStoreOption = Annotated[
    str | None,
    typer.Option(
        "--metadata-store",
        "-m",
        metavar="URL",
        help="zk:host:2181,host:2181/chroot, or zk+hierarchical://host:2181;host:2181/ledgers.",
        rich_help_panel="Settings",
    ),
]

ClusterStoreOption = Annotated[
    str | None,
    typer.Option(
        "--metadata-store",
        "-m",
        metavar="URL",
        envvar="MAGNETAR_METADATA_STORE",
        help="The cluster: zk:host:2181,host:2181/chroot, zk+hierarchical://host:2181;host:2181/ledgers, or "
        "rocksdb:DATA/metadata of a standalone one that is stopped.",
        rich_help_panel="Settings",
    ),
]

BookieConfOption = Annotated[
    Path | None,
    _conf_option("bookkeeper.conf", "bookies", "BOOKIE_CONF", "PULSAR_BOOKKEEPER_CONF"),
]
BrokerConfOption = Annotated[Path | None, _conf_option("broker.conf", "brokers", "PULSAR_BROKER_CONF")]
StandaloneConfOption = Annotated[
    Path | None,
    typer.Option(
        "--conf",
        "-c",
        metavar="FILE",
        envvar=["PULSAR_STANDALONE_CONF"],
        help="A standalone.conf or broker.conf, as Apache's read it; a bookie's settings too.",
        rich_help_panel="Settings",
    ),
]
ProxyConfOption = Annotated[Path | None, _conf_option("proxy.conf", "proxies", "PULSAR_PROXY_CONF")]


def processes_option(what: str) -> Any:
    """How many processes of a component to run."""
    return typer.Option(
        "--processes",
        min=1,
        max=64,
        envvar="MAGNETAR_PROCESSES",
        help=f"{what} to run, one for each core.",
        rich_help_panel="Processes",
    )


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings_given(**options: tuple[str, object]) -> dict[str, tuple[str, str]]:
    """Setting name → (value, option) of the options that were given; each comes as (option, value or None)."""
    found: dict[str, tuple[str, str]] = {}
    for name, (option, value) in options.items():
        if value is None:
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        found[name] = (text, option)
    return found


def cluster_metadata(conf: Path | None, metadata_store: str | None) -> MetadataSettings:
    """Where the cluster's metadata is, by option or settings file. `SettingError`."""
    from magnetar.bookie.process.bookie import bookkeeper_metadata

    return bookkeeper_metadata(_tool_given(conf, metadata_store))


def _tool_given(conf: Path | None, metadata_store: str | None) -> GivenSettings:
    given = bookie_given(conf)
    if metadata_store is not None:
        given.add("metadataServiceUri", metadata_store, "--metadata-store")
    return given


async def with_store(work: Callable[[MetadataStore], Awaitable[T]], conf: Path | None, metadata_store: str | None) -> T:
    """What the work with the cluster's metadata store returns. `SettingError`, `StoreUnavailable`."""
    from magnetar.cli.tools.cluster import open_store_of

    async with open_store_of(cluster_metadata(conf, metadata_store)) as store:
        return await work(store)


async def with_cluster(
    work: Callable[[ClusterAccess], Awaitable[T]], conf: Path | None, metadata_store: str | None
) -> T:
    """What the work with the cluster's metadata store and bookies returns; these are asked for TLS as the settings file
    says. `SettingError`, `StoreUnavailable`."""
    from magnetar.bookie.process.bookie import bookie_client_tls, bookkeeper_metadata
    from magnetar.cli.tools.cluster import open_cluster
    from magnetar.net.tls import client_tls

    given = _tool_given(conf, metadata_store)
    async with open_cluster(bookkeeper_metadata(given), client_tls(bookie_client_tls(given))) as cluster:
        return await work(cluster)


def bookie_given(
    conf: Path | None, journal: list[Path] | None = None, ledgers: list[Path] | None = None
) -> GivenSettings:
    """A bookie's settings for a tool. `SettingError`."""
    from magnetar.bookie.setting_names import ignored_names, known_names
    from magnetar.process.service import SettingSources

    options = settings_given(
        journalDirectories=("--journal", journal or None), ledgerDirectories=("--ledgers", ledgers or None)
    )
    sources = SettingSources(file=conf, environment=environment(), assignments=[], options=options)
    return sources.read(known_names(), ignored_names())


def bookie_folders(conf: Path | None, journal: list[Path] | None, ledgers: list[Path] | None) -> BookieFolders:
    """A bookie's directories, by option or settings file. `SettingError`."""
    from magnetar.bookie.process.bookie import default_bookie_settings
    from magnetar.cli.tools.bookie_files import BookieFolders

    given = bookie_given(conf, journal, ledgers)
    settings = given.build(default_bookie_settings())
    return BookieFolders(
        journals=settings.journal_directories,
        ledgers=settings.ledger_directories,
        indexes=settings.index_directories or settings.ledger_directories,
    )


def prefixed_environment() -> dict[str, str]:
    """Those variables that are meant for settings and nothing else, by Pulsar's prefix."""
    return {name: value for name, value in os.environ.items() if name.startswith("PULSAR_PREFIX_")}


def environment() -> dict[str, str]:
    """The environment that settings may stand in."""
    return dict(os.environ)

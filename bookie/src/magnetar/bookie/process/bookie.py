"""A bookie as a process of its own, set up by a `bookkeeper.conf`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from magnetar.bookie.autorecovery.election import election_of_uri
from magnetar.bookie.autorecovery.settings import AutoRecoverySettings
from magnetar.bookie.cookie import CookieProblem, InvalidCookie
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.loss import NOT_FOR_COOKIES, WHAT_TO_DO
from magnetar.bookie.node import DEFAULT_CONTROL_PORT, BookieHttpSettings, NodeSettings, RunningNode, start_node
from magnetar.bookie.process.own_directories import refuse_fewer
from magnetar.bookie.server.protection import read_protection
from magnetar.bookie.setting_names import DRAIN_RATE, ignored_names, known_names, missing_features
from magnetar.bookie.settings import BookieSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError, SettingError
from magnetar.core.exit_codes import EXIT_EMPTY_VOLUME, EXIT_FAILED, EXIT_RETIRED, EXIT_WRONG_VOLUME
from magnetar.core.settings_file import GivenSettings
from magnetar.ledger.bookie_client.tls_settings import BookieTlsSettings
from magnetar.ledger.placement import PlacementSettings
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.factory import check_url
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.urls import store_url, with_config, zookeeper_url
from magnetar.net.tls import TlsSettings, client_tls
from magnetar.process import own_address
from magnetar.process.control_settings import ANY_HOST, control_settings
from magnetar.process.metadata_settings import CONFIG_PATH, MetadataSettings, session_timeout_ms
from magnetar.process.port_conflicts import NamedPort, refuse_equal_ports
from magnetar.process.protection import refuse_protection
from magnetar.process.service import TRY_AGAIN, Service
from magnetar.process.serving import STORE_SILENCE_SECONDS_MAX

DEFAULT_JOURNAL: Final = Path("data/bookkeeper/journal")
DEFAULT_LEDGERS: Final = Path("data/bookkeeper/ledgers")
"""Ledger directories where no setting names one, as in Pulsar's `bookkeeper.conf`."""
PROTECTIONS: Final = ("httpServerTlsEnable",)
"""BookKeeper's settings of protections that this bookie does not have: a start with one is refused
(`refuse_protection`)."""
NO_METADATA: Final = MetadataSettings(url="memory:")
"""While problems are gathered: no bookie starts with it."""
DEFAULT_ZOOKEEPER: Final = "localhost:2181"
PLACEMENT_POLICIES: Final = (
    "RackawareEnsemblePlacementPolicy",
    "RegionAwareEnsemblePlacementPolicy",
    "IsolatedBookieEnsemblePlacementPolicy",
    "DefaultEnsemblePlacementPolicy",
)
"""The classes that ensemblePlacementPolicy names. The groups of an isolated ledger are in its metadata, and kept."""
RATE_BYTES_MAX: Final = 1 << 40
"""The largest rate that may be set, in bytes per second: more than any disk takes."""
SECRET: Final = re.compile(r"(?i)passw|token|secret|credential")
"""Matches names of settings whose values nobody is told."""
DECIMAL_SHARE: Final = re.compile(r"0?\.[0-9]{1,18}|1(\.0*)?")
COOKIE_EXIT_CODES: Final = {
    CookieProblem.EMPTY_VOLUME: EXIT_EMPTY_VOLUME,
    CookieProblem.WRONG_VOLUME: EXIT_WRONG_VOLUME,
    CookieProblem.RETIRED: EXIT_RETIRED,
    # Trying again tells whose the id is.
    CookieProblem.ID_TAKEN: EXIT_FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieProcessSettings:
    """What a bookie's process needs to know."""

    metadata: MetadataSettings
    node: NodeSettings

    @property
    def bookie(self) -> BookieSettings:
        """The settings of the bookie's storage."""
        return self.node.bookie


def bookkeeper_metadata(given: GivenSettings) -> MetadataSettings:
    """metadataServiceUri, or zkServers with zkLedgersRootPath; zkTimeout. metadataStoreConfigPath is Pulsar's brokers'
    and ours. `SettingError`."""
    uri = given.text("metadataServiceUri")
    servers = given.text("zkServers") or DEFAULT_ZOOKEEPER
    root = given.text("zkLedgersRootPath") or "/ledgers"
    url = with_config(store_url(uri), given.text(CONFIG_PATH)) if uri else zookeeper_url(servers, root)
    check_url(url)
    return MetadataSettings(url=url, session_timeout_ms=session_timeout_ms(given, "zkTimeout"))


def bookie_process_settings(given: GivenSettings) -> BookieProcessSettings:
    """Everything from what was given. `SettingError`."""
    refuse_protection(given, PROTECTIONS)
    threshold = given.text("diskUsageThreshold")
    if threshold is not None and DECIMAL_SHARE.fullmatch(threshold) and given.text("diskUsageLwmThreshold") is None:
        # BookKeeper's low water mark is the threshold unless it is set. One that is wrong is told once.
        given.add("diskUsageLwmThreshold", threshold, "diskUsageThreshold")
    bookie = given.build(default_bookie_settings())
    given.attempt(lambda: read_protection(bookie), None)
    given.attempt(lambda: client_tls(bookie.tls.client_tls()), None)
    node = NodeSettings(
        bookie=given.attempt(lambda: _with_address(bookie, given), bookie),
        collection=given.build(GarbageCollectionSettings()),
        recovery=given.attempt(lambda: recovery_settings(given), AutoRecoverySettings()),
        recovery_enabled=given.flag("autoRecoveryDaemonEnabled", True),
        drain_bytes_per_second=given.number(DRAIN_RATE, 0, 0, RATE_BYTES_MAX),
        client=LedgerClientSettings(placement=given.attempt(lambda: placement_settings(given), PlacementSettings())),
        http=_http(given),
        control=given.attempt(lambda: control_settings(given, DEFAULT_CONTROL_PORT), None),
        shown=_shown(given),
    )
    refuse_equal_ports(given, _ports(node))
    return BookieProcessSettings(metadata=given.attempt(lambda: bookkeeper_metadata(given), NO_METADATA), node=node)


def _ports(node: NodeSettings) -> list[NamedPort]:
    ports = [NamedPort("bookiePort", node.bookie.listen_host, node.bookie.port)]
    if node.control is not None:
        ports.append(NamedPort("controlPort", node.control.host, node.control.port))
    if node.http is not None:
        name = "prometheusStatsHttpPort" if node.http.metrics_only else "httpServerPort"
        ports.append(NamedPort(name, node.http.host, node.http.port))
    return ports


def bookie_client_tls(given: GivenSettings) -> TlsSettings | None:
    """How bookies are reached by whoever is given a `bookkeeper.conf`; None: without TLS. `SettingError` for files
    that cannot be used, too."""
    settings = given.build(BookieTlsSettings()).client_tls()
    client_tls(settings)
    return settings


def bookie_hint(error: MagnetarError, *, accept_loss: bool) -> str:
    """What to do about an error that ends a bookie; empty where its text says it."""
    if isinstance(error, InvalidCookie):
        return NOT_FOR_COOKIES if accept_loss else ""
    return "" if WHAT_TO_DO in str(error) else TRY_AGAIN


def _accepting_loss(settings: BookieProcessSettings) -> BookieProcessSettings:
    """Settings for one start that gives up what is damaged."""
    bookie = replace(settings.node.bookie, accept_loss=True)
    return replace(settings, node=replace(settings.node, bookie=bookie))


def recovery_settings(given: GivenSettings) -> AutoRecoverySettings:
    """AutoRecovery's, with the election that Apache's bookies hold with this metadataServiceUri. `SettingError`."""
    recovery = given.build(AutoRecoverySettings())
    election = election_of_uri(given.text("metadataServiceUri") or "")
    return replace(recovery, auditor=replace(recovery.auditor, election=election))


def placement_settings(given: GivenSettings) -> PlacementSettings:
    """How AutoRecovery and drains choose bookies: ensemblePlacementPolicy and its racks. `SettingError`."""
    policy = (given.text("ensemblePlacementPolicy") or "RackawareEnsemblePlacementPolicy").rpartition(".")[2]
    if policy not in PLACEMENT_POLICIES:
        raise SettingError(f"ensemblePlacementPolicy is {policy}; known are {', '.join(PLACEMENT_POLICIES)}")
    return PlacementSettings(
        rack_aware=policy != "DefaultEnsemblePlacementPolicy",
        region_aware=policy == "RegionAwareEnsemblePlacementPolicy",
        racks_per_write_quorum_min=given.number("minNumRacksPerWriteQuorum", 2, 1, 1_000),
        enforce_racks=given.flag("enforceMinNumRacksPerWriteQuorum", False),
    )


def _http(given: GivenSettings) -> BookieHttpSettings | None:
    """One port: the whole API where that is enabled, else metrics alone, else none."""
    if given.flag("httpServerEnabled", False):
        port = given.number("httpServerPort", 8080, 0, 65535)
        return BookieHttpSettings(host=given.text("httpServerHost") or ANY_HOST, port=port, metrics_only=False)
    if not given.flag("prometheusStatsHttpEnable", True):
        return None
    port = given.number("prometheusStatsHttpPort", 8000, 0, 65535)
    return BookieHttpSettings(host=given.text("prometheusStatsHttpAddress") or ANY_HOST, port=port)


def _shown(given: GivenSettings) -> Mapping[str, str]:
    """What was given, without what must not be told."""
    return {
        name: value
        for name in sorted(known_names())
        if (value := given.text_unused(name)) is not None and not SECRET.search(name)
    }


def default_bookie_settings() -> BookieSettings:
    """What holds when nothing is set."""
    return BookieSettings(
        journal_directories=(DEFAULT_JOURNAL,), ledger_directories=(DEFAULT_LEDGERS,), advertised_host=""
    )


def _with_address(bookie: BookieSettings, given: GivenSettings) -> BookieSettings:
    """The address to listen on and the one to tell, as BookKeeper finds them (bookie/BookieImpl.getBookieAddress)."""
    interface = given.text("listeningInterface")
    allow_loopback = given.flag("allowLoopback", False)
    by_name = given.flag("useHostNameAsBookieID", False)
    own = own_address.interface_address(interface) if interface else ""
    listen_host = own or bookie.listen_host
    if bookie.advertised_host:
        return replace(bookie, listen_host=listen_host)
    address = own or own_address.host_address()
    if own_address.is_loopback(address) and not allow_loopback:
        raise SettingError(
            f"others cannot reach this bookie at {address}: set advertisedAddress, or allowLoopback=true for a "
            "cluster on one machine"
        )
    return replace(bookie, listen_host=listen_host, advertised_host=own_address.host_name() if by_name else address)


class BookieProcess:
    """A running bookie and the store that it stands on."""

    def __init__(self, store: MetadataStore, running: RunningNode) -> None:
        self._store = store
        self.running = running

    async def close(self) -> None:
        """Stop the bookie, then end its session."""
        self._store.limit_waiting(STORE_SILENCE_SECONDS_MAX)
        await self.running.close()
        await self._store.close()

    def describe(self) -> str:
        """Who the bookie is, and where it listens."""
        bookie = self.running.bookie
        control = f", control port {self.running.control.port}" if self.running.control is not None else ""
        return f"{bookie.bookie_id} on port {bookie.port}{control}"


async def start_bookie_process(settings: BookieProcessSettings) -> BookieProcess:
    """Start. What was opened is closed again on failure."""
    store = await settings.metadata.open()
    try:
        return BookieProcess(store, await start_node(settings.node, store, SystemClock()))
    except BaseException:
        await asyncio.shield(store.close())
        raise


def bookie_exit_code(error: MagnetarError) -> int:
    """What the process tells of an error that ended it: see `magnetar.core.exit_codes`."""
    return COOKIE_EXIT_CODES[error.problem] if isinstance(error, InvalidCookie) else EXIT_FAILED


def bookie_service(*, accept_loss: bool = False, alone: bool = True) -> Service[BookieProcessSettings, BookieProcess]:
    """A bookie as `run_service` takes it; with `accept_loss` it gives up what is damaged. One that runs `alone` is
    refused where others have run in its directories."""

    def settings(given: GivenSettings) -> BookieProcessSettings:
        found = bookie_process_settings(given)
        if alone:
            refuse_fewer(found.node, 1)
        return _accepting_loss(found) if accept_loss else found

    return Service(
        name="bookie",
        known=known_names,
        ignored=ignored_names,
        missing=missing_features,
        settings=settings,
        start=start_bookie_process,
        describe=BookieProcess.describe,
        exit_code=bookie_exit_code,
        hint=lambda error: bookie_hint(error, accept_loss=accept_loss),
    )

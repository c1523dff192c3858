"""Has decisions carried out by the brokers that own the bundles: by the admin API, which Apache's brokers have too."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from magnetar.admin_client.client import AdminAnswer
from magnetar.admin_client.errors import AdminUnreachable
from magnetar.balance.model import Decision, Split, Unload
from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.load.decisions import DecisionLog
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.core.bundle import BundleName
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError

AT_ONCE_MAX: Final = 8
"""Bundles that are moved at a time: each has its clients look it up again."""


class BrokerCalls(Protocol):
    """The part of `PeerClient` that is used here."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        base_url: str | None = None,
    ) -> AdminAnswer:
        """One request; `AdminRefused`, `AdminUnreachable`."""
        ...

    def url_of(self, broker: BrokerAddresses) -> str | None:
        """Where a broker is called; None when it has no web address."""
        ...


class Executor:
    """Carries decisions out, in order as far as order matters."""

    def __init__(
        self,
        peers: BrokerCalls,
        log: DecisionLog,
        clock: Clock,
        reports: Callable[[], Mapping[str, BrokerReport]],
        prefer: Callable[[BundleName, str], None],
    ) -> None:
        """`prefer` makes the coming placement of a bundle end at a broker."""
        self._peers = peers
        self._log = log
        self._clock = clock
        self._reports = reports
        self._prefer = prefer

    async def carry_out(
        self, decisions: Sequence[Decision], failed: Callable[[Decision], None], *, unload_parts: bool
    ) -> None:
        """All of them; decisions of one kind that follow one another go side by side. Failures go to `failed`."""
        places = asyncio.Semaphore(AT_ONCE_MAX)

        async def one(decision: Decision) -> None:
            async with places:
                await self._carry_out(decision, failed, unload_parts=unload_parts)

        for _, group in itertools.groupby(decisions, key=type):
            await asyncio.gather(*map(one, group))
        self._log.unloading_brokers += len({one.source for one in decisions if isinstance(one, Unload)})

    async def _carry_out(self, decision: Decision, failed: Callable[[Decision], None], *, unload_parts: bool) -> None:
        entry = self._log.begin(decision, self._clock.now_ms())
        began_seconds = self._clock.monotonic_seconds()
        try:
            if isinstance(decision, Split):
                await self._split(decision, unload=unload_parts)
            else:
                await self._unload(decision)
        except MagnetarError as error:
            self._log.end(entry, error, self._since_ms(began_seconds))
            failed(decision)
            return
        self._log.end(entry, None, self._since_ms(began_seconds))

    def _since_ms(self, began_seconds: float) -> int:
        return int((self._clock.monotonic_seconds() - began_seconds) * 1000)

    async def _split(self, decision: Split, *, unload: bool) -> None:
        query = {"unload": "true" if unload else "false", "splitAlgorithmName": decision.algorithm}
        await self._call(decision.broker_id, decision.bundle, "split", query)

    async def _unload(self, decision: Unload) -> None:
        query: dict[str, str] = {}
        if decision.destination is not None:
            # Whoever looks the bundle up asks the leader, which is this broker.
            self._prefer(decision.bundle, decision.destination)
            if self._is_ours(decision.source):
                # An owner of Apache's would only send this back to the leader.
                query["destinationBroker"] = decision.destination
        await self._call(decision.source, decision.bundle, "unload", query)

    def _is_ours(self, broker_id: str) -> bool:
        report = self._reports().get(broker_id)
        return report is not None and report.ours

    async def _call(self, broker_id: str, bundle: BundleName, verb: str, query: Mapping[str, str]) -> None:
        report = self._reports().get(broker_id)
        url = self._peers.url_of(report.addresses) if report is not None else None
        if url is None:
            raise AdminUnreachable(f"{broker_id} is not alive, or has no web address")
        path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range}/{verb}"
        await self._peers.call("PUT", path, query=query or None, base_url=url)

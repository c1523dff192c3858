"""Hands all bundles of this broker over to others, as long as that takes, and tells how far it is."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from magnetar.broker.bundles.namespace_bundles import named_broker
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.settings.load import LoadSettings
from magnetar.core.bundle import BundleName
from magnetar.core.errors import MagnetarError

logger: Final = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 8
"""Bundles on their way: each has its topics closed here and loaded elsewhere."""

RETRY_SECONDS: Final = 1.0
"""Before bundles that could not be unloaded, or came late, are seen to."""


class BrokerDrainStep(enum.Enum):
    """How far a drain is: found from what is owned whenever somebody asks, never kept, so there is no table of it."""

    NONE = enum.auto()
    RUNNING = enum.auto()
    DONE = enum.auto()
    """Nothing is owned: the broker can be stopped without anybody noticing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDrainProgress:
    """How far a broker's drain is, at one moment."""

    step: BrokerDrainStep
    bundles_total: int = 0
    """Bundles that the broker owned when the drain began."""
    bundles_left: int = 0
    blockers: tuple[tuple[str, str], ...] = ()
    """Bundles whose last attempt failed, with why; they are tried again."""

    def document(self, broker_id: str) -> dict[str, Any]:
        """The progress in JSON, as `/admin/v2/brokers/{broker}/drain` answers it."""
        return {
            "broker": broker_id,
            "step": self.step.name.lower(),
            "bundlesTotal": self.bundles_total,
            "bundlesLeft": self.bundles_left,
            "blockers": [{"bundle": bundle, "reason": reason} for bundle, reason in self.blockers],
        }


class DrainedBroker(Protocol):
    """What a drain needs from load management."""

    def brokers(self) -> Mapping[str, BrokerAddresses]: ...
    async def place(self, bundle: BundleName) -> BrokerAddresses | None: ...
    async def register(self) -> None: ...
    async def leave(self) -> None: ...
    def renew_report(self) -> None: ...


class Unloader(Protocol):
    """What a drain needs from bundle moves."""

    async def unload(self, bundle: BundleName, *, destination: str | None = None) -> None: ...


class Owned(Protocol):
    """What a drain needs from ownership."""

    def owned(self) -> Mapping[BundleName, object]: ...


class DrainRefused(MagnetarError):
    """A drain makes no sense now; the text says why."""


class Drains:
    """At most one drain at a time. It takes the broker off the list of those that are alive, which is what any broker
    of the cluster understands, Apache's too: no bundle comes back."""

    def __init__(self, broker: DrainedBroker, ownership: Owned, moves: Unloader, settings: LoadSettings) -> None:
        self._broker = broker
        self._ownership = ownership
        self._moves = moves
        self._seconds_between = 1.0 / settings.unloads_per_second_max
        self._changing = asyncio.Lock()
        """Held while a drain begins or is cancelled."""
        self._task: asyncio.Task[None] | None = None
        self._total = 0
        self._on_the_way = 0
        """Bundles that others may not have taken yet."""
        self._blockers: dict[BundleName, str] = {}

    def state(self) -> BrokerDrainProgress:
        """How far it is."""
        if self._task is None:
            return BrokerDrainProgress(step=BrokerDrainStep.NONE)
        left = len(self._to_leave())
        return BrokerDrainProgress(
            step=BrokerDrainStep.DONE if left == 0 and not self._on_the_way else BrokerDrainStep.RUNNING,
            bundles_total=max(self._total, left),
            bundles_left=left,
            blockers=tuple((str(bundle), reason) for bundle, reason in self._blockers.items()),
        )

    async def start(self, *, own_id: str) -> BrokerDrainProgress:
        """Begin, or go on with the one that runs. `DrainRefused` when nobody else could take the bundles."""
        async with self._changing:
            await self._start(own_id)
        return self.state()

    async def _start(self, own_id: str) -> None:
        if self._task is None or self._task.done():
            self._check_others(own_id)
            self._total = len(self._to_leave())
            self._blockers.clear()
            logger.info("draining %d bundles", self._total)
            await self._broker.leave()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="drain")

    def _check_others(self, own_id: str) -> None:
        if not any(broker_id != own_id for broker_id in self._broker.brokers()):
            raise DrainRefused("no other broker is alive that could take the bundles: start one first")

    async def hand_over(self) -> None:
        """Try each bundle once, for a broker that stops and has unregistered."""
        await self._hand_over(self._to_leave())

    async def cancel(self) -> BrokerDrainProgress:
        """Keep what is left, and be alive for others again. `StoreUnavailable`."""
        async with self._changing:
            if self._task is not None:
                await self.close()
                await self._broker.register()
                logger.info("the drain was cancelled with %d bundles left", len(self._to_leave()))
            return self.state()

    async def close(self) -> None:
        """Stop; a bundle on its way is finished or stays."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        """Until it is cancelled: who was sent here before others knew may bring a bundle after the last one left."""
        while True:
            bundles = self._to_leave()
            await self._hand_over(bundles)
            if bundles:
                self._broker.renew_report()
            left = len(self._to_leave())
            if bundles and left == 0:
                logger.info("drained: nothing is owned any more")
            if left >= len(bundles):
                await asyncio.sleep(RETRY_SECONDS)

    async def _hand_over(self, bundles: list[BundleName]) -> None:
        async with asyncio.TaskGroup() as group:
            places = asyncio.Semaphore(AT_ONCE_MAX)
            for bundle in bundles:
                await places.acquire()
                group.create_task(self._unload(bundle, places))
                await asyncio.sleep(self._seconds_between)

    def _to_leave(self) -> list[BundleName]:
        """Not those that are of this broker by their name, for health checks: they come and go with it."""
        return [bundle for bundle in self._ownership.owned() if named_broker(bundle.namespace) is None]

    async def _unload(self, bundle: BundleName, places: asyncio.Semaphore) -> None:
        self._on_the_way += 1
        try:
            if bundle in self._ownership.owned() and not await self._move(bundle):
                # Better served here than by nobody.
                self._blockers[bundle] = "no broker may take it"
                return
            self._blockers.pop(bundle, None)
        except MagnetarError as error:
            self._blockers[bundle] = str(error)
            logger.warning("%s cannot be handed over now: %s", bundle, error)
        except Exception as error:
            self._blockers[bundle] = repr(error)
            logger.exception("%s cannot be handed over now", bundle)
        finally:
            self._on_the_way -= 1
            places.release()

    async def _move(self, bundle: BundleName) -> bool:
        """Whether there is a broker for it, which then has it."""
        destination = await self._broker.place(bundle)
        if destination is None:
            return False
        await self._moves.unload(bundle, destination=destination.broker_id)
        return True

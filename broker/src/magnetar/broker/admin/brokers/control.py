"""`magnetar.control.v1.Broker`: the gRPC service of one broker. Importing this module loads gRPC."""

# The methods have the names of the service's definition.
# ruff: noqa: N802

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Final, TypeVar

from magnetar.broker.load.drain import BrokerDrainProgress, BrokerDrainStep, DrainRefused
from magnetar.broker.load.operations import BrokerOperations, BundleRow, NotOwned, UnknownBroker
from magnetar.control.errors import ControlRefused, RefusalReason
from magnetar.control.generated import broker_pb2 as messages
from magnetar.control.generated.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from magnetar.control.server import ControlServer, ControlService
from magnetar.core.bundle import BundleName
from magnetar.core.errors import Unavailable
from magnetar.core.topic_name import InvalidTopicName

SERVICE: Final = "magnetar.control.v1.Broker"
DRAIN_INTERVAL_MS: Final = (200, 50)
"""Milliseconds between two messages of a drain that is watched: when 0 is asked for, and the least."""

DECISIONS: Final = (100, 1_000)
"""(when 0 is asked for, the most); a thousand of each stay below gRPC's 4 MiB."""

BLOCKERS_MAX: Final = 1_000

T = TypeVar("T")


class BrokerControlPort:
    """The control port of a broker: serving while the broker is registered."""

    def __init__(self, server: ControlServer, operations: BrokerOperations) -> None:
        self._server = server
        self._operations = operations
        self._telling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Take the port. Errors as `ControlServer.start`."""
        service = BrokerControlService(self._operations, self._server.stopping)
        await self._server.start([ControlService(SERVICE, lambda to: add_BrokerServicer_to_server(service, to))])
        self._operations.load.watch_registration(self._registration_changed)
        await self._server.set_serving(SERVICE, serving=self._operations.load.registered)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    async def close(self) -> None:
        """Let calls under way finish within the grace."""
        await self._server.close()
        if self._telling:
            await asyncio.wait(self._telling)

    def _registration_changed(self, registered: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self) -> None:
        if not self._server.stopping.is_set():
            await self._server.set_serving(SERVICE, serving=self._operations.load.registered)


class BrokerControlService(BrokerServicer):
    """Answers from `BrokerOperations`; what those raise becomes a status in `magnetar.control.gate`."""

    def __init__(self, operations: BrokerOperations, stopping: asyncio.Event) -> None:
        self._operations = operations
        self._stopping = stopping

    async def GetLoadReport(self, request: messages.GetLoadReportRequest, context: object) -> messages.LoadReport:
        """What this broker does now."""
        del request, context
        return await load_report(self._operations)

    async def ListBundles(self, request: messages.ListBundlesRequest, context: object) -> messages.ListBundlesResponse:
        """The bundles that this broker owns."""
        del request, context
        return messages.ListBundlesResponse(bundles=[owned_bundle(row) for row in await self._operations.bundles()])

    async def SplitBundle(self, request: messages.SplitBundleRequest, context: object) -> messages.SplitBundleResponse:
        """Cut a bundle."""
        del context
        bundle = _bundle(request.bundle)
        await _answered(
            self._operations.split(bundle, request.algorithm, list(request.boundaries), unload=request.unload)
        )
        return messages.SplitBundleResponse()

    async def UnloadBundle(
        self, request: messages.UnloadBundleRequest, context: object
    ) -> messages.UnloadBundleResponse:
        """Let a bundle go."""
        del context
        await _answered(self._operations.unload(_bundle(request.bundle)))
        return messages.UnloadBundleResponse()

    async def TransferBundle(
        self, request: messages.TransferBundleRequest, context: object
    ) -> messages.TransferBundleResponse:
        """Hand a bundle over."""
        del context
        await _answered(self._operations.transfer(_bundle(request.bundle), request.destination_broker_id))
        return messages.TransferBundleResponse()

    async def Drain(self, request: messages.DrainRequest, context: object) -> AsyncIterator[messages.BrokerDrain]:
        """Hand everything over, and tell how far that is."""
        del context
        usual, least = DRAIN_INTERVAL_MS
        if request.interval_ms and request.interval_ms < least:
            raise ControlRefused(RefusalReason.INVALID_ARGUMENT, f"interval_ms is 0 (for {usual}) or at least {least}")
        state = await _answered(self._operations.drain())
        told: BrokerDrainProgress | None = None
        while True:
            if state != told:
                yield broker_drain(self._operations.broker_id, state)
                told = state
            if state.step is not BrokerDrainStep.RUNNING:
                return
            await self._pause((request.interval_ms or usual) / 1000)
            state = self._operations.drain_state()

    async def GetDrain(self, request: messages.GetBrokerDrainRequest, context: object) -> messages.BrokerDrain:
        """How far it is."""
        del request, context
        return broker_drain(self._operations.broker_id, self._operations.drain_state())

    async def CancelDrain(self, request: messages.CancelBrokerDrainRequest, context: object) -> messages.BrokerDrain:
        """Keep what is left."""
        del request, context
        return broker_drain(self._operations.broker_id, await self._operations.cancel_drain())

    async def GetDecisions(self, request: messages.GetDecisionsRequest, context: object) -> messages.Decisions:
        """What was decided here."""
        del context
        usual, most = DECISIONS
        if not 0 <= request.count_max <= most:
            raise ControlRefused(RefusalReason.INVALID_ARGUMENT, f"count_max is 0 (for {usual}) to {most}")
        count = request.count_max or usual
        document = self._operations.decisions()
        return messages.Decisions(
            decisions=[balance_decision(one) for one in document["decisions"][-count:]],
            placements=[balance_decision(one) for one in document["placements"][-count:]],
            outlook=document["outlook"],
        )

    async def SetDriver(self, request: messages.SetDriverRequest, context: object) -> messages.Driver:
        """Choose who drives load management."""
        del context
        await self._operations.set_driver(request.driver)
        return messages.Driver(driver=await self._operations.driver())

    async def GetDriver(self, request: messages.GetDriverRequest, context: object) -> messages.Driver:
        """Who drives load management."""
        del request, context
        return messages.Driver(driver=await self._operations.driver())

    async def GetLargestEnsemble(
        self, request: messages.GetLargestEnsembleRequest, context: object
    ) -> messages.LargestEnsemble:
        """How many bookies must take writes."""
        del request, context
        found = await self._operations.largest_ensemble()
        return messages.LargestEnsemble(ensemble_size=found.size, wanted_by=found.wanted_by)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        if self._stopping.is_set():
            raise Unavailable("the broker is stopping")


def _bundle(name: str) -> BundleName:
    try:
        return BundleName.parse(name)
    except InvalidTopicName as error:
        raise ControlRefused(RefusalReason.INVALID_ARGUMENT, f"{name!r} is no bundle's name: {error}") from None


async def _answered(work: Awaitable[T]) -> T:
    try:
        return await work
    except (NotOwned, UnknownBroker) as error:
        raise ControlRefused(RefusalReason.NOT_FOUND, str(error)) from None
    except DrainRefused as error:
        raise ControlRefused(RefusalReason.FAILED_PRECONDITION, str(error)) from None


async def load_report(operations: BrokerOperations) -> messages.LoadReport:
    """What this broker does now."""
    report = await operations.report()
    leader = operations.load.leader()
    return messages.LoadReport(
        broker_id=operations.broker_id,
        registered=operations.load.registered,
        leading=operations.load.leading,
        leader_broker_id=leader.broker_id if leader is not None else "",
        usages=messages.ResourceUsages(
            cpu=report.host.cpu.percent,
            memory=report.host.memory.percent,
            bandwidth_in=report.host.bandwidth_in.percent,
            bandwidth_out=report.host.bandwidth_out.percent,
        ),
        msg_rate_in=report.total("msg_rate_in"),
        msg_rate_out=report.total("msg_rate_out"),
        msg_throughput_in=report.total("throughput_in"),
        msg_throughput_out=report.total("throughput_out"),
        topics=int(report.total("topics")),
        producers=int(report.total("producers")),
        consumers=int(report.total("consumers")),
        bundles=len(report.bundles),
        started_ms=report.started_ms,
        version=report.version,
        local_broker_data_json=json.dumps(report.document()),
    )


def owned_bundle(row: BundleRow) -> messages.OwnedBundle:
    """An owned bundle as the control service tells it."""
    stats = row.stats
    return messages.OwnedBundle(
        bundle=row.name,
        state=row.state,
        topics=stats.topics,
        producers=stats.producers,
        consumers=stats.consumers,
        msg_rate_in=stats.msg_rate_in,
        msg_rate_out=stats.msg_rate_out,
        msg_throughput_in=stats.throughput_in,
        msg_throughput_out=stats.throughput_out,
    )


def broker_drain(broker_id: str, state: BrokerDrainProgress) -> messages.BrokerDrain:
    """A drain; of its blockers the first ones."""
    return messages.BrokerDrain(
        broker_id=broker_id,
        step=f"BROKER_DRAIN_STEP_{state.step.name}",
        bundles_total=state.bundles_total,
        bundles_left=state.bundles_left,
        blockers=[
            messages.BrokerDrainBlocker(bundle=bundle, reason=reason)
            for bundle, reason in state.blockers[:BLOCKERS_MAX]
        ],
    )


def balance_decision(document: dict[str, object]) -> messages.BalanceDecision:
    """One decision, from its JSON."""
    return messages.BalanceDecision(
        kind=str(document["kind"]),
        bundle=str(document["bundle"]),
        broker_id=str(document["broker"] or ""),
        destination_broker_id=str(document["destination"] or ""),
        reason=str(document["reason"]),
        decided_ms=int(str(document["decidedMillis"])),
        outcome=str(document["outcome"]),
        error=str(document["error"] or ""),
        took_ms=int(str(document["tookMillis"])),
    )

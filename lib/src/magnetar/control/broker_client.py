"""Clients of a broker's control service, for the command line and the operator. Importing this module loads gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from magnetar.control.client import ControlChannel, ControlClient
from magnetar.control.generated import broker_pb2 as messages
from magnetar.control.generated.broker_pb2_grpc import BrokerStub


class BrokerControl(ControlClient):
    """One broker's control service."""

    def __init__(self, channel: ControlChannel) -> None:
        super().__init__(channel)
        self._stub = BrokerStub(channel.channel)

    async def load_report(self) -> messages.LoadReport:
        """What the broker does now."""
        return await self.channel.ask(self._stub.GetLoadReport, messages.GetLoadReportRequest())

    async def bundles(self) -> Sequence[messages.OwnedBundle]:
        """What it owns, by name."""
        return (await self.channel.ask(self._stub.ListBundles, messages.ListBundlesRequest())).bundles

    async def split_bundle(
        self, bundle: str, *, algorithm: str = "", boundaries: Sequence[int] = (), unload: bool = False
    ) -> None:
        """Cut a bundle of it."""
        request = messages.SplitBundleRequest(bundle=bundle, algorithm=algorithm, boundaries=boundaries, unload=unload)
        await self.channel.ask(self._stub.SplitBundle, request)

    async def unload_bundle(self, bundle: str) -> None:
        """Let a bundle of it go."""
        await self.channel.ask(self._stub.UnloadBundle, messages.UnloadBundleRequest(bundle=bundle))

    async def transfer_bundle(self, bundle: str, destination_broker_id: str) -> None:
        """Hand a bundle of it to another broker."""
        request = messages.TransferBundleRequest(bundle=bundle, destination_broker_id=destination_broker_id)
        await self.channel.ask(self._stub.TransferBundle, request)

    def drain(self, interval_ms: int = 0) -> AsyncIterator[messages.BrokerDrain]:
        """Hand everything over: the state now and after each change, until nothing is left."""
        return self.channel.each(self._stub.Drain, messages.DrainRequest(interval_ms=interval_ms))

    async def drain_state(self) -> messages.BrokerDrain:
        """How far the drain of the broker is."""
        return await self.channel.ask(self._stub.GetDrain, messages.GetBrokerDrainRequest())

    async def cancel_drain(self) -> messages.BrokerDrain:
        """Keep what is left and take bundles again."""
        return await self.channel.ask(self._stub.CancelDrain, messages.CancelBrokerDrainRequest())

    async def decisions(self, count_max: int = 0) -> messages.Decisions:
        """What it decided as the leader."""
        return await self.channel.ask(self._stub.GetDecisions, messages.GetDecisionsRequest(count_max=count_max))

    async def set_driver(self, driver: str) -> str:
        """Choose who drives load management in its cluster."""
        return (await self.channel.ask(self._stub.SetDriver, messages.SetDriverRequest(driver=driver))).driver

    async def driver(self) -> str:
        """Who drives it."""
        return (await self.channel.ask(self._stub.GetDriver, messages.GetDriverRequest())).driver

    async def largest_ensemble(self) -> messages.LargestEnsemble:
        """How many bookies ledgers are spread over where it is most, as far as it knows, and who wants it."""
        return await self.channel.ask(self._stub.GetLargestEnsemble, messages.GetLargestEnsembleRequest())

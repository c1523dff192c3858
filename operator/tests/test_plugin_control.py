"""What the plugin asks of brokers and bookies: their control ports and the admin API, by way of their pods."""

from __future__ import annotations

import contextlib
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest
import typer
from aiohttp import web
from magnetar.admin_client.errors import AdminRefused
from magnetar.control.errors import ControlRefused, ControlUnavailable
from magnetar.control.generated import bookie_pb2, bookie_pb2_grpc, broker_pb2, broker_pb2_grpc
from magnetar.core.errors import Unavailable
from magnetar.operator.children.context import BOOKIE_CONTROL_PORT, BROKER_CONTROL_PORT, WEB_PORT
from magnetar.operator.children.naming import DRAIN_ANNOTATION
from magnetar.operator.kubernetes.errors import NotPermitted
from magnetar.operator.plugin.admin_rest import AdminRest
from magnetar.operator.plugin.collect import see_cluster
from magnetar.operator.plugin.commands import drain, top, unload
from magnetar.operator.plugin.control_ports import ControlPorts, ask_all
from magnetar.operator.plugin.options import Output
from operator_fakes.plugin_fakes import (
    NAMESPACE,
    FakeKubernetes,
    cluster_manifest,
    pod_manifest,
    pool_manifest,
)

TOKEN = "the control token"
BUNDLE = "public/default/0x00000000_0x80000000"


class Broker(broker_pb2_grpc.BrokerServicer):
    def __init__(self) -> None:
        self.unloaded: list[str] = []
        self.cancelled = False
        self.refuses = False
        self.breaks = 0
        """So many times the connection breaks in the middle of a drain."""
        self.drains = 0

    async def _check(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        given = dict(context.invocation_metadata() or ())
        if given.get("authorization") != f"Bearer {TOKEN}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong")

    async def GetLoadReport(self, request: Any, context: Any) -> broker_pb2.LoadReport:  # noqa: N802  (gRPC's)
        await self._check(context)
        usages = broker_pb2.ResourceUsages(cpu=12.0, memory=30.0, bandwidth_in=44.0)
        return broker_pb2.LoadReport(broker_id="10.0.0.7:8080", registered=True, leading=True, usages=usages, bundles=2)

    async def ListBundles(self, request: Any, context: Any) -> broker_pb2.ListBundlesResponse:  # noqa: N802  (gRPC's)
        await self._check(context)
        found = broker_pb2.OwnedBundle(bundle=BUNDLE, state="ACTIVE", topics=3, msg_throughput_in=2048.0)
        return broker_pb2.ListBundlesResponse(bundles=[] if BUNDLE in self.unloaded else [found])

    async def UnloadBundle(self, request: Any, context: Any) -> broker_pb2.UnloadBundleResponse:  # noqa: N802  (gRPC's)
        self.unloaded.append(request.bundle)
        return broker_pb2.UnloadBundleResponse()

    async def Drain(self, request: Any, context: Any) -> AsyncIterator[broker_pb2.BrokerDrain]:  # noqa: N802  (gRPC's)
        if self.refuses:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "there is no other broker")
        self.drains += 1
        for left in (2, 1):
            step = broker_pb2.BROKER_DRAIN_STEP_RUNNING
            yield broker_pb2.BrokerDrain(step=step, bundles_total=2, bundles_left=left)
            if self.drains <= self.breaks:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the way is broken")
        yield broker_pb2.BrokerDrain(step=broker_pb2.BROKER_DRAIN_STEP_DONE, bundles_total=2)

    async def CancelDrain(self, request: Any, context: Any) -> broker_pb2.BrokerDrain:  # noqa: N802  (gRPC's)
        self.cancelled = True
        return broker_pb2.BrokerDrain(step=broker_pb2.BROKER_DRAIN_STEP_NONE)


class Bookie(bookie_pb2_grpc.BookieServicer):
    async def GetStorageState(self, request: Any, context: Any) -> bookie_pb2.StorageState:  # noqa: N802  (gRPC's)
        found = bookie_pb2.StorageState(running=True, ledgers=7, write_cache_bytes=5, write_cache_bytes_max=10)
        found.directories.add(directory="/ledgers", kind="ledgers", total_bytes=100, free_bytes=40)
        found.directories.add(directory="/journal", kind="journal", total_bytes=100, free_bytes=1)
        return found


@contextlib.asynccontextmanager
async def control(add: Callable[[grpc.aio.Server], None]) -> AsyncIterator[int]:
    server = grpc.aio.server()
    add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def brokers() -> AsyncIterator[tuple[FakeKubernetes, Broker]]:
    """A cluster whose broker b answers, and a does not."""
    broker = Broker()
    members = [{"name": f"demo-broker-{one}", "state": "Ready", "bundles": 1, "loadPercent": 5} for one in "ab"]
    kubernetes = FakeKubernetes(
        cluster_manifest(status={"brokerMembers": members}),
        pool_manifest(),
        pod_manifest("demo-broker-a", "broker", address="10.0.0.6"),
        pod_manifest("demo-broker-b", "broker", address="10.0.0.7"),
        pod_manifest("demo-bookie-0", "bookie", pool="demo"),
        {
            "kind": "Secret",
            "metadata": {"name": "demo-control", "namespace": NAMESPACE},
            "data": {"token": b64encode(TOKEN.encode()).decode()},
        },
    )
    async with (
        control(lambda server: broker_pb2_grpc.add_BrokerServicer_to_server(broker, server)) as broker_port,
        control(lambda server: bookie_pb2_grpc.add_BookieServicer_to_server(Bookie(), server)) as bookie_port,
    ):
        kubernetes.ports = {
            ("demo-broker-b", BROKER_CONTROL_PORT): broker_port,
            ("demo-bookie-0", BOOKIE_CONTROL_PORT): bookie_port,
        }
        yield kubernetes, broker


async def test_what_pods_answer_and_why_others_do_not() -> None:
    async with brokers() as (kubernetes, _):
        ports = await ControlPorts.of(kubernetes, NAMESPACE, "demo")

        async def ask(pod: str) -> str:
            async with ports.broker(pod) as found:
                return (await found.load_report()).broker_id

        answers, failures = await ask_all(["demo-broker-a", "demo-broker-b"], ask)
        assert answers == {"demo-broker-b": "10.0.0.7:8080"}
        assert failures == {"demo-broker-a": f"demo-broker-a: nothing listens at port {BROKER_CONTROL_PORT}"}
        wrong = ControlPorts(kubernetes, NAMESPACE, "another token")
        with pytest.raises(ControlRefused, match="demo-broker-b: the token is wrong"):
            async with wrong.broker("demo-broker-b") as found:
                await found.load_report()


async def test_there_is_no_token_yet() -> None:
    with pytest.raises(Unavailable, match="demo-control"):
        await ControlPorts.of(FakeKubernetes(), NAMESPACE, "demo")


async def test_tables_of_what_is_live_and_of_what_the_operator_saw(capsys: pytest.CaptureFixture[str]) -> None:
    async with brokers() as (kubernetes, _):
        table = top._Top(top._broker_rows, top.BROKERS, "load", None)
        await table._show(kubernetes, None, Output.JSON, False)
        shown = capsys.readouterr()
        first, second = json.loads(shown.out)
        assert (first["pod"], first["loadPercent"], first["leading"], first["bundles"]) == (
            "demo-broker-b",
            44.0,
            True,
            2,
        )
        assert (second["pod"], second["loadPercent"], second["cpuPercent"]) == ("demo-broker-a", 5, None)
        assert "no live numbers: demo-broker-a" in shown.err
        await top._Top(top._bundle_rows, top.BUNDLES, "B/s in", 1)._show(kubernetes, "demo", Output.TEXT, False)
        assert capsys.readouterr().out.splitlines()[1].split() == [
            *(BUNDLE, "demo-broker-b", "ACTIVE", "3", "0", "0", "0", "0", "2.0", "KiB", "0", "B"),
        ]
        await top._Top(top._bookie_rows, top.BOOKIES, "disk", None)._show(kubernetes, None, Output.JSON, False)
        (bookie,) = json.loads(capsys.readouterr().out)
        assert (bookie["diskPercent"], bookie["totalBytes"], bookie["ledgers"], bookie["writeCachePercent"]) == (
            *(pytest.approx(60.0), 100, 7, 50.0),
        )
        kubernetes.forbidden.add("Secret")
        await table._show(kubernetes, None, Output.JSON, False)
        shown = capsys.readouterr()
        assert [row["loadPercent"] for row in json.loads(shown.out)] == [5, 5]
        assert "no live numbers: Secret is forbidden" in shown.err


def annotated(kubernetes: FakeKubernetes, pod: str) -> dict[str, str]:
    found: dict[str, str] = kubernetes.objects["Pod", NAMESPACE, pod]["metadata"]["annotations"]
    return found


async def test_a_broker_is_drained_and_takes_bundles_again(capsys: pytest.CaptureFixture[str]) -> None:
    async with brokers() as (kubernetes, broker):
        await drain._drain_broker(kubernetes, "demo-broker-b", cancel=False, follow=True, yes=True)
        assert "demo-broker-b: it serves nothing any more" in capsys.readouterr().err
        assert annotated(kubernetes, "demo-broker-b") == {DRAIN_ANNOTATION: "true"}
        await drain._drain_broker(kubernetes, "demo-broker-b", cancel=True, follow=True, yes=True)
        assert annotated(kubernetes, "demo-broker-b") == {}
        assert broker.cancelled


async def test_a_drain_that_cannot_be_leaves_no_wish_behind() -> None:
    async with brokers() as (kubernetes, broker):
        broker.refuses = True
        with pytest.raises(ControlRefused, match="there is no other broker"):
            await drain._drain_broker(kubernetes, "demo-broker-b", cancel=False, follow=True, yes=True)
        with pytest.raises(ControlUnavailable, match="nothing listens"):
            await drain._drain_broker(kubernetes, "demo-broker-a", cancel=False, follow=False, yes=True)
        assert annotated(kubernetes, "demo-broker-a") == annotated(kubernetes, "demo-broker-b") == {}


async def test_a_drain_goes_on_when_the_way_to_the_broker_breaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "POLL_SECONDS", 0.01)
    async with brokers() as (kubernetes, broker):
        broker.breaks = 2
        await drain._drain_broker(kubernetes, "demo-broker-b", cancel=False, follow=True, yes=True)
        assert broker.drains == 3
        assert "trying again" in capsys.readouterr().err
        assert annotated(kubernetes, "demo-broker-b") == {DRAIN_ANNOTATION: "true"}
        # To watch it again nobody is asked, and its wish stays though it is not reached now.
        del kubernetes.ports["demo-broker-b", BROKER_CONTROL_PORT]
        with pytest.raises(ControlUnavailable, match="nothing listens"):
            await drain._drain_broker(kubernetes, "demo-broker-b", cancel=False, follow=True, yes=False)
        assert annotated(kubernetes, "demo-broker-b") == {DRAIN_ANNOTATION: "true"}


@pytest.mark.parametrize(("what", "words"), [("pod", "its pod is gone"), ("annotation", "the drain was cancelled")])
async def test_a_drain_that_ended_otherwise_is_not_begun_again(
    what: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "POLL_SECONDS", 0.01)
    async with brokers() as (kubernetes, broker):
        broker.breaks = 9
        key = "Pod", NAMESPACE, "demo-broker-b"

        def said(text: str) -> None:
            del text
            if what == "pod":
                kubernetes.objects.pop(key, None)
            else:
                kubernetes.objects[key]["metadata"]["annotations"] = {}

        monkeypatch.setattr(drain, "warn", said)
        with pytest.raises(typer.Exit):
            await drain._drain_broker(kubernetes, "demo-broker-b", cancel=False, follow=True, yes=True)
        assert broker.drains == 1
        assert words in capsys.readouterr().err


async def test_a_bundle_is_unloaded_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    async with brokers() as (kubernetes, broker):
        await unload._unload(kubernetes, None, unload.parse(BUNDLE), "")
        assert broker.unloaded == [BUNDLE]
        assert "demo-broker-b has let" in capsys.readouterr().err
        with pytest.raises(Unavailable, match="no broker that answers has"):
            await unload._unload(kubernetes, None, unload.parse(BUNDLE), "")
        del kubernetes.objects["Pod", NAMESPACE, "demo-broker-a"]
        await unload._unload(kubernetes, None, unload.parse(BUNDLE), "")
        assert "nobody serves" in capsys.readouterr().err


# --- the admin API


@contextlib.asynccontextmanager
async def admin(handler: Callable[[web.Request], Any]) -> AsyncIterator[int]:
    async def handle(request: web.Request) -> web.Response:
        answer = handler(request)
        assert isinstance(answer, web.Response)
        return answer

    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_a_topic_is_unloaded_by_its_owner_whom_another_broker_names() -> None:
    asked: list[tuple[str, str, str]] = []

    def note(who: str, request: web.Request) -> None:
        asked.append((who, f"{request.method} {request.path_qs}", request.headers.get("Authorization", "")))

    def first(request: web.Request) -> web.Response:
        note("a", request)
        return web.Response(status=307, headers={"Location": f"http://10.0.0.7:8080{request.path}?authoritative=true"})

    def second(request: web.Request) -> web.Response:
        note("b", request)
        return web.Response(status=204)

    kubernetes = FakeKubernetes(
        cluster_manifest(spec={"authentication": {"token": {"secretName": "tokens"}}}),
        pod_manifest("demo-broker-a", "broker", address="10.0.0.6"),
        pod_manifest("demo-broker-b", "broker", address="10.0.0.7"),
        {
            "kind": "Secret",
            "metadata": {"name": "tokens", "namespace": NAMESPACE},
            "data": {"broker-token": b64encode(b"abc\n").decode()},
        },
    )
    topic = unload.parse("orders")
    async with admin(first) as one, admin(second) as two:
        kubernetes.ports = {("demo-broker-a", WEB_PORT): one, ("demo-broker-b", WEB_PORT): two}
        await unload._unload(kubernetes, None, topic, "")
        path = "/admin/v2/persistent/public/default/orders/unload"
        assert asked == [("a", f"PUT {path}", "Bearer abc"), ("b", f"PUT {path}?authoritative=true", "Bearer abc")]
        kubernetes.forbidden.add("Secret")
        with pytest.raises(NotPermitted, match="--token"):
            await unload._unload(kubernetes, None, topic, "")
        asked.clear()
        await unload._unload(kubernetes, None, topic, "mine")
        assert asked[1][2] == "Bearer mine"
        kubernetes.forbidden.clear()
        kubernetes.objects["Secret", NAMESPACE, "tokens"]["data"] = {"secret.key": "eA=="}
        with pytest.raises(Unavailable, match=r"tokens has no broker-token.*--token"):
            await unload._unload(kubernetes, None, topic, "")


async def test_what_a_broker_refuses_is_told() -> None:
    kubernetes = FakeKubernetes(cluster_manifest(), pod_manifest("demo-broker-a", "broker"))
    view = await see_cluster(kubernetes, None)
    async with admin(lambda _: web.json_response({"reason": "Topic not found"}, status=404)) as port:
        kubernetes.ports = {("demo-broker-a", WEB_PORT): port}
        with pytest.raises(AdminRefused, match="demo-broker-a answers 404: Topic not found"):
            await AdminRest(kubernetes, view).call("PUT", "/x")
    kubernetes.ports = {}
    with pytest.raises(Unavailable, match="does not answer"):
        await AdminRest(kubernetes, view).call("PUT", "/x")

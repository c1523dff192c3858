"""`kubectl pulsar connect`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer
from magnetar.operator.plugin.options import ClusterArgument, Output, OutputOption, kubernetes_command
from magnetar.operator.plugin.running import note, run, warn
from magnetar.operator.plugin.target import Target

if TYPE_CHECKING:
    from magnetar.operator.plugin.kubernetes import Kubernetes
    from magnetar.operator.plugin.port_forward import Forwarding
    from magnetar.operator.plugin.ready_pods import ReadyPods
    from magnetar.operator.plugin.views import ClusterSummary

SAME_WORDS_SECONDS: Final = 30.0
"""What hinders many connections at once is said once in that time."""

_ENTRANCES: Final = {"proxy": "proxies", "broker": "brokers", "read-only-broker": "read-only brokers"}
"""By the component that clients connect to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What is asked for: on this machine, 0 is any that is free."""

    address: str
    port: int
    web_port: int


@kubernetes_command
def connect(
    where: Target,
    cluster: ClusterArgument = None,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Of this machine, for clients; 0 is any.")
    ] = 6650,
    web_port: Annotated[
        int, typer.Option("--web-port", min=0, max=65535, help="Of this machine, for admin tools; 0 is any.")
    ] = 8080,
    address: Annotated[str, typer.Option("--address", help="To listen on.")] = "127.0.0.1",
    output: OutputOption = Output.TEXT,
) -> None:
    """Lead ports of this machine to the cluster, and print its URLs, until Ctrl-C.

    Each connection has its own way through the API server to a pod that is ready; when a pod goes, its clients connect
    again and reach another one.
    With -o json, one line with the URLs is printed once everything listens.

    [dim]Examples:[/]
      kubectl pulsar connect
      kubectl pulsar connect demo --port 0 --web-port 0
    """
    ports = Ports(address=address, port=port, web_port=web_port)
    run(where, lambda kubernetes: _connect(kubernetes, cluster, ports, output))


async def _connect(kubernetes: Kubernetes, cluster: str | None, ports: Ports, output: Output) -> None:
    from magnetar.core.errors import SettingError
    from magnetar.operator.plugin.collect import see_cluster
    from magnetar.operator.plugin.port_forward import Forwarding, forwarded
    from magnetar.operator.plugin.ready_pods import ReadyPods

    view = await see_cluster(kubernetes, cluster)
    pods = ReadyPods(kubernetes, view.namespace, view.name, view.entrance)
    tls = view.spec.tls is not None and not view.spec.tls.plain_ports
    wanted = ((6651, ports.port), (8443, ports.web_port)) if tls else ((6650, ports.port), (8080, ports.web_port))
    told = _Told()
    async with contextlib.AsyncExitStack() as stack:
        found: list[Forwarding] = []
        for pod_port, local in wanted:
            forwarding = Forwarding(
                kubernetes=kubernetes,
                namespace=view.namespace,
                pods=pods.names,
                pod_port=pod_port,
                said=told.say,
            )
            try:
                found.append(await stack.enter_async_context(forwarded(forwarding, address=ports.address, port=local)))
            except OSError as error:
                option = "--web-port" if found else "--port"
                # Names that nobody knows have numbers of their own.
                why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
                raise SettingError(
                    f"port {local} of {ports.address} cannot be had: {why}; give {option} or --address"
                ) from None
        await _warn(view, pods, tls=tls)
        _show(view, found, ports.address, output, tls=tls)
        await asyncio.Event().wait()


class _Told:
    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def say(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said.get(text, float("-inf")) >= SAME_WORDS_SECONDS:
            self._said[text] = now
            warn(text)


async def _warn(view: ClusterSummary, pods: ReadyPods, *, tls: bool) -> None:
    if view.spec.hibernated:
        warn(f"{view.name} is hibernated; `kubectl pulsar wake {view.name}` starts it")
    elif not await pods.names():
        warn(f"no {view.entrance} is ready yet: connections wait for one; `kubectl pulsar status {view.name}` says why")
    if view.entrance != "proxy":
        warn(
            "There are no proxies: a client is sent on to the broker that serves its topic by that pod's own address, "
            "which is not reached from here. "
            + ("Set proxy.replicas, or use" if view.entrance == "broker" else "Use")
            + " the admin port only."
        )
    if tls:
        warn("The certificate is the Services': clients that check host names refuse it at this address.")


def url_host(address: str) -> str:
    """How URLs name what is listened on."""
    if address in ("0.0.0.0", "::"):  # noqa: S104  (compared, not listened on)
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address


def _show(view: ClusterSummary, found: list[Forwarding], address: str, output: Output, *, tls: bool) -> None:
    import json

    from magnetar.operator.plugin.running import console
    from rich.text import Text

    host = url_host(address)
    service_url = f"{'pulsar+ssl' if tls else 'pulsar'}://{host}:{found[0].port}"
    web_url = f"{'https' if tls else 'http'}://{host}:{found[1].port}"
    if output is Output.JSON:
        typer.echo(json.dumps({"serviceUrl": service_url, "webServiceUrl": web_url}))
        return
    token = ", authentication=pulsar.AuthenticationToken(TOKEN)" if view.spec.authentication is not None else ""
    lines = [
        Text.assemble(
            ("● ", "green"),
            (view.name, "bold"),
            f" of namespace {view.namespace}, by its {_ENTRANCES[view.entrance]}",
        ),
        Text.assemble(("  service URL  ", "dim"), (service_url, "bold")),
        Text.assemble(("  admin URL    ", "dim"), (web_url, "bold")),
        Text(),
        Text("  Try it (pip install pulsar-client):", style="dim"),
        Text(f'    import pulsar; client = pulsar.Client("{service_url}"{token})'),
        Text('    client.create_producer("greetings").send(b"hello"); client.close()'),
        Text(f"    curl {web_url}/admin/v2/clusters"),
        Text(),
    ]
    out = console()
    for line in lines:
        out.print(line, soft_wrap=True)
    out.file.flush()
    note("  Ctrl-C ends it.")

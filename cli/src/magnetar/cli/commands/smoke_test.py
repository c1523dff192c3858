"""`magnetar smoke-test`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from magnetar.cli.commands.admin_options import CONNECTION, AuthParamsOption, AuthPluginOption
from magnetar.cli.commands.lazy import command_group
from magnetar.cli.commands.options import JsonOption

application = command_group()

UrlArgument = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        envvar="MAGNETAR_SERVICE_URL",
        help="Of brokers or a proxy: pulsar://HOST:PORT, or pulsar+ssl://HOST:PORT.",
    ),
]
TopicOption = Annotated[str, typer.Option("--topic", "-t", help="Where to; it comes to be if it is not there.")]
MessagesOption = Annotated[int, typer.Option("--messages", "-n", min=1, max=100_000, help="How many.")]
SizeOption = Annotated[int, typer.Option("--size", min=1, max=1_000_000, help="Bytes of each.")]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", min=1, help="Seconds that each step may take; a cluster that starts is waited for."),
]
TrustOption = Annotated[
    Path | None,
    typer.Option(
        "--trust-certificates",
        metavar="FILE",
        help="Authorities of the cluster's certificate; else the system's.",
        rich_help_panel=CONNECTION,
    ),
]
VerifyOption = Annotated[
    bool,
    typer.Option(
        "--verify-host-name/--no-verify-host-name",
        help="Whether the certificate must be for the host of the URL.",
        rich_help_panel=CONNECTION,
    ),
]


def smoke_test(
    url: UrlArgument = "pulsar://localhost:6650",
    topic: TopicOption = "persistent://public/default/smoke-test",
    messages: MessagesOption = 10,
    size: SizeOption = 100,
    timeout: TimeoutOption = 30.0,
    auth_plugin: AuthPluginOption = None,
    auth_params: AuthParamsOption = None,
    trust_certificates: TrustOption = None,
    verify_host_name: VerifyOption = True,
    as_json: JsonOption = False,
) -> None:
    """Publish messages to a cluster as any client does, read them back, and compare.

    Its subscription is taken away again, and the cluster deletes the topic once nobody has used it for a minute.
    Exit code: 0 all came back in order, 1 they did not, 2 wrong options.

    [dim]Examples:[/]
      magnetar smoke-test pulsar://localhost:6650
      magnetar smoke-test pulsar+ssl://pulsar:6651 --trust-certificates ca.crt \\
        --auth-plugin token --auth-params file:///client.token
    """
    from magnetar.cli.commands.output import to_json
    from magnetar.cli.commands.running import complete, guarded
    from magnetar.cli.tools.smoke_test import ServiceAccess, SmokeTest, SmokeTestResult, open_client
    from magnetar.cli.tools.smoke_test import smoke_test as run
    from magnetar.client.addresses import parse_service_url
    from magnetar.core.clock import SystemClock
    from magnetar.core.errors import SettingError
    from magnetar.core.topic_name import InvalidTopicName, TopicName

    with guarded():
        parse_service_url(url)
        try:
            name = TopicName.parse(topic)
        except InvalidTopicName as error:
            raise SettingError(f"--topic {topic}: {error}") from None
    access = ServiceAccess(
        url=url,
        plugin=auth_plugin or "",
        parameters=auth_params or "",
        trust_certificates_file=trust_certificates,
        verify_host_name=verify_host_name,
    )
    wish = SmokeTest(topic=name, messages=messages, size_bytes=size, timeout_seconds=timeout)
    clock = SystemClock()

    async def work() -> SmokeTestResult:
        async with open_client(access, clock, timeout) as client:
            return await run(client, wish, clock)

    result = complete(work())
    if as_json:
        typer.echo(to_json(result))
        return
    typer.echo(
        f"{result.messages} messages were published to {result.topic} and came back in order: "
        f"opened in {result.open_ms} ms, published in {result.publish_ms} ms, read in {result.read_ms} ms"
    )


application.command()(smoke_test)

"""Options of commands that ask brokers by the admin API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

if TYPE_CHECKING:
    from magnetar.cli.tools.admin_api import AdminAccess, AdminCaller

T = TypeVar("T")

CONNECTION: Final = "Connection"
COMPLETION_SECONDS_MAX: Final = 2.0
"""Whoever presses Tab does not wait longer."""

AdminUrlOption = Annotated[
    str | None,
    typer.Option(
        "--admin-url",
        metavar="URL",
        envvar=["MAGNETAR_ADMIN_URL", "PULSAR_ADMIN_URL"],
        help="Any broker's HTTP port, or a proxy's; else webServiceUrl of client.conf, else http://localhost:8080.",
        rich_help_panel=CONNECTION,
    ),
]
ClientConfOption = Annotated[
    Path | None,
    typer.Option(
        "--client-conf",
        metavar="FILE",
        envvar="PULSAR_CLIENT_CONF",
        help="A client.conf, as pulsar-admin reads it: address, credentials, TLS.",
        rich_help_panel=CONNECTION,
    ),
]
AuthPluginOption = Annotated[
    str | None, typer.Option("--auth-plugin", help="As pulsar-admin's, or: token.", rich_help_panel=CONNECTION)
]
AuthParamsOption = Annotated[
    str | None,
    typer.Option(
        "--auth-params",
        envvar="MAGNETAR_AUTH_PARAMS",
        show_default=False,
        help="Such as file:///admin.token.",
        rich_help_panel=CONNECTION,
    ),
]


def admin_access(
    url: str | None, client_conf: Path | None, auth_plugin: str | None, auth_params: str | None
) -> AdminAccess:
    """Where the admin API is and what is shown there: options over the file over the defaults. `SettingError`."""
    from magnetar.cli.tools.admin_api import AdminAccess, access_of_file, overlaid

    found = AdminAccess() if client_conf is None else access_of_file(client_conf)
    return overlaid(found, url, auth_plugin, auth_params)


async def with_brokers(
    work: Callable[[AdminCaller], Awaitable[T]],
    url: str | None,
    client_conf: Path | None,
    auth_plugin: str | None,
    auth_params: str | None,
) -> T:
    """What the work with the admin API returns. `SettingError`, `AdminUnreachable`, `AdminRefused`."""
    from magnetar.cli.tools.admin_api import open_admin_api

    async with open_admin_api(admin_access(url, client_conf, auth_plugin, auth_params)) as api:
        return await work(api)


def _complete(
    context: typer.Context, find: Callable[[AdminCaller], Awaitable[list[str]]], incomplete: str
) -> list[str]:
    """What the cluster knows that begins like this; nothing when it does not answer."""
    from magnetar.core.errors import MagnetarError

    given: dict[str, Any] = context.params
    options = ("admin_url", "client_conf", "auth_plugin", "auth_params")
    work = asyncio.wait_for(with_brokers(find, *map(given.get, options)), COMPLETION_SECONDS_MAX)
    try:
        return [name for name in asyncio.run(work) if name.startswith(incomplete)]
    except (MagnetarError, OSError, TimeoutError):
        return []


def complete_broker(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of brokers, for the shell."""

    async def find(api: AdminCaller) -> list[str]:
        from magnetar.cli.tools.brokers import list_brokers

        return [row.broker for row in await list_brokers(api)]

    return _complete(ctx, find, incomplete)


def complete_bundle(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of bundles that are served, for the shell."""

    async def find(api: AdminCaller) -> list[str]:
        from magnetar.cli.tools.brokers import list_bundles

        return await list_bundles(api)

    return _complete(ctx, find, incomplete)


BrokerArgument = Annotated[
    str,
    typer.Argument(
        metavar="BROKER", help="The broker's id, as `magnetar broker list` has it.", autocompletion=complete_broker
    ),
]
BundleArgument = Annotated[
    str,
    typer.Argument(
        metavar="BUNDLE", help="Such as public/default/0x40000000_0x80000000.", autocompletion=complete_bundle
    ),
]

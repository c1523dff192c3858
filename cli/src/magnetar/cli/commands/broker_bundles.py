"""`magnetar broker transfer|split|unload`."""

from __future__ import annotations

import enum
from functools import partial
from typing import Annotated

import typer
from magnetar.cli.commands.admin_options import (
    AdminUrlOption,
    AuthParamsOption,
    AuthPluginOption,
    BrokerArgument,
    BundleArgument,
    ClientConfOption,
    complete_bundle,
    with_brokers,
)
from magnetar.cli.commands.options import JsonOption
from magnetar.cli.commands.output import note, to_json


class SplitAlgorithm(enum.StrEnum):
    """Pulsar's, by their names."""

    RANGE = "range_equally_divide"
    TOPICS = "topic_count_equally_divide"
    POSITIONS = "specified_positions_divide"
    LOAD = "flow_or_qps_equally_divide"


def transfer(
    bundle: BundleArgument,
    broker: BrokerArgument,
    admin_url: AdminUrlOption = None,
    client_conf: ClientConfOption = None,
    auth_plugin: AuthPluginOption = None,
    auth_params: AuthParamsOption = None,
) -> None:
    """Hand a bundle to a broker, which serves it before its clients ask.

    The load manager leaves it there until the load says otherwise.

    [dim]Example:[/]
      magnetar broker transfer public/default/0x40000000_0x80000000 10.0.0.7:8080
    """
    from magnetar.cli.commands.running import complete, guarded
    from magnetar.cli.tools.brokers import bundle_named
    from magnetar.cli.tools.brokers import transfer as run

    with guarded():
        name = bundle_named(bundle)
    work = partial(run, bundle=name, broker=broker)
    complete(with_brokers(work, admin_url, client_conf, auth_plugin, auth_params))
    note(f"{name} is served by {broker}")


def split(
    bundle: BundleArgument,
    algorithm: Annotated[
        SplitAlgorithm | None,
        typer.Option("--algorithm", "-a", help="Where to cut; without: in the middle, or --at."),
    ] = None,
    positions: Annotated[
        list[str] | None, typer.Option("--at", metavar="HASH", help="Cut here, such as 0x50000000. May be repeated.")
    ] = None,
    unload: Annotated[bool, typer.Option("--unload", help="Let the parts go, so that they are placed anew.")] = False,
    admin_url: AdminUrlOption = None,
    client_conf: ClientConfOption = None,
    auth_plugin: AuthPluginOption = None,
    auth_params: AuthParamsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cut a bundle in two or more; its clients notice nothing. Nothing puts the parts together again.

    Prints the parts.

    [dim]Examples:[/]
      magnetar broker split public/default/0x40000000_0x80000000
      magnetar broker split public/default/0x40000000_0x80000000 \\
        -a topic_count_equally_divide --unload
    """
    from magnetar.cli.commands.running import complete, guarded
    from magnetar.cli.tools.brokers import SplitOptions, bundle_named
    from magnetar.cli.tools.brokers import split as run

    with guarded():
        name = bundle_named(bundle)
        hashes = tuple(_hash(text) for text in positions or ())
        chosen = algorithm or (SplitAlgorithm.POSITIONS if hashes else SplitAlgorithm.RANGE)
        _check_positions(chosen, hashes)
    work = partial(run, bundle=name, wish=SplitOptions(algorithm=chosen.value, positions=hashes, unload=unload))
    parts = complete(with_brokers(work, admin_url, client_conf, auth_plugin, auth_params))
    typer.echo(to_json(parts) if as_json else "\n".join(parts))
    if len(parts) < 2:
        note("there was nothing to cut: it has too few topics for that, or the positions are not within it")


def _hash(text: str) -> int:
    from magnetar.core.errors import SettingError

    try:
        return int(text, 0)
    except ValueError:
        raise SettingError(f"--at {text}: it must be a hash, such as 0x50000000") from None


def _check_positions(algorithm: SplitAlgorithm, positions: tuple[int, ...]) -> None:
    from magnetar.core.errors import SettingError

    if bool(positions) != (algorithm is SplitAlgorithm.POSITIONS):
        raise SettingError(f"--at goes with {SplitAlgorithm.POSITIONS}, and that with --at")


def unload(
    name: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|TOPIC",
            help="Such as public/default/0x40000000_0x80000000, or orders-1.",
            autocompletion=complete_bundle,
        ),
    ],
    admin_url: AdminUrlOption = None,
    client_conf: ClientConfOption = None,
    auth_plugin: AuthPluginOption = None,
    auth_params: AuthParamsOption = None,
) -> None:
    """Let a bundle go, so that it is placed anew by whoever asks; or close a topic and load it again.

    A bundle that nobody serves is no error.

    [dim]Examples:[/]
      magnetar broker unload public/default/0x40000000_0x80000000
      magnetar broker unload persistent://public/default/orders-1
    """
    from magnetar.cli.commands.running import complete
    from magnetar.cli.tools.brokers import unload as run

    found = complete(with_brokers(partial(run, name=name), admin_url, client_conf, auth_plugin, auth_params))
    note(f"{found} is unloaded")

"""Options and arguments that several commands have, and what the shell completes them with."""

from __future__ import annotations

import asyncio
import enum
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from magnetar.operator.plugin.target import Target

if TYPE_CHECKING:
    from magnetar.operator.plugin.kubernetes import Kubernetes

KUBERNETES: Final = "Kubernetes"
COMPLETION_SECONDS_MAX: Final = 2.0
"""Whoever presses Tab does not wait longer."""


class Output(enum.StrEnum):
    """What data is printed as."""

    TEXT = "text"
    JSON = "json"


class ComponentName(enum.StrEnum):
    """What a cluster consists of."""

    ZOOKEEPER = "zookeeper"
    BOOKIE = "bookie"
    BROKER = "broker"
    PROXY = "proxy"
    READ_ONLY_BROKER = "read-only-broker"


def _complete(context: typer.Context, kind: str, selector: str, incomplete: str) -> list[str]:
    """Names of objects that begin like this; none when the API server does not answer."""
    from magnetar.core.errors import MagnetarError
    from magnetar.operator.plugin.connection import open_kubernetes

    given: dict[str, Any] = context.params

    async def work() -> list[str]:
        wanted = Target(**{name: given.get(name) or None for name in _TARGET})
        async with asyncio.timeout(COMPLETION_SECONDS_MAX), open_kubernetes(wanted) as kubernetes:
            return await _names(kubernetes, kind, selector)

    try:
        return sorted(name for name in asyncio.run(work()) if name.startswith(incomplete))
    except (MagnetarError, OSError, TimeoutError):
        return []


async def _names(kubernetes: Kubernetes, kind: str, selector: str) -> list[str]:
    if kind == "Namespace":
        return sorted({one["metadata"]["namespace"] for one in await kubernetes.list("PulsarCluster", None)})
    found = await kubernetes.list(kind, kubernetes.namespace, selector)
    return [one["metadata"]["name"] for one in found]


def complete_cluster(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of clusters, for the shell."""
    return _complete(ctx, "PulsarCluster", "", incomplete)


def complete_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Namespaces with clusters, for the shell."""
    return _complete(ctx, "Namespace", "", incomplete)


def _pods_of(component: str) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        selector = f"app.kubernetes.io/name=magnetar,app.kubernetes.io/component={component}"
        return _complete(ctx, "Pod", selector, incomplete)

    return complete


ClusterArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CLUSTER",
        help="Its name; may be left out where there is only one.",
        show_default=False,
        autocompletion=complete_cluster,
    ),
]
BookieArgument = Annotated[
    str, typer.Argument(metavar="POD", help="The bookie's pod.", autocompletion=_pods_of("bookie"))
]
BrokerArgument = Annotated[
    str, typer.Argument(metavar="POD", help="The broker's pod.", autocompletion=_pods_of("broker"))
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="Which, where there are several.",
        show_default=False,
        autocompletion=complete_cluster,
    ),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="json: everything that is shown, for programs.", show_default=False)
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Stay, and draw anew; Ctrl-C ends it.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
FollowOption = Annotated[bool, typer.Option("--follow/--no-follow", help="Stay until it is done.")]


_TARGET: Final[Mapping[str, Any]] = {
    "namespace": Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="By default the context's.",
            show_default=False,
            rich_help_panel=KUBERNETES,
            autocompletion=complete_namespace,
        ),
    ],
    "context": Annotated[
        str | None,
        typer.Option("--context", help="Of the kubeconfig.", show_default=False, rich_help_panel=KUBERNETES),
    ],
    "kubeconfig": Annotated[
        str | None,
        typer.Option(
            "--kubeconfig", metavar="FILE", help="As kubectl's.", show_default=False, rich_help_panel=KUBERNETES
        ),
    ],
}
"""The options that every command has, by the names of `Target`."""


def command_group(name: str, explained: str) -> typer.Typer:
    """For several commands, or for all of them."""
    return typer.Typer(
        add_completion=False,
        name=name,
        help=explained,
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def kubernetes_command(work: Callable[..., None]) -> Callable[..., None]:
    """Makes a command of a function whose first parameter is where to work: that comes from the options of `Target`,
    which stand behind the function's own ones."""
    _, *own = inspect.signature(work, eval_str=True).parameters.values()

    @wraps(work)
    def command(**given: Any) -> None:
        work(Target(**{name: given.pop(name) or None for name in _TARGET}), **given)

    # Typer makes the options from this. All are named, so that some may have no default behind others that have.
    named = inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter(name, named, default=None, annotation=type_) for name, type_ in _TARGET.items()]
    signature = inspect.Signature([*(one.replace(kind=named) for one in own), *shared])
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command

"""Options and arguments that several commands have, and what the shell completes them with."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from magnetar.operator.plugin.connection import Target
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


def target(namespace: str | None, context: str | None, kubeconfig: str | None) -> Target:
    """Which Kubernetes cluster and namespace the options mean."""
    from magnetar.operator.plugin.connection import Target

    return Target(namespace=namespace or None, context=context or None, kubeconfig=kubeconfig or None)


def _complete(context: typer.Context, kind: str, selector: str, incomplete: str) -> list[str]:
    """Names of objects that begin like this; none when the API server does not answer."""
    from magnetar.core.errors import MagnetarError
    from magnetar.operator.plugin.connection import open_kubernetes

    given: dict[str, Any] = context.params

    async def work() -> list[str]:
        wanted = target(given.get("namespace"), given.get("context"), given.get("kubeconfig"))
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
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="By default the context's.",
        show_default=False,
        rich_help_panel=KUBERNETES,
        autocompletion=complete_namespace,
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", help="Of the kubeconfig.", show_default=False, rich_help_panel=KUBERNETES),
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option("--kubeconfig", metavar="FILE", help="As kubectl's.", show_default=False, rich_help_panel=KUBERNETES),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="json: everything that is shown, for programs.", show_default=False)
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Stay, and draw anew; Ctrl-C ends it.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
FollowOption = Annotated[bool, typer.Option("--follow/--no-follow", help="Stay until it is done.")]

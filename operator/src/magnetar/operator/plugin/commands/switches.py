"""`kubectl pulsar pause|resume|hibernate|wake|restart`: patches of the resource; the operator does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from magnetar.operator.plugin.options import (
    ClusterArgument,
    ClusterOption,
    ComponentName,
    YesOption,
    kubernetes_command,
)
from magnetar.operator.plugin.running import confirm, done, note, run
from magnetar.operator.plugin.target import Target

if TYPE_CHECKING:
    from magnetar.operator.kubernetes.kinds import Manifest
    from magnetar.operator.plugin.kubernetes import Kubernetes


@kubernetes_command
def pause(where: Target, cluster: ClusterArgument = None) -> None:
    """Have the operator look at a cluster and touch nothing, such as while you change something by hand.

    Everything goes on running. Sets spec.paused.

    [dim]Example:[/]
      kubectl pulsar pause demo
    """
    words = "the operator touches nothing of it until `kubectl pulsar resume {name}`"
    _switch(where, cluster, {"paused": True}, words)


@kubernetes_command
def resume(where: Target, cluster: ClusterArgument = None) -> None:
    """End a pause: what was changed by hand is made as the resource says.

    [dim]Example:[/]
      kubectl pulsar resume demo
    """
    words = "the operator makes it as its resource says; `kubectl pulsar status {name} -w` shows how"
    _switch(where, cluster, {"paused": False}, words)


@kubernetes_command
def hibernate(where: Target, cluster: ClusterArgument = None, yes: YesOption = False) -> None:
    """Stop all pods of a cluster and keep all volumes: nothing is lost, nothing is served.

    Sets spec.hibernated.

    [dim]Example:[/]
      kubectl pulsar hibernate demo
    """
    question = "All pods of {name} stop, clients cannot connect until it is woken; volumes stay."
    words = "its pods stop one part after the other; `kubectl pulsar wake {name}` starts it"
    _switch(where, cluster, {"hibernated": True}, words, question=question, yes=yes)


@kubernetes_command
def wake(where: Target, cluster: ClusterArgument = None) -> None:
    """Start a hibernated cluster again, as large as it was.

    [dim]Example:[/]
      kubectl pulsar wake demo
    """
    words = "it starts in order; `kubectl pulsar status {name} -w` shows how far it is"
    _switch(where, cluster, {"hibernated": False}, words)


def _switch(
    wanted: Target, cluster: str | None, spec: dict[str, Any], words: str, *, question: str = "", yes: bool = True
) -> None:
    async def work(kubernetes: Kubernetes) -> None:
        from magnetar.operator.plugin.collect import find_cluster

        found = await find_cluster(kubernetes, cluster)
        name = found["metadata"]["name"]
        flag = next(iter(spec))
        if bool(found.get("spec", {}).get(flag)) == spec[flag]:
            note(f"{name} is {'already' if spec[flag] else 'not'} {flag}: nothing was changed")
            return
        if question:
            confirm(question.format(name=name), yes=yes)
        await _patch(kubernetes, found, spec)
        done(f"{name}: {words.format(name=name + kubernetes.context)}")

    run(wanted, work)


@kubernetes_command
def restart(
    where: Target,
    component: Annotated[ComponentName, typer.Argument(help="Whose pods.", show_default=False)],
    cluster: ClusterOption = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", help="Of bookies: only this one (the resource Bookie).", show_default=False),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Restart all pods of a component, one after the other, each when the others are well.

    As `kubectl rollout restart` does it: an annotation with the time goes into the pods' template by way of the
    resource, and the operator rolls it out with the care it takes at upgrades.

    [dim]Examples:[/]
      kubectl pulsar restart broker
      kubectl pulsar restart bookie --pool demo-archive
    """
    run(where, lambda kubernetes: _restart(kubernetes, component, cluster, pool, yes=yes))


async def _restart(
    kubernetes: Kubernetes, component: ComponentName, cluster: str | None, pool: str | None, *, yes: bool
) -> None:
    from datetime import UTC, datetime

    from magnetar.core.errors import SettingError
    from magnetar.operator.kubernetes.kinds import BOOKIE_POOL
    from magnetar.operator.plugin.collect import find_cluster
    from magnetar.operator.plugin.restarts import cluster_patch, pool_patch

    if pool is not None and component is not ComponentName.BOOKIE:
        raise SettingError("--pool goes with bookies only")
    found = await find_cluster(kubernetes, cluster)
    name = found["metadata"]["name"]
    pools = [
        one
        for one in await kubernetes.list(BOOKIE_POOL, kubernetes.namespace)
        if one["spec"].get("clusterName") == name and component is ComponentName.BOOKIE
    ]
    names = sorted(one["metadata"]["name"] for one in pools)
    if pool is not None and pool not in names:
        raise SettingError(f"{name} has no pool {pool}; there are: {', '.join(names) or 'none'}")
    what = f"All pods of {name}'s {component.value}s" if pool is None else f"All bookies of pool {pool}"
    confirm(f"{what} are restarted one after the other.", yes=yes)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    if pool in (None, name):
        # The default pool is made after the cluster's own words.
        await _patch(kubernetes, found, cluster_patch(found, component.value, at))
    for one in pools:
        if one["metadata"]["name"] != name and pool in (None, one["metadata"]["name"]):
            await _patch(kubernetes, one, pool_patch(at))
    done(f"{what} will be restarted; `kubectl pulsar status {name}{kubernetes.context} -w` shows how far it is")
    if found.get("spec", {}).get("paused"):
        note(f"{name} is paused: nothing happens before `kubectl pulsar resume {name}{kubernetes.context}`")


async def _patch(kubernetes: Kubernetes, found: Manifest, spec: dict[str, Any]) -> None:
    metadata = found["metadata"]
    patch = {"metadata": {"uid": metadata["uid"]}, "spec": spec}
    await kubernetes.patch(found["kind"], metadata["namespace"], metadata["name"], patch)

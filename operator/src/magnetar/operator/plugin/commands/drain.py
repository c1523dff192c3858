"""`kubectl pulsar drain bookie|broker` and `kubectl pulsar replace`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Annotated, Final

import typer
from magnetar.operator.plugin.options import (
    BookieArgument,
    BrokerArgument,
    FollowOption,
    YesOption,
    command_group,
    kubernetes_command,
)
from magnetar.operator.plugin.running import EXIT_FAILED, complain, confirm, done, note, run, warn
from magnetar.operator.plugin.target import Target

if TYPE_CHECKING:
    from magnetar.operator.plugin.control_ports import ControlPorts
    from magnetar.operator.plugin.kubernetes import Kubernetes
    from magnetar.operator.plugin.progress import Progress
    from magnetar.operator.plugin.views import PodView

POLL_SECONDS: Final = 2.0
GRACE_SECONDS: Final = 4.0
"""How long a broker that has been asked by annotation only may take to begin before that is said."""

CancelOption = Annotated[bool, typer.Option("--cancel", help="Take it back: it takes writes, or bundles, again.")]

application = command_group("drain", "Have a bookie or a broker give away what it has.")


@application.command("bookie")
@kubernetes_command
def drain_bookie(
    where: Target,
    pod: BookieArgument,
    cancel: CancelOption = False,
    follow: FollowOption = True,
    yes: YesOption = False,
) -> None:
    """Drain a bookie: all that it stores is copied to others; then its volumes are deleted and it starts anew, empty.

    The operator does it and goes on whatever happens; Ctrl-C only ends the watching. To have fewer bookies for good,
    scale the pool instead: `kubectl scale bk POOL --replicas N` drains those with the highest numbers.
    Exit code: 0 done (with --no-follow or --cancel: asked for), 1 not done, 2 no such bookie.

    [dim]Examples:[/]
      kubectl pulsar drain bookie demo-bookie-1
      kubectl pulsar drain bookie demo-bookie-1 --cancel
    """
    run(where, lambda kubernetes: _replace_bookie(kubernetes, pod, cancel=cancel, follow=follow, yes=yes))


@kubernetes_command
def replace(
    where: Target,
    pod: BookieArgument,
    cancel: CancelOption = False,
    follow: FollowOption = True,
    yes: YesOption = False,
) -> None:
    """Replace a bookie's volumes by fresh ones, such as for another disk: drained first, then it starts anew, empty.

    The same as `drain bookie`.
    Exit code: 0 done (with --no-follow or --cancel: asked for), 1 not done, 2 no such bookie.

    [dim]Example:[/]
      kubectl pulsar replace demo-bookie-1 --no-follow
    """
    run(where, lambda kubernetes: _replace_bookie(kubernetes, pod, cancel=cancel, follow=follow, yes=yes))


@application.command("broker")
@kubernetes_command
def drain_broker(
    where: Target,
    pod: BrokerArgument,
    cancel: CancelOption = False,
    follow: FollowOption = True,
    yes: YesOption = False,
) -> None:
    """Drain a broker: its bundles go to the other brokers, clients follow, and it takes none any more.

    The broker does it by itself; Ctrl-C only ends the watching. It stays drained until its pod is deleted or --cancel.
    To have fewer brokers for good, scale the cluster instead: the operator drains those that go.
    Exit code: 0 done (with --no-follow or --cancel: asked for), 1 not done, 2 no such broker.

    [dim]Examples:[/]
      kubectl pulsar drain broker demo-broker-5d9f8-x2x7q
      kubectl pulsar drain broker demo-broker-5d9f8-x2x7q --cancel
    """
    run(where, lambda kubernetes: _drain_broker(kubernetes, pod, cancel=cancel, follow=follow, yes=yes))


# --- bookies


async def _replace_bookie(kubernetes: Kubernetes, pod: str, *, cancel: bool, follow: bool, yes: bool) -> None:
    from magnetar.operator.children.naming import NOT_REPLACED, REPLACE_ANNOTATION
    from magnetar.operator.kubernetes.kinds import BOOKIE_POOL
    from magnetar.operator.plugin.collect import find_pod
    from magnetar.operator.plugin.parse import pool_view
    from magnetar.operator.plugin.progress import is_to_be_replaced

    found = await find_pod(kubernetes, pod, "bookie")
    pool = await kubernetes.get(BOOKIE_POOL, kubernetes.namespace, found.pool)
    asked = is_to_be_replaced(found, pool_view(pool).member(pod) if pool is not None else None)
    if cancel:
        if not asked:
            note(f"{pod} is not to be replaced: there is nothing to take back")
            return
        # A new pod whose annotation the operator has not renewed yet has none that could be removed.
        value = None if REPLACE_ANNOTATION in found.annotations else NOT_REPLACED
        await _annotate(kubernetes, found, REPLACE_ANNOTATION, value)
        done(f"{pod} stays as it is: the operator cancels its drain, unless everything has been moved already")
        return
    if asked:
        note(f"{pod} is to be replaced already")
    else:
        confirm(
            f"All that {pod} stores is copied to other bookies of {found.cluster}. Then its volumes are deleted, and "
            "it starts anew with empty ones.",
            yes=yes,
        )
        await _annotate(kubernetes, found, REPLACE_ANNOTATION, "true")
        done(f"{pod} is to be replaced: the operator drains it")
    if follow:
        again = f"kubectl pulsar replace {pod}{kubernetes.context}"
        await _follow(pod, _replacement(kubernetes, found), f"The replacement goes on; `{again}` watches it again.")


async def _annotate(kubernetes: Kubernetes, pod: PodView, annotation: str, value: str | None) -> None:
    patch = {"metadata": {"uid": pod.uid, "annotations": {annotation: value}}}
    await kubernetes.patch("Pod", kubernetes.namespace, pod.name, patch)


async def _replacement(kubernetes: Kubernetes, before: PodView) -> AsyncIterator[Progress]:
    from magnetar.core.errors import Unavailable
    from magnetar.operator.children.naming import to_be_replaced
    from magnetar.operator.kubernetes.kinds import BOOKIE_POOL
    from magnetar.operator.plugin.parse import pod_view, pool_view
    from magnetar.operator.plugin.progress import replacement_progress

    uid = before.uid
    while True:
        try:
            pod, pool = await asyncio.gather(
                kubernetes.get("Pod", kubernetes.namespace, before.name),
                kubernetes.get(BOOKIE_POOL, kubernetes.namespace, before.pool),
            )
            now = pod_view(pod) if pod is not None else None
            if now is not None and to_be_replaced(now.annotations):
                # Its pod may be another one before its drain is done.
                uid = now.uid
            yield replacement_progress(before.name, uid, now, pool_view(pool) if pool is not None else None)
        except Unavailable as error:
            warn(f"{error}; trying again")
        await asyncio.sleep(POLL_SECONDS)


async def _follow(title: str, steps: AsyncIterator[Progress], goes_on: str) -> None:
    from magnetar.operator.plugin.following import follow

    last = await follow(title, steps, goes_on=goes_on)
    if last.failed or not last.finished:
        complain(f"{title}: {last.text}", "`kubectl pulsar status` tells more.")
        raise typer.Exit(EXIT_FAILED)
    done(f"{title}: {last.text}")


# --- brokers


async def _drain_broker(kubernetes: Kubernetes, pod: str, *, cancel: bool, follow: bool, yes: bool) -> None:
    from magnetar.operator.children.naming import DRAIN_ANNOTATION
    from magnetar.operator.plugin.collect import find_pod
    from magnetar.operator.plugin.control_ports import ControlPorts

    found = await find_pod(kubernetes, pod, "broker")
    ports = await ControlPorts.of(kubernetes, kubernetes.namespace, found.cluster)
    if cancel:
        # Without the wish first: the operator must not find a drain that nobody wants and one that is wanted at once.
        await _annotate(kubernetes, found, DRAIN_ANNOTATION, None)
        async with ports.broker(pod) as control:
            await control.cancel_drain()
        done(f"{pod} takes bundles again")
        return
    asked = DRAIN_ANNOTATION in found.annotations
    if asked:
        note(f"{pod} is to be drained already")
    else:
        confirm(
            f"{pod} gives its bundles to the other brokers of {found.cluster}; clients of their topics follow, and it "
            "takes none any more.",
            yes=yes,
        )
        await _annotate(kubernetes, found, DRAIN_ANNOTATION, "true")
    async with contextlib.aclosing(_broker_steps(kubernetes, ports, found)) as steps:
        try:
            first = await anext(steps)
        except Exception:
            # Refused, or not reached: then nobody wants it any more.
            if not asked:
                await _annotate(kubernetes, found, DRAIN_ANNOTATION, None)
            raise
        if not follow:
            done(f"{pod} is being drained")
            return
        again = f"kubectl pulsar drain broker {pod}{kubernetes.context}"
        goes_on = f"The drain goes on; `{again}` watches it again, --cancel takes it back."
        await _follow(pod, _chained(first, steps), goes_on)
    note(f"`kubectl delete pod {pod}{kubernetes.context}` starts it anew; --cancel has it take bundles again.")


async def _chained(first: Progress, rest: AsyncIterator[Progress]) -> AsyncIterator[Progress]:
    yield first
    async for step in rest:
        yield step


async def _broker_steps(kubernetes: Kubernetes, ports: ControlPorts, pod: PodView) -> AsyncGenerator[Progress, None]:
    """Once it has begun, a way to the broker that breaks is no end: it is looked for again, and the drain with it."""
    from magnetar.core.errors import Unavailable
    from magnetar.operator.plugin.progress import Progress, broker_drain_progress

    begun = False
    while True:
        try:
            if begun and (why := await _ended(kubernetes, pod)):
                yield Progress(text=why, finished=True, failed=True)
                return
            async with ports.broker(pod.name) as control:
                async for state in control.drain():
                    begun = True
                    yield broker_drain_progress(state)
            return
        except Unavailable as error:
            if not begun:
                raise
            warn(f"{error}; trying again")
        await asyncio.sleep(POLL_SECONDS)


async def _ended(kubernetes: Kubernetes, pod: PodView) -> str:
    """Why there is nothing to watch any more: to ask for it again would begin another drain."""
    from magnetar.operator.children.naming import DRAIN_ANNOTATION
    from magnetar.operator.plugin.parse import pod_view

    manifest = await kubernetes.get("Pod", kubernetes.namespace, pod.name)
    if manifest is None or (now := pod_view(manifest)).uid != pod.uid:
        return "its pod is gone"
    return "" if DRAIN_ANNOTATION in now.annotations else "the drain was cancelled"

"""`kubectl pulsar unload`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from magnetar.operator.plugin.options import ClusterOption, kubernetes_command
from magnetar.operator.plugin.running import done, guarded, note, run
from magnetar.operator.plugin.target import Target

if TYPE_CHECKING:
    from magnetar.core.bundle import BundleName
    from magnetar.core.topic_name import TopicName
    from magnetar.operator.plugin.kubernetes import Kubernetes
    from magnetar.operator.plugin.views import ClusterSummary


@kubernetes_command
def unload(
    where: Target,
    name: Annotated[
        str,
        typer.Argument(metavar="TOPIC|BUNDLE", help="Such as orders-1, or public/default/0x40000000_0x80000000."),
    ],
    cluster: ClusterOption = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="PULSAR_TOKEN",
            help="Of a role that may; by default the brokers' own, if you may read that Secret.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Let a bundle go, so that it is placed anew by whoever asks for it; or close a topic and load it again.

    Producers and consumers connect again by themselves. What nobody serves is no error.

    [dim]Examples:[/]
      kubectl pulsar unload persistent://public/default/orders-1
      kubectl pulsar unload public/default/0x40000000_0x80000000 --cluster demo
    """
    with guarded():
        wanted = parse(name)
    run(where, lambda kubernetes: _unload(kubernetes, cluster, wanted, token or ""))


def parse(name: str) -> TopicName | BundleName:
    """What is meant: a bundle has a range at its end. `SettingError`."""
    from magnetar.core.bundle import BundleName
    from magnetar.core.errors import PeerError, SettingError
    from magnetar.core.topic_name import TopicName

    try:
        if "://" not in name and "/0x" in name:
            return BundleName.parse(name)
        return TopicName.parse(name)
    except PeerError as error:
        raise SettingError(f"{name!r} is neither a topic nor a bundle: {error}") from None


async def _unload(kubernetes: Kubernetes, cluster: str | None, wanted: TopicName | BundleName, token: str) -> None:
    from magnetar.core.bundle import BundleName
    from magnetar.core.topic_name import java_url_encode
    from magnetar.operator.plugin.admin_rest import AdminRest
    from magnetar.operator.plugin.collect import see_cluster

    view = await see_cluster(kubernetes, cluster)
    if isinstance(wanted, BundleName):
        await _unload_bundle(kubernetes, view, str(wanted))
        return
    path = f"/admin/v2/{wanted.domain}/{wanted.namespace_name}/{java_url_encode(wanted.local_name)}/unload"
    await AdminRest(kubernetes, view, token).call("PUT", path)
    done(f"{wanted} is closed, and loaded again when somebody uses it")


async def _unload_bundle(kubernetes: Kubernetes, view: ClusterSummary, bundle: str) -> None:
    from magnetar.core.errors import Unavailable
    from magnetar.operator.plugin.control_ports import ControlPorts, ask_all

    ports = await ControlPorts.of(kubernetes, view.namespace, view.name)

    async def ask(pod: str) -> bool:
        """Whether this broker had it."""
        async with ports.broker(pod) as control:
            if not any(one.bundle == bundle for one in await control.bundles()):
                return False
            await control.unload_bundle(bundle)
            return True

    pods = [pod.name for pod in view.of("broker") if pod.phase == "Running"]
    answers, failures = await ask_all(pods, ask)
    owner = next((pod for pod, had in answers.items() if had), None)
    if owner is not None:
        done(f"{owner} has let {bundle} go")
    elif failures:
        raise Unavailable(f"no broker that answers has {bundle}; {'; '.join(failures.values())}")
    else:
        note(f"nobody serves {bundle}: there is nothing to unload")

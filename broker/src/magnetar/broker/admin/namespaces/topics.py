"""Which topics a namespace and a bundle have, wherever they are served."""

from __future__ import annotations

from magnetar.broker.admin.web.fan_out import on_bundles
from magnetar.broker.context import BrokerContext
from magnetar.broker.slices import TimeSlice
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import NamespaceName, TopicName


async def non_persistent_topics(context: BrokerContext, namespace: NamespaceName) -> list[str]:
    """The non-persistent topics of a namespace, which only the brokers that serve them know."""
    if len(context.load.brokers()) <= 1:
        return await context.service.list_topics(namespace, "non-persistent")
    answers = await on_bundles(context, namespace, "GET", "/admin/v2/non-persistent/{namespace}/{bundle}")
    names = {name for answer in answers for name in answer.json() or []}
    return sorted(name for name in names if name.startswith("non-persistent:"))


async def topics_of_bundle(context: BrokerContext, bundle: BundleName) -> list[TopicName]:
    """The topics of a bundle of this broker: the persistent ones, loaded or not, and the others that are loaded."""
    names = await context.service.list_topics(bundle.namespace, "all")
    topics: list[TopicName] = []
    turn = TimeSlice()
    for name in names:
        if turn.over:
            await turn.pause()
        topic = TopicName.parse(name)
        if topic in bundle:
            topics.append(topic)
    return topics

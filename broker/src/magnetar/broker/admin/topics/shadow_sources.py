"""Topics that are to be made as shadows of others, by the property that says of which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar.broker.admin.web.responses import NOT_FOUND, PRECONDITION_FAILED, AdminError
from magnetar.managed.info_codec import SHADOW_SOURCE_PROPERTY
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web
    from magnetar.broker.context import BrokerContext
    from magnetar.core.topic_name import TopicName


async def check_source(
    context: BrokerContext, request: web.Request, name: TopicName, properties: Mapping[str, Any], partitions: int = 0
) -> TopicName | None:
    """Whose shadow a topic with these properties is to be; None: nobody's. Raises 412 and 404 for what cannot be.

    Raises 401 for who may not consume the source. Apache's broker asks for no right on it: by a shadow in a namespace
    of its own, a tenant reads the topics of any other."""
    if SHADOW_SOURCE_PROPERTY not in properties:
        return None
    try:
        source = await context.service.shadows.check_source(name, properties[SHADOW_SOURCE_PROPERTY], partitions)
    except PulsarError as refusal:
        status = NOT_FOUND if refusal.code == ServerError.TOPIC_NOT_FOUND else PRECONDITION_FAILED
        raise AdminError(status, refusal.message) from None
    if context.access is not None:
        from magnetar.broker.admin.web.access import RequestGuard
        from magnetar.broker.auth.rules import Right

        await RequestGuard(context.access, context.settings.broker_id).check_right(request, Right.CONSUME, source)
    return source

"""What the handlers of all resources have at hand."""

from __future__ import annotations

from magnetar.broker.context import BrokerContext


class Handlers:
    """Over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._service = context.service
        self._resources = context.service.resources
        self._documents = context.service.resources.documents
        self._local_documents = context.service.resources.local_documents

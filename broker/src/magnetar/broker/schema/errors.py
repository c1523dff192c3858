"""What the schema registry refuses with. The texts are read by users of stock clients, so they follow Pulsar's."""

from __future__ import annotations

from magnetar.wire.pulsar.errors import PulsarError, ServerError


class SchemaRefused(PulsarError):
    """A schema cannot be used; on the wire always ServerError.IncompatibleSchema."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.INCOMPATIBLE_SCHEMA, message)


class IncompatibleSchema(SchemaRefused):
    """The schema does not go with those that the topic has. Admin REST: 409."""


class InvalidSchemaData(SchemaRefused):
    """The schema's data is not of the form that its type asks for. Admin REST: 422."""


class NoSchema(SchemaRefused):
    """There is no schema to check against. Admin REST: 404."""

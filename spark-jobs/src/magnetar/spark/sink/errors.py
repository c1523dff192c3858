"""What a user is told when rows cannot be written."""

from __future__ import annotations

from magnetar.client.errors import MessageTooLarge, TimedOut
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.spark.brokers.errors import user_error
from magnetar.spark.errors import ClusterUnreachable, SinkRefused, SparkSourceError, TopicMissing
from magnetar.spark.sink.options import SinkOptions
from magnetar.wire.pulsar.errors import PulsarError, ServerError

QUOTA_CODES = (
    ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
    ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
)


def deduplication_off(topic: TopicName) -> str:
    """Why exactly once is not possible, and what to do."""
    whole = topic.partitioned_name()
    return (
        f"deduplication is off for {whole}, so that rows of a task that Spark tries again would be stored twice. Turn "
        f"it on for the topic: pulsar-admin topicPolicies set-deduplication --enable {whole}  or for the namespace: "
        f"pulsar-admin namespaces set-deduplication --enable {whole.namespace_name}  or set the option "
        "deliveryGuarantee=at-least-once"
    )


def explained(error: MagnetarError, topic: str, rows: str, options: SinkOptions) -> SparkSourceError:
    """The error to raise instead, which names topic, rows and what to do."""
    if isinstance(error, SparkSourceError):
        return error
    what = f"writing {rows} to {topic}"
    if isinstance(error, PulsarError):
        refusal = _refusal(error, topic, options)
        if refusal:
            return SinkRefused(f"{what}: {refusal}")
        if error.code == ServerError.TOPIC_NOT_FOUND:
            return TopicMissing(f"{what}: the topic is not there, and brokers may not create it: {error.message}")
    if isinstance(error, TimedOut):
        return ClusterUnreachable(
            f"{what}: {error}. Are brokers and bookies well, and is the topic's backlog within its quota? "
            f"(pulsar-admin topics stats {topic}; options sendTimeout and operationTimeout)"
        )
    if isinstance(error, MessageTooLarge):
        return SinkRefused(
            f"{what}: too large: {error}. Make the values smaller, or raise maxMessageSize of brokers and bookies"
        )
    return user_error(error, what, options.connection.service_url)


def _refusal(error: PulsarError, topic: str, options: SinkOptions) -> str:
    if error.code == ServerError.TOPIC_TERMINATED_ERROR:
        return "the topic is terminated and takes no messages any more"
    if error.code in QUOTA_CODES:
        return (
            "the topic's backlog is over its quota: let its subscriptions catch up or drop them (pulsar-admin topics "
            f"stats {topic}), or raise the quota: {error.message}"
        )
    if error.code == ServerError.INCOMPATIBLE_SCHEMA:
        return (
            f"the topic's schema does not go with the data frame's columns: {error.message}. See option schemaType, "
            f"and pulsar-admin schemas get {topic}"
        )
    if error.code == ServerError.PRODUCER_BUSY:
        return (
            f"another attempt of the same Spark task is still writing after {options.attempt_timeout_seconds:g} s "
            f"(option attemptTimeout): {error.message}"
        )
    if error.code == ServerError.PRODUCER_FENCED:
        return f"another attempt of the same Spark task took over while this one had no connection: {error.message}"
    if error.code in (ServerError.NOT_ALLOWED_ERROR, ServerError.CHECKSUM_ERROR):
        return (
            f"the broker refuses a message: {error.message}. Rows behind it may be stored, so that a stream that is to "
            "go on with other limits needs the row changed or left out"
        )
    return ""

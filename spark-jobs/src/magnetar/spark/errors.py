"""What a user of the data source can do something about; each message says what.

Class names are short as Spark prints them in front of the message."""

from __future__ import annotations

from magnetar.core.errors import MagnetarError


class SparkSourceError(MagnetarError):
    """The root of what the data source and the jobs raise on purpose."""


class BadOption(SparkSourceError):
    """An option has an unknown name or a value that is none; the text names both and what is accepted."""


class TopicMissing(SparkSourceError):
    """A topic that was asked for is not there (any more)."""


class DataLoss(SparkSourceError):
    """Messages that should have been read are gone; the text names the range and why. `failOnDataLoss` decides."""


class BadRecord(SparkSourceError):
    """A message that its schema cannot decode; the text names topic, message and reason. `mode` decides."""


class SchemaUnreadable(SparkSourceError):
    """A topic's schema has no columns in Spark, or a writer's cannot be read as the table's; the text says why."""


class ClusterUnreachable(SparkSourceError):
    """No broker, bookie or metadata store answers; the text names who was asked and which option to look at."""


class AccessRefused(SparkSourceError):
    """The cluster does not take the credentials, or they lack a right; the text names the options and the right."""


class SinkRefused(SparkSourceError):
    """What should be written cannot be, or not with the guarantee that was asked for."""

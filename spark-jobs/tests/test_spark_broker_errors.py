from __future__ import annotations

import os

import pytest
from magnetar.client.errors import ClientClosed, ConnectionFailed
from magnetar.core.errors import MagnetarError, Misuse
from magnetar.spark.brokers.errors import user_error
from magnetar.spark.errors import AccessRefused, ClusterUnreachable, DataLoss, SparkSourceError, TopicMissing
from magnetar.spark.shown_errors import HIDE_TRACEBACK, shown_plainly
from magnetar.wire.pulsar.errors import PulsarError, ServerError


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (PulsarError(ServerError.TOPIC_NOT_FOUND, "gone"), TopicMissing, "reading t: the topic is not there: gone"),
        (PulsarError(ServerError.AUTHENTICATION_ERROR, "who"), AccessRefused, "do not take the credentials"),
        (PulsarError(ServerError.AUTHORIZATION_ERROR, "no"), AccessRefused, "lacks a right"),
        (
            PulsarError(ServerError.SERVICE_NOT_READY, "later"),
            ClusterUnreachable,
            r"at service\.url pulsar://h:1: .*later",
        ),
        (ConnectionFailed("refused"), ClusterUnreachable, "no broker answers well"),
        (DataLoss("lost"), DataLoss, "^lost$"),
    ],
)
def test_what_users_are_told(error: MagnetarError, kind: type[SparkSourceError], text: str) -> None:
    with pytest.raises(kind, match=text):
        raise user_error(error, "reading t", "pulsar://h:1")


@pytest.mark.parametrize("error", [Misuse("blocks() before open()"), ClientClosed("closed"), MagnetarError("what?")])
def test_bugs_are_no_faults_of_the_cluster(error: MagnetarError) -> None:
    with pytest.raises(MagnetarError) as caught:
        raise user_error(error, "reading t")
    assert caught.value is error


def test_bugs_keep_their_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDE_TRACEBACK, raising=False)
    with pytest.raises(Misuse), shown_plainly():
        raise Misuse("a bug")
    assert HIDE_TRACEBACK not in os.environ
    with pytest.raises(DataLoss), shown_plainly():
        raise DataLoss("lost")
    assert os.environ.pop(HIDE_TRACEBACK) == "1"

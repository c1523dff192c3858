from __future__ import annotations

import logging

import httpx2
import pytest
from magnetar.core.clock import SystemClock
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.operator import app
from magnetar.operator.api import ServerUnavailable
from magnetar.operator.lightkube_api import LightkubeApiServer
from magnetar.operator.metrics import Metrics
from magnetar.operator.settings import OperatorSettings

SETTINGS = OperatorSettings(
    operator_namespace="system",
    image_repository="images",
    version="1",
    domain="cluster.local",
    host="127.0.0.1",
    port=0,
    identity="a",
)


@pytest.mark.parametrize("error", [ServerUnavailable("it is down"), OSError("port 8080 is taken"), KeyError("spec")])
async def test_whatever_ends_it_is_a_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Also a mistake: a traceback of its own form would be a hundred lines that no program reads."""
    client = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(500)), base_url="https://s")
    api = LightkubeApiServer(client, clock=SystemClock(), counter=Metrics())

    async def fail(_: app.Operator) -> int:
        await api.close()
        raise error

    monkeypatch.setattr(LightkubeApiServer, "connect", lambda **_: api)
    monkeypatch.setattr(app.Operator, "run", fail)
    assert await app.serve(SETTINGS) == EXIT_FAILED
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert str(error) in (record.exc_text or record.getMessage())

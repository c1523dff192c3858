from __future__ import annotations

import logging

import pytest
from kubernetes.aio.client.configuration import Configuration
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.operator import app
from magnetar.operator.kubernetes.errors import ServerUnavailable
from magnetar.operator.kubernetes.login import Login
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

    async def find_login() -> Login:
        return Login(configuration=Configuration())

    async def fail(operator: app.Operator) -> int:
        await operator._api.close()
        raise error

    monkeypatch.setattr(app, "find_login", find_login)
    monkeypatch.setattr(app.Operator, "run", fail)
    assert await app.serve(SETTINGS) == EXIT_FAILED
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert str(error) in (record.exc_text or record.getMessage())

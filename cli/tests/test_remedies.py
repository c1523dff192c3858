"""What commands say is to be done about errors of others."""

from __future__ import annotations

import errno

import pytest
from magnetar.admin_client.errors import AdminElsewhere, AdminUnreachable, AdminUntrusted
from magnetar.cli.commands.running import explain
from magnetar.control.errors import ControlRefused, ControlUnserved, RefusalReason
from magnetar.core.errors import MagnetarError


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (AdminUnreachable("away"), "Check --admin-url"),
        (AdminUntrusted("certificate verify failed"), "tlsTrustCertsFilePath in the client.conf of --client-conf"),
        (AdminElsewhere("redirects to http://b:8080"), "give it as --admin-url: one that only reads is asked itself"),
        (ControlUnserved(RefusalReason.INTERNAL, "no such call"), "Ask a bookie's own control port"),
        (ControlRefused(RefusalReason.NOT_FOUND, "no such bundle"), "Nothing was changed."),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/nope/key"), "the folder that it names"),
        (OSError(errno.EIO, "Input/output error"), "Run again with MAGNETAR_LOG=debug"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_says_what_helps(error: MagnetarError | OSError, remedy: str) -> None:
    said, what_helps = explain(error)
    assert said
    assert remedy in what_helps

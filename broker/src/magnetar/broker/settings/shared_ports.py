"""Ports that several brokers of one machine have together, beside the ports of their own."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.core.limits import PORT_MAX
from magnetar.core.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPortSettings:
    """Where clients look topics up and tools ask, whichever of the brokers answers. None: nowhere.

    What a broker tells about itself are its own ports. `magnetar broker run --processes` sets these."""

    service_port: int | None = setting("sharedBrokerServicePort", None, ours=True, low=1, high=PORT_MAX)
    service_port_tls: int | None = setting("sharedBrokerServicePortTls", None, ours=True, low=1, high=PORT_MAX)
    """With TLS; used only with brokerServicePortTls, whose certificates it takes."""
    web_port: int | None = setting("sharedWebServicePort", None, ours=True, low=1, high=PORT_MAX)
    web_port_tls: int | None = setting("sharedWebServicePortTls", None, ours=True, low=1, high=PORT_MAX)
    """With TLS; used only with webServicePortTls."""

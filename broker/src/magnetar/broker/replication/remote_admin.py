"""Where another cluster's admin API is, and how it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.auth.plugin import ClientCredentials
    from magnetar.net.tls import ClientTls


@dataclass(frozen=True, slots=True)
class RemoteAdmin:
    """The admin API of a cluster, and what is shown to it."""

    cluster: str
    url: str
    credentials: ClientCredentials | None
    tls: ClientTls | None

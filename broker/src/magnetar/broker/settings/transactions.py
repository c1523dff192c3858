"""What an operator may set about transactions, under Pulsar's names (`ServiceConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.core.setting import check_ranges, setting

REQUESTS_AT_ONCE_MIN: Final = 100
"""Apache's coordinators have at least so many requests under way, whatever is set."""

INTEGER_MAX: Final = (1 << 31) - 1
"""Of a Java int, which these are at Apache's brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Transactions of one broker: whether there are any, and bounds of its coordinators."""

    enabled: bool = setting("transactionCoordinatorEnabled", False)
    """Coordinators run, and topics take part."""
    open_per_coordinator_max: int = setting("maxActiveTransactionsPerCoordinator", 0, low=0, high=INTEGER_MAX)
    """Transactions of one coordinator that are not over; 0 is no limit."""
    requests_at_once_max: int = setting("transactionBufferClientMaxConcurrentRequests", 1_000, low=1, high=INTEGER_MAX)
    """By which topics and subscriptions hear of an end, without an answer yet; see `REQUESTS_AT_ONCE_MIN`."""
    request_timeout_ms: int = setting("transactionBufferClientOperationTimeoutInMills", 3_000, low=1, high=INTEGER_MAX)
    """For the answer to one of them; then it is sent again."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def requests_max(self) -> int:
        """How many requests a coordinator may have under way."""
        return max(REQUESTS_AT_ONCE_MIN, self.requests_at_once_max)

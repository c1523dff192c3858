"""Fail-over of reading: from bookies, or from brokers while the metadata store or the bookies are away.

With readMode auto a read path that fails is left: its access is closed and opened anew, and where that fails, or does
not help, brokers are asked. That takes some 10 s for a store that has gone (`bookies.access.STORE_SECONDS`), and 14 s
more where it takes connections and says nothing. From then on bookies are tried again beside what goes on
(`ClusterConnections.direct_is_back`). Positions are the same on both paths, so that reading goes on where it was."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

from magnetar.spark.bookies.access import DirectAccess, choose
from magnetar.spark.errors import ClusterUnreachable

T = TypeVar("T")

logger: Final = logging.getLogger(__name__)


class FailoverCluster(Protocol):
    """What `ReadFailover` needs of a cluster's connections."""

    async def direct(self) -> DirectAccess:
        """The metadata store and the bookies, opened or as they are open. Raises `ClusterUnreachable`."""
        ...

    @property
    def opened_direct(self) -> Any:
        """The access that is open, if there is one."""
        ...

    async def leave_direct(self, access: Any, reason: str, *, refuse: bool) -> None:
        """Close this access; `refuse`: none is opened for a while."""
        ...

    def direct_is_back(self) -> bool:
        """Whether one is open. If not, that is looked for meanwhile, at times."""
        ...


class ReadFailover:
    """The read path of one planner: it fails over to brokers and back. Used on the process's event loop."""

    def __init__(self, cluster: FailoverCluster, read_mode: str, reason: str = "", *, direct: bool) -> None:
        """`direct` and `reason` as `choose` gave them."""
        self.direct = direct
        """Whether bookies are read from."""
        self.reason = reason
        self._cluster = cluster
        self._read_mode = read_mode

    def fail_back(self) -> None:
        """Read from bookies again, if that can be done by now. Called before topics are looked at, so that all of a
        plan is made by what one read path has told."""
        if not self.direct and self._read_mode == "auto" and self._cluster.direct_is_back():
            self.direct, self.reason = True, "metadata store and bookies can be reached again"
            logger.warning("reading from bookies again: %s", self.reason)

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """What `call` gives, which goes by `direct`; with readMode auto it is made again where bookies fail: once on an
        access opened anew, if one can be, and once through brokers. Raises `ClusterUnreachable`, which tells what was
        tried."""
        if not self.direct:
            return await call()
        failure = ""
        for opened_anew in (False, True):
            access, begun_seconds = self._cluster.opened_direct, time.monotonic()
            try:
                return await call()
            except ClusterUnreachable as error:
                failure = f"{error} (given up after {time.monotonic() - begun_seconds:.1f} s)"
                if self._read_mode != "auto":
                    raise ClusterUnreachable(
                        f"{failure}; with readMode={self._read_mode} nobody else is asked"
                    ) from error
            if not await self._stays_direct(access, failure, refuse=opened_anew):
                break
        try:
            return await call()
        except ClusterUnreachable as error:
            raise ClusterUnreachable(f"{error}. Before, past the brokers: {failure}") from error

    async def _stays_direct(self, access: Any, failure: str, *, refuse: bool) -> bool:
        if not self.direct:
            return False  # Another call has left it meanwhile.
        await self._cluster.leave_direct(access, failure, refuse=refuse)
        mode, self.reason = await choose(self._cluster.direct, self._read_mode)
        self.direct = mode == "bookies"
        if self.direct:
            logger.warning("metadata store and bookies are reached again by a new session: %s", failure)
        elif refuse:
            logger.warning("reading through brokers from here on: %s", failure)
        else:
            logger.warning("reading through brokers from here on: %s; trying again: %s", failure, self.reason)
        return self.direct

"""The admin API over HTTP: what brokers tell of topics and policies, for those who give option `admin.url`."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

from magnetar.admin_client.client import AdminAnswer, AdminClient, AdminLimits
from magnetar.admin_client.errors import AdminUnreachable
from magnetar.core.backoff import Backoff
from magnetar.core.topic_name import TopicName, java_url_encode
from magnetar.spark.brokers.client_factory import credentials_of, tls_of
from magnetar.spark.brokers.errors import HOW_TO_SHOW
from magnetar.spark.errors import AccessRefused, BadOption, ClusterUnreachable, TopicMissing
from magnetar.spark.options.connection import ConnectionOptions

logger: Final = logging.getLogger(__name__)

TRY_AGAIN_STATUSES: Final = (429, 500, 502, 503, 504)
"""Answers of brokers that start, stop or hand a topic over, of busy ones, and of proxies and load balancers before
those."""

ROUNDS_MAX: Final = 8
"""How often all hosts are asked: with its pauses some five seconds, in which a topic comes to another broker."""

ROUNDS_SECONDS_MAX: Final = 10.0
"""No round begins later than this after the first one: hosts that swallow packets take five seconds each."""

FIRST_PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 2.0

CONFIGURATION_ROUNDS_MAX: Final = 3
"""For what can be done without: a query should not begin much later for it."""

CONNECT_SECONDS_MAX: Final = 5.0
"""So that a host that is gone leaves time for the others of `admin.url`."""

CONNECTIONS_MAX: Final = 16
"""At a time; the driver asks about all topics of a table at once, and brokers serve others as well."""


class AdminApi:
    """Asks one cluster. Each host of `admin.url` (`http://a:8080,b:8080`) is tried, the one that answered last first.

    Redirects to the owner of a topic are followed with the credentials: whoever is asked has them already. They are
    followed only where brokers send one: to the same path, and never from https to http.

    Every call raises `ClusterUnreachable` (nobody answers, or the broker fails), `AccessRefused` (credentials or
    rights), and `TopicMissing` where a topic is asked about."""

    def __init__(self, options: ConnectionOptions) -> None:
        """Takes the addresses of the admin API from the options. `BadOption`."""
        self._urls = urls_of(options.admin_url)
        self._first = 0
        credentials = credentials_of(options)
        self._client = AdminClient(
            AdminLimits(
                connections_max=CONNECTIONS_MAX,
                connect_seconds=CONNECT_SECONDS_MAX,
                read_seconds=options.operation_timeout_seconds,
            ),
            credentials,
            tls_of(options, credentials) if self._urls[0].startswith("https:") else None,
            _require_same_path,
        )

    async def internal_configuration(self) -> dict[str, Any]:
        """Where the cluster's metadata is: `metadataStoreUrl`, `ledgersRootPath` and the like."""
        found: dict[str, Any] = await self.get(
            "/admin/v2/brokers/internal-configuration", "the cluster's metadata", rounds_max=CONFIGURATION_ROUNDS_MAX
        )
        return found

    async def internal_stats(self, topic: TopicName) -> dict[str, Any]:
        """Ledgers and cursors of a topic (or of one partition), from its owner's memory."""
        found: dict[str, Any] = await self.get(f"{_path(topic)}/internalStats", f"the ledgers of {topic}")
        return found

    async def internal_info(self, topic: TopicName) -> dict[str, Any]:
        """Ledgers and cursors as the metadata store has them; the times when ledgers were closed stand only here."""
        found: dict[str, Any] = await self.get(f"{_path(topic)}/internal-info", f"the ledgers of {topic}")
        return found

    async def deduplication(self, topic: TopicName) -> bool | None:
        """Whether brokers drop what producers of this topic send twice, as it is in force; None: that cannot be known.

        Asked of the topic; where it is not there yet, topic policies are off (405) or the role may not see them, of its
        namespace, then of the brokers' settings."""
        for path, name in (
            (f"{_path(topic)}/deduplicationEnabled?applied=true", ""),
            (f"/admin/v2/namespaces/{topic.namespace_name}/deduplication", ""),
            ("/admin/v2/brokers/configuration/runtime", "brokerDeduplicationEnabled"),
        ):
            try:
                found = await self.get(path, f"deduplication of {topic}")
            except (AccessRefused, TopicMissing):
                continue
            if name:
                found = {"true": True, "false": False}.get(str((found or {}).get(name, "")).lower())
            if found is not None:
                return bool(found)
        return None

    # --- how

    async def get(self, path: str, what: str, *, rounds_max: int = ROUNDS_MAX) -> Any:
        """The decoded answer, None for an empty one. `what` is wanted, for texts. All hosts are asked again, up to
        `rounds_max` times, where that may help."""
        loop = asyncio.get_running_loop()
        begun_seconds = loop.time()
        backoff = Backoff(FIRST_PAUSE_SECONDS, PAUSE_SECONDS_MAX, Random())  # noqa: S311 - Pauses, no secrets.
        number = 0
        while True:
            number += 1
            answer, failures, may_pass = await self._ask_all(path)
            if answer is not None:
                return _checked(answer, what)
            seconds = loop.time() - begun_seconds
            if not may_pass or number >= rounds_max or seconds > ROUNDS_SECONDS_MAX:
                times = "once" if number == 1 else f"{number} times"
                raise ClusterUnreachable(
                    f"{what}: the admin API does not answer (option admin.url), asked {times} in {seconds:.1f} s: "
                    f"{'; '.join(failures)}"
                )
            logger.debug("%s: asked again: %s", what, failures)
            await asyncio.sleep(backoff.next_seconds())

    async def _ask_all(self, path: str) -> tuple[AdminAnswer | None, list[str], bool]:
        """The answer of the first host that gives one. If none does: None, what each of them says, and whether it may
        pass."""
        failures: list[str] = []
        may_pass = False
        for offset in range(len(self._urls)):
            index = (self._first + offset) % len(self._urls)
            address = self._urls[index] + path
            try:
                answer = await self._client.ask("GET", address)
            except AdminUnreachable as error:
                failures.append(str(error))
                may_pass |= error.may_pass
                continue
            if answer.status >= 500 or answer.status in TRY_AGAIN_STATUSES:
                failures.append(f"{address}: {answer.status} {answer.reason}".rstrip())
                may_pass |= answer.status in TRY_AGAIN_STATUSES
                continue
            self._first = index
            return answer, [], False
        return None, failures, may_pass

    async def close(self) -> None:
        """Drop the connections. Twice is no error."""
        await self._client.close()


async def _require_same_path(asked: str, url: str) -> None:
    """Brokers send whoever asks to the same path of another one."""
    if urlsplit(url).path != urlsplit(asked).path:
        raise AdminUnreachable(
            f"{asked} redirects to {url}, which is no broker: does admin.url name the brokers or a proxy?",
            may_pass=False,
        )


def urls_of(admin_url: str) -> list[str]:
    """One for each host of `http://a:8080,b:8080/`. Raises `BadOption`."""
    scheme, mark, rest = admin_url.strip().partition("://")
    hosts = [host.strip().rstrip("/") for host in rest.split(",")]
    if not mark or scheme not in ("http", "https") or not all(hosts):
        raise BadOption(f"option admin.url: {admin_url!r} is no http://host:port or https://host:port,host:port")
    return [f"{scheme}://{host}" for host in hosts]


def _path(topic: TopicName) -> str:
    return f"/admin/v2/{topic.domain}/{topic.namespace_name}/{java_url_encode(topic.local_name)}"


def _checked(answer: AdminAnswer, what: str) -> Any:
    status, reason = answer.status, answer.reason
    if status == 404:
        raise TopicMissing(f"{what}: not there: {reason}")
    if status == 401:
        raise AccessRefused(f"{what}: the admin API does not take the credentials ({HOW_TO_SHOW}): {reason}")
    if status >= 400:
        raise AccessRefused(f"{what}: the admin API refuses ({status}): {reason}")
    try:
        if status < 300:
            return answer.json()
    except ValueError:
        pass
    raise ClusterUnreachable(f"{what}: admin.url is answered by something that is no broker")

"""Who makes shadows, has their sources tell them, and takes all of that back, by the admin API of some broker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar.admin_client.client import AdminLimits
from magnetar.admin_client.errors import AdminUnreachable
from magnetar.managed.info_codec import SHADOW_SOURCE_PROPERTY

from e2e.broker_simulation.admin import ADMIN_PORT, SimulatedAdminClient
from e2e.broker_simulation.clients import Client

RETRY_SECONDS: Final = 0.1
SOURCES_NAMESPACE: Final = "public/default"


class Task(NamedTuple):
    """One request, which is made until it was done."""

    method: str
    path: str
    body: object = None
    also_done: tuple[int, ...] = ()
    """Statuses that say that an attempt before was done whose answer did not come."""
    after: Callable[[], None] = lambda: None


async def _anywhere(asked: str, url: str) -> None:
    """Redirects lead where they will."""


class Administrator:
    """A `Program` of its host. Its tasks are done one after the other."""

    def __init__(self, client: Client, brokers: list[str]) -> None:
        self._client = client
        self._brokers = brokers
        self._tasks: deque[Task] = deque()
        self._news = asyncio.Event()
        self._admin = SimulatedAdminClient(AdminLimits(connections_max=1), may_follow=_anywhere)

    # --- what is to be done

    def make_source(self, source: str) -> None:
        """An ordinary topic."""
        self._do(Task("PUT", _path(source), {}, (409,)))

    def make_shadow(self, source: str, shadow: str, after: Callable[[], None] = lambda: None) -> None:
        """A shadow of it; `after` is called when it is there."""
        self._do(Task("PUT", _path(shadow), {SHADOW_SOURCE_PROPERTY: source}, (409,), after))

    def delete_shadow(self, shadow: str) -> None:
        """Whoever consumes there."""
        self._do(Task("DELETE", f"{_path(shadow)}?force=true", None, (404,)))

    def tell(self, source: str, shadows: list[str]) -> None:
        """These are the shadows that a source tells, from now on."""
        path = f"{_path(source)}/shadowTopics"
        self._do(Task("PUT", path, shadows) if shadows else Task("DELETE", path))

    def retain(self, *, everything: bool) -> None:
        """What sources keep of what is acknowledged: everything, or nothing."""
        limit = -1 if everything else 0
        body = {"retentionTimeInMinutes": limit, "retentionSizeInMB": limit}
        self._do(Task("POST", f"namespaces/{SOURCES_NAMESPACE}/retention", body))

    def _do(self, task: Task) -> None:
        self._tasks.append(task)
        self._news.set()

    @property
    def left(self) -> list[str]:
        """What is not done yet."""
        return [f"not done: {task.method} {task.path}" for task in self._tasks]

    # --- Program

    def reborn(self) -> None:
        """See `Program.reborn`: the list of tasks is on paper."""
        self._news = asyncio.Event()
        self._admin = SimulatedAdminClient(AdminLimits(connections_max=1), may_follow=_anywhere)

    async def run(self) -> None:
        """For ever."""
        while True:
            while self._tasks:
                task = self._tasks[0]
                if await self._attempt(task):
                    self._tasks.popleft()
                    task.after()
                else:
                    await asyncio.sleep(RETRY_SECONDS)
            self._news.clear()
            await self._news.wait()

    async def _attempt(self, task: Task) -> bool:
        broker = self._client.chance.choice(self._brokers)
        url = f"http://{broker}:{ADMIN_PORT}/admin/v2/{task.path}"
        try:
            answer = await self._admin.ask(task.method, url, body=task.body)
        except AdminUnreachable as error:
            self._client.note(f"{task.method} {task.path}: {type(error).__name__}")
            self._client.world.loop.trace.remark(self._client.name, str(error))
            return False
        self._client.note(f"{task.method} {task.path}: {answer.status}")
        if not 200 <= answer.status < 300:
            self._client.world.loop.trace.remark(self._client.name, f"{answer.reason}")
        return 200 <= answer.status < 300 or answer.status in task.also_done


def _path(topic: str) -> str:
    return topic.replace("://", "/")

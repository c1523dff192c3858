"""A cluster on an event loop of its own thread, for programs that are not asyncio's: tests, notebooks, scripts.

with ThreadedCluster() as cluster:
    client = pulsar.Client(cluster.service_url)
    ...
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

import uvloop
from magnetar.core.errors import Misuse
from magnetar.standalone.cluster import RunningCluster, start_cluster
from magnetar.standalone.data_folder import claimed
from magnetar.standalone.settings import StandaloneSettings

START_SECONDS_MAX: Final = 30
STOP_SECONDS_MAX: Final = 30


class ThreadedCluster:
    """A running cluster as a context manager, on free ports of 127.0.0.1.

    Without a data directory everything is gone when it stops. With one, the next cluster on the same directory has
    all that was stored. `journal_sync` forces every message to disk before it is acknowledged; without, a kill of the
    process loses nothing acknowledged, a power cut may."""

    def __init__(self, data_directory: Path | None = None, *, journal_sync: bool = False) -> None:
        self._data_directory = data_directory
        self._journal_sync = journal_sync
        self._topic_numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._cluster: RunningCluster | None = None
        self._failure: BaseException | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()

    @property
    def service_url(self) -> str:
        """What to give to a Pulsar client: `pulsar://127.0.0.1:<port>`."""
        return self._running().service_url

    @property
    def admin_url(self) -> str:
        """What to give to an admin tool: `http://127.0.0.1:<port>`."""
        return self._running().admin_url

    @property
    def environment(self) -> dict[str, str]:
        """PULSAR_SERVICE_URL and PULSAR_ADMIN_URL, for programs that are started with an environment."""
        return {"PULSAR_SERVICE_URL": self.service_url, "PULSAR_ADMIN_URL": self.admin_url}

    def unique_topic(self, prefix: str = "topic") -> str:
        """The full name of a topic that nobody else uses, in the namespace public/default."""
        return f"persistent://public/default/{prefix}-{next(self._topic_numbers)}"

    def start(self) -> None:
        """Start and wait until clients can connect. Raises what went wrong."""
        if self._thread is not None:
            raise Misuse("the cluster is running already")
        self._started.clear()
        self._thread = threading.Thread(target=self._run, name="magnetar-cluster", daemon=True)
        self._thread.start()
        if not self._started.wait(START_SECONDS_MAX):
            raise TimeoutError(f"the cluster did not start within {START_SECONDS_MAX} s")
        if self._failure is not None:
            self._thread.join()
            self._thread = None
            raise self._failure

    def stop(self) -> None:
        """Stop and wait. Raises what went wrong meanwhile."""
        if self._thread is None:
            return
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise TimeoutError(f"the cluster did not stop within {STOP_SECONDS_MAX} s")
        self._thread = None
        self._cluster = None
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> ThreadedCluster:
        """Start the cluster on a thread of its own; return when it serves."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the cluster."""
        self.stop()

    def _running(self) -> RunningCluster:
        if self._cluster is None:
            raise Misuse("the cluster is not running")
        return self._cluster

    def _run(self) -> None:
        self._failure = None
        try:
            with contextlib.ExitStack() as resources:
                settings = self._settings(resources)
                uvloop.run(self._serve(settings))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._failure = error
        finally:
            self._started.set()

    def _settings(self, resources: contextlib.ExitStack) -> StandaloneSettings:
        directory = self._data_directory
        if directory is None:
            directory = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-")))
        else:
            resources.enter_context(claimed(directory))
        return StandaloneSettings(
            data_directory=directory,
            broker_service_port=0,
            web_service_port=0,
            journal_sync=self._journal_sync,
            # Metadata in memory starts faster, and nothing here outlives the process.
            persistent_metadata=self._data_directory is not None,
        )

    async def _serve(self, settings: StandaloneSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._cluster = await start_cluster(settings)
        self._started.set()
        await self._stop.wait()
        await self._cluster.close()

"""The process: one operator that works while it holds the Lease, and answers probes all the time."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import signal
from typing import Any, Final

import kopf
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.core.exit_codes import EXIT_FAILED, EXIT_STOPPED
from magnetar.operator.api_server import HttpApiServer
from magnetar.operator.children.context import Defaults
from magnetar.operator.control.calls import ControlCalls
from magnetar.operator.events import ApiEvents
from magnetar.operator.handlers import EventRouter, registry, watch_settings
from magnetar.operator.kubernetes.login import find_login
from magnetar.operator.leader import Leader
from magnetar.operator.loops import Loops
from magnetar.operator.metrics import CONTENT_TYPE, Metrics
from magnetar.operator.probe import TEXT, Pages
from magnetar.operator.reconcile import Dependencies, Reconciler
from magnetar.operator.settings import LEASE_NAME, OperatorSettings
from magnetar.operator.sweep import Sweep
from magnetar.process.turn_watch import TurnWatch

STUCK_SECONDS: Final = 300.0
"""After so long without an end of a pass a loop is stuck, and so is what people wait for."""
STOP_SECONDS_MAX: Final = 3.0
"""How long watches may take to end."""
TOKEN_BYTES: Final = 32

logger: Final = logging.getLogger(__name__)


class Operator:
    """The operator: all of its parts."""

    def __init__(self, settings: OperatorSettings, *, api: HttpApiServer, clock: Clock, metrics: Metrics) -> None:
        self._settings = settings
        self._api = api
        self._metrics = metrics
        self._controls = ControlCalls(clock)
        self._leader = Leader(
            api, clock, namespace=settings.operator_namespace, name=LEASE_NAME, identity=settings.identity
        )
        dependencies = Dependencies(
            api=api,
            controls=self._controls,
            clock=clock,
            defaults=Defaults(
                image_repository=settings.image_repository,
                version=settings.version,
                domain=settings.domain,
                operator_namespace=settings.operator_namespace,
            ),
            events=ApiEvents(api, clock, settings.identity),
            make_token=lambda: secrets.token_urlsafe(TOKEN_BYTES),
            carried_out=metrics.carried_out,
            found=metrics.found,
            may_act=self._leader.leads,
        )
        chance = random.Random()  # noqa: S311
        self._loops = Loops(Reconciler(dependencies).reconcile, clock=clock, passed=metrics.passed, chance=chance)
        self._pages = Pages({"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._read_metrics})

    async def run(self) -> int:
        """Until it is told to stop (SIGTERM, SIGINT) or has lost the Lease. Gives the exit code."""
        stop = asyncio.Event()
        _listen(stop)
        port = await self._pages.start(self._settings.host, self._settings.port)
        logger.info("probes and metrics are served on port %d", port)
        try:
            return await self._lead(stop)
        finally:
            await self._controls.close()
            await self._pages.close()
            await self._api.close()

    async def _lead(self, stop: asyncio.Event) -> int:
        told = asyncio.create_task(stop.wait())
        acquired = asyncio.create_task(self._leader.acquire())
        try:
            await asyncio.wait((told, acquired), return_when=asyncio.FIRST_COMPLETED)
            if not acquired.done():
                return EXIT_STOPPED
            acquired.result()
            self._api.fence(self._leader.leads)
            self._metrics.leads(leading=True)
            return await self._work(stop, told)
        finally:
            await _cancel(told)
            await _cancel(acquired)
            await self._leader.release()

    async def _work(self, stop: asyncio.Event, told: asyncio.Task[bool]) -> int:
        """Watch and reconcile, as long as the Lease is ours."""
        router = EventRouter(self._loops)
        kept = asyncio.create_task(self._leader.keep())
        swept = asyncio.create_task(Sweep(self._api, router, self._settings.watch_namespaces).run())
        stop_watching, watching = asyncio.Event(), asyncio.Event()
        watched = asyncio.create_task(
            kopf.operator(
                registry=registry(router, self._api.login),
                settings=watch_settings(cluster_wide=self._settings.cluster_wide),
                standalone=True,
                clusterwide=self._settings.cluster_wide,
                namespaces=self._settings.watch_namespaces,
                stop_flag=stop_watching,
                ready_flag=watching,
            )
        )
        listening = asyncio.create_task(_listen_again(stop, watching))
        try:
            await asyncio.wait((told, kept, swept, watched), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # First of all, for from now on somebody else may do it.
            await self._loops.stop()
            self._metrics.leads(leading=False)
            stop_watching.set()
        lost = kept.done()
        why = kept.result() if lost else swept.result() if swept.done() else ""
        for task in (kept, swept, listening):
            await _cancel(task)
        if not lost:
            # Before watches have ended, which takes a while: the next one need not wait.
            await self._leader.release()
        await asyncio.wait((watched,), timeout=STOP_SECONDS_MAX)
        if not why and watched.done() and (error := watched.exception()) is not None:
            why = f"watching has failed: {error}"
        if why:
            logger.error("stopped: %s", why)
            return EXIT_FAILED
        return EXIT_STOPPED

    def _health(self) -> tuple[int, str, bytes]:
        stuck = self._loops.stuck(STUCK_SECONDS)
        if self._leader.stuck():
            return 503, TEXT, b"the Lease is not looked after any more\n"
        if stuck:
            return 503, TEXT, f"no pass has ended for long: {', '.join(map(str, stuck[:10]))}\n".encode()
        return 200, TEXT, b"ok\n"

    def _readiness(self) -> tuple[int, str, bytes]:
        if not self._leader.in_contact():
            return 503, TEXT, b"the Kubernetes API server does not answer\n"
        return 200, TEXT, b"leads\n" if self._leader.leads() else b"waits\n"

    def _read_metrics(self) -> tuple[int, str, bytes]:
        return 200, CONTENT_TYPE, self._metrics.render()


def _listen(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _listen_again(stop: asyncio.Event, watching: asyncio.Event) -> None:
    """kopf takes signals over when it begins. It would end before the loops, and they are what others wait for."""
    await watching.wait()
    _listen(stop)


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def serve(settings: OperatorSettings) -> int:
    """Run an operator; gives the exit code. `SettingError` if there is no Kubernetes."""
    clock, metrics = SystemClock(), Metrics()
    api = HttpApiServer(await find_login(), clock=clock, asked=metrics.api_call)
    watch = TurnWatch(asyncio.get_running_loop())
    watch.start()
    try:
        return await Operator(settings, api=api, clock=clock, metrics=metrics).run()
    except (MagnetarError, OSError) as error:
        logger.error("the operator has failed: %s", error)  # noqa: TRY400  (The text says it all.)
    except Exception:
        # Told here, or it would be told without the form of log lines.
        logger.exception("the operator has failed by a mistake of its own")
    finally:
        watch.stop()
    return EXIT_FAILED

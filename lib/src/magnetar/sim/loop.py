"""An event loop on virtual time: nothing waits, the clock jumps to the next timer.

Everything that could differ between two runs is taken away: there is no selector, no thread and no chance but the
seed's; tasks and futures hash by a running number, so that a set of them has the same order in every process; the
garbage collector is the caller's to switch off. What cannot be simulated raises NotImplementedError.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import socket
import traceback
from asyncio import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from magnetar.sim.process import Process, SimulatedCrash, current_process, process_of
from magnetar.sim.trace import Trace

T = TypeVar("T")

DEFAULT_EXECUTOR_THREADS: Final = 4
EXECUTOR_DELAY_SECONDS: Final = 100e-6
"""Mean time until a thread takes a call."""
TEAR_DOWN_ATTEMPTS_MAX: Final = 20
"""Times that one task may wait in its cleaning up, when the run is over."""

_Job: TypeAlias = tuple[asyncio.Handle, contextvars.Context, Callable[..., Any], tuple[Any, ...], Process | None]
_Timer: TypeAlias = tuple[float, int, _Job]


class Deadlock(RuntimeError):
    """Nothing is scheduled, yet somebody waits."""


class EndlessRun(RuntimeError):
    """A bound on steps or on virtual time was reached."""


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash is the same in every run."""

    def __init__(self, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any) -> None:
        self._number: int = options["loop"].next_number()
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedFuture(asyncio.Future[Any]):
    """A future whose hash is the same in every run."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Threads:
    """One executor's threads, for one process."""

    __slots__ = ("idle_threads", "process", "waiting")

    def __init__(self, process: Process | None, threads: int) -> None:
        self.process = process
        self.idle_threads = threads
        self.waiting: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()


class NetworkEndpoints(Protocol):
    """The network behind `create_server` and `create_connection`."""

    def listen(self, process: Process, factory: Callable[[], asyncio.BaseProtocol], port: int, *, serving: bool) -> Any:
        """Listen at a port, for `asyncio.loop.create_server`."""
        ...

    async def connect(self, process: Process, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Connect to a port, for `asyncio.loop.create_connection`."""
        ...


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop. Make one per run; `run` it once; `bury` it at the end."""

    def __init__(
        self, rng: random.Random, trace: Trace, *, steps_max: int = 2_000_000, seconds_max: float = 3_600.0
    ) -> None:
        self._running = False
        super().__init__()
        self.trace = trace
        self.problems: list[str] = []
        """Errors that callbacks raised, or that nobody took out of a task."""
        self.wires: NetworkEndpoints | None = None
        self.steps = 0
        self._rng = rng
        self._steps_max = steps_max
        self._seconds_max = seconds_max
        self._now_seconds = 0.0
        self._ready: deque[_Job] = deque()
        self._timers: list[_Timer] = []
        self._numbers = 0
        self._buried = False
        self._from_thread: list[_Job] | None = None
        self._pools: dict[Executor | None, dict[Process | None, _Threads]] = {}
        self._stopped: dict[Process, list[_Job]] = {}
        self._all_tasks: list[SimulatedTask] = []
        self._late: list[SimulatedTask] = []
        """Made by what is torn down."""
        self._processes: list[Process] = []
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]  # Narrower than what may be passed.
        self.set_exception_handler(self._problem)
        trace.follow(self.time)

    # --- time and callbacks

    def time(self) -> float:
        """Virtual seconds since the run began."""
        return self._now_seconds

    def next_number(self) -> int:
        """A number that nobody had before."""
        self._numbers += 1
        return self._numbers

    def call_soon(  # type: ignore[override]  # Typeshed's variadic types add nothing here.
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Call a function in the next turn: first in, first out."""
        if context is None:
            context = contextvars.copy_context()
        handle = asyncio.Handle(callback, (), self, context)
        self._ready.append((handle, context, callback, args, process_of(context)))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # Typeshed's variadic types add nothing here.
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Call a function in the next turn. From a function in an executor: at the virtual moment at which that one
        ends."""
        if self._from_thread is None:
            return self.call_soon(callback, *args, context=context)
        if context is None:
            context = contextvars.copy_context()
        handle = asyncio.Handle(callback, (), self, context)
        self._from_thread.append((handle, context, callback, args, process_of(context)))
        return handle

    def call_later(  # type: ignore[override]  # Typeshed's variadic types add nothing here.
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Call a function after so many virtual seconds."""
        return self.call_at(self._now_seconds + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # Typeshed's variadic types add nothing here.
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Call a function at a virtual time in seconds. Of two timers for one moment the one that was made first comes
        first."""
        if context is None:
            context = contextvars.copy_context()
        handle = asyncio.TimerHandle(when, callback, (), self, context)
        job: _Job = (handle, context, callback, args, process_of(context))
        heapq.heappush(self._timers, (when, self.next_number(), job))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """A future that notes who waits for it."""
        return SimulatedFuture(loop=self)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> SimulatedTask:
        context = options.get("context")
        task = SimulatedTask(work, loop=loop, **options)
        process = current_process() if context is None else process_of(context)
        if self._buried:
            self._late.append(task)
        elif process is None:
            self._all_tasks.append(task)
        else:
            process.adopt(task)
        return task

    def register(self, process: Process) -> None:
        """A process was made; its tasks are torn down by `bury`."""
        self._processes.append(process)

    def pause(self, process: Process) -> None:
        """SIGSTOP: nothing of the process runs, though time goes on and bytes arrive at its host."""
        process.paused = True
        self.trace.note(process.name, "paused")

    def resume(self, process: Process) -> None:
        """SIGCONT: everything that should have run meanwhile runs now."""
        process.paused = False
        self._ready.extend(self._stopped.pop(process, ()))
        self.trace.note(process.name, "goes on")

    # --- running

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run until this coroutine has ended. `Deadlock`, `EndlessRun`, or what it raises."""
        _set_running_loop(self)
        self._running = True
        try:
            task = self.create_task(work, name="scenario")
            while not task.done():
                self._step()
            return task.result()
        finally:
            self._running = False
            _set_running_loop(None)

    def run_until_complete(self, future: Any) -> Any:
        """Run until a future is done, and give its result."""
        return self.run(_awaited(future))

    def is_running(self) -> bool:
        """Whether the loop runs."""
        return self._running

    def _step(self) -> None:
        ready = self._ready
        if not ready:
            self._advance()
            return
        handle, context, callback, args, process = ready.popleft()
        if handle.cancelled() or (process is not None and not process.alive):
            return
        if process is not None and process.paused:
            self._stopped.setdefault(process, []).append((handle, context, callback, args, process))
            return
        self.steps += 1
        if self.steps > self._steps_max:
            raise EndlessRun(f"{self.steps} steps in {self._now_seconds:.3f} virtual seconds")
        try:
            context.run(callback, *args)
        except SimulatedCrash:
            assert process is None or not process.alive
        except Exception as error:  # noqa: BLE001  (the loop's edge: it is reported)
            self.call_exception_handler({"message": f"{callback} failed", "exception": error})

    def _advance(self) -> None:
        timers = self._timers
        while timers:
            when, _, job = heapq.heappop(timers)
            process = job[4]
            if job[0].cancelled() or (process is not None and not process.alive):
                continue
            if when > self._now_seconds:
                self._now_seconds = when
            if when > self._seconds_max:
                raise EndlessRun(f"the run did not end in {self._seconds_max} virtual seconds")
            self._ready.append(job)
            return
        raise Deadlock(f"nothing is scheduled at {self._now_seconds:.6f} s, and the scenario waits")

    def bury(self) -> None:
        """The run is over: tear down what still waits, without running any of it to an end."""
        self._buried = True
        self._ready.clear()
        self._timers.clear()
        _set_running_loop(self)
        try:
            for task in self._all_tasks:
                self._tear_down(task)
            for process in self._processes:
                for unfinished in process.unfinished():
                    self._tear_down(unfinished)
            # What was to begin while others cleaned up.
            while self._late:
                self._tear_down(self._late.pop())
        finally:
            _set_running_loop(None)
        self._ready.clear()
        self._timers.clear()
        self.close()

    def _tear_down(self, task: asyncio.Task[Any]) -> None:
        if task.done():
            return
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  (asyncio has no other way)
        work = task.get_coro()
        for _ in range(TEAR_DOWN_ATTEMPTS_MAX):
            try:
                work.close()
            except BaseException as error:  # noqa: BLE001  (of a program that is gone: nobody hears of it)
                # It waits once more while it cleans up.
                self.trace.remark("loop", f"torn down with {error!r}")
            else:
                return

    # --- threads

    def run_in_executor(  # type: ignore[override]  # As above.
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call the function inline, at a later virtual moment; its result is heard of later still, by what its
        blocking calls cost. One thread of an executor does one call after the other. If the process dies before, the
        call never happens, or nobody hears of it."""
        future: asyncio.Future[T] = self.create_future()
        if not self._buried:
            pool = self._pool(executor, current_process())
            pool.waiting.append((future, func, args))
            self._dispatch(pool)
        return future

    def _pool(self, executor: Executor | None, process: Process | None) -> _Threads:
        of_processes = self._pools.setdefault(executor, {})
        pool = of_processes.get(process)
        if pool is None:
            threads = getattr(executor, "_max_workers", DEFAULT_EXECUTOR_THREADS)
            pool = of_processes[process] = _Threads(process, threads)
        return pool

    def _dispatch(self, pool: _Threads) -> None:
        while pool.idle_threads and pool.waiting:
            pool.idle_threads -= 1
            delay = self._rng.expovariate(1 / EXECUTOR_DELAY_SECONDS)
            self.call_later(delay, self._call, pool, *pool.waiting.popleft())

    def _call(
        self, pool: _Threads, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        process = pool.process
        if process is not None:
            process.take_spent_seconds()
        error: BaseException | None = None
        result: Any = None
        said: list[_Job] = []
        self._from_thread = said
        try:
            result = func(*args)
        except Exception as failure:  # noqa: BLE001  (it is the caller's)
            error = failure
        finally:
            self._from_thread = None
        spent = process.take_spent_seconds() if process is not None else 0.0
        name = getattr(func, "__qualname__", type(func).__name__)
        self.trace.note(
            process.name if process is not None else "loop", f"ran {name} in {spent:.6f} s: {type(error).__name__}"
        )
        end = self._now_seconds + spent
        for job in said:
            heapq.heappush(self._timers, (end, self.next_number(), job))
        self.call_at(end, self._finished, pool, future, result, error)

    def _finished(self, pool: _Threads, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        pool.idle_threads += 1
        self._dispatch(pool)
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    # --- the network

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, start_serving: bool = True, **_: Any
    ) -> Any:
        """Listen on a port of the calling process's host."""
        process = current_process()
        if self.wires is None or process is None:
            raise NotImplementedError
        return self.wires.listen(process, protocol_factory, port, serving=start_serving)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect to a port of a simulated host."""
        process = current_process()
        if self.wires is None or process is None:
            raise NotImplementedError
        return await self.wires.connect(process, protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """A simulated host is reached by its name: that is its address as well."""
        if self.wires is None or current_process() is None:
            raise NotImplementedError
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(host), int(port)))]

    def _problem(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._buried:
            return
        error = context.get("exception")
        if isinstance(error, SimulatedCrash):
            return
        what = f"{context.get('message')}: {error!r} {context.get('task') or context.get('future') or ''}"
        self.problems.append(what)
        self.trace.remark("loop", f"PROBLEM {what}")
        if error is not None:
            for line in traceback.format_exception(error):
                self.trace.remark("loop", line.rstrip())


async def _awaited(future: Any) -> Any:
    return await future

"""What goes wrong, when: a schedule drawn from the seed, within what the promise survives.

The promise: what was confirmed is on `ack quorum` disks, so it outlasts any number of crashes of any number of bookies,
and the loss for good, or silent damage, of fewer bookies than the ack quorum.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.core.limits import KIB
from magnetar.sim.node import SimulatedHost
from magnetar.sim.process import Process

from bookie.tests.simulated_storage import INDEX_FILE
from e2e.simulation.cluster import Cluster, SimulatedBookie
from e2e.simulation.fault_kinds import AT_TAKEOVER
from e2e.simulation.history import History
from e2e.simulation.metadata import METADATA_HOST


class Faults:
    """Makes faults happen, and undoes them at the end."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._parameters = cluster.world.parameters
        self._chance = cluster.world.chance("faults")
        self._running = True
        self._paused: list[Process] = []
        self._context = contextvars.copy_context()
        self._takeover_faults = [kind for kind in self._parameters.fault_kinds if kind in AT_TAKEOVER]
        if self._takeover_faults:
            # On behalf of the scenario, for the recoverer that calls may die of it.
            history.watch_takeover = lambda moment: self._context.copy().run(self._at_takeover, moment)

    async def run(self) -> None:
        """All faults of the schedule; returns when the time for them is over."""
        parameters, chance = self._parameters, self._chance
        end = self._world.loop.time() + parameters.active_seconds
        moments = sorted(chance.uniform(0, parameters.active_seconds) for _ in range(parameters.faults))
        begin = self._world.loop.time()
        for moment in moments:
            await asyncio.sleep(max(0.0, begin + moment - self._world.loop.time()))
            kind = chance.choice(parameters.fault_kinds)
            if kind in AT_TAKEOVER:
                continue
            self._world.loop.trace.note("fault", kind)
            getattr(self, kind)()
        await asyncio.sleep(max(0.0, end - self._world.loop.time()))

    def heal(self) -> None:
        """From here on nothing goes wrong; bookies that are down and not lost come back."""
        self._running = False
        world = self._world
        world.loop.trace.note("fault", "all is healed")
        world.network.heal()
        world.service.lost_answer_share = 0.0
        for process in self._paused:
            if process.paused:
                world.loop.resume(process)
        for bookie in self._cluster.bookies:
            _make_disk_good(bookie)
            bookie.start()

    def _at_takeover(self, moment: str) -> None:
        if self._running and self._chance.random() < 0.5:
            kind = self._chance.choice(self._takeover_faults)
            if _AT_TAKEOVER[kind][0] == moment:
                self._world.loop.trace.note("fault", kind)
                _AT_TAKEOVER[kind][1](self)

    # --- bookies

    def kill_bookie(self) -> None:
        """SIGKILL: the page cache survives."""
        bookie = self._some_bookie()
        bookie.kill()
        if self._chance.random() < 0.3:
            bookie.node.clock.skew_ms = self._chance.randint(-100_000, 100_000)
        self._start_later(bookie)

    def power_loss(self) -> None:
        """One host goes off."""
        bookie = self._some_bookie()
        bookie.lose_power()
        self._start_later(bookie)

    def power_loss_in_operation(self) -> None:
        """One host goes off in the middle of one of its next disk operations."""
        self._crash_in_operation(loses_power=True)

    def kill_in_operation(self) -> None:
        """One process dies between two of its next changes of the disk."""
        self._crash_in_operation(loses_power=False)

    def _crash_in_operation(self, *, loses_power: bool) -> None:
        bookie = self._some_bookie()
        bookie.node.platter.crash_loses_power = loses_power
        bookie.node.platter.crash_after_operations = self._chance.choice((0, 1, 2, 5, 10, 20, 50))
        self._start_later(bookie)

    def power_loss_of_all(self) -> None:
        """The data centre goes dark."""
        self._world.loop.trace.note("fault", "all lights go out")
        for bookie in self._cluster.bookies:
            bookie.lose_power()
            self._start_later(bookie)

    def dark_after_takeover(self) -> None:
        """All bookies go down for a moment: a writer who was idle notices nothing of it."""
        go_down = self._chance.choice((SimulatedBookie.lose_power, SimulatedBookie.kill))
        for bookie in self._cluster.bookies:
            go_down(bookie)
            self._later(self._chance.uniform(0.01, 0.1), bookie.start)

    def pause_bookie(self) -> None:
        """A bookie stops for a while, maybe for longer than its session lasts, and notices nothing of it."""
        self._pause(self._some_bookie().node)

    def rolling_restart(self) -> None:
        """One bookie after the other, by SIGKILL."""
        after = 0.0
        for bookie in self._chance.sample(self._cluster.bookies, len(self._cluster.bookies)):
            self._later(after, bookie.kill)
            self._later(after + 0.05, bookie.start)
            after += self._chance.uniform(0.1, 0.6)

    def lose_bookie(self) -> None:
        """One host burns down, as long as the promise survives that."""
        bookie = self._some_bookie()
        gone = self._losses() + sum(other.leaving for other in self._cluster.bookies)
        if self._may_lose(bookie) and len(self._cluster.bookies) - gone > self._parameters.ensemble_size:
            bookie.lose()

    def stop_bookie(self) -> None:
        """An orderly stop, which takes as long as it takes; it may be killed meanwhile."""
        bookie = self._some_bookie()
        bookie.stop()
        self._start_later(bookie)

    def drain_bookie(self) -> None:
        """A bookie is to leave, as far as the others can take its place."""
        bookie = self._some_bookie()
        gone = sum(other.lost or other.leaving for other in self._cluster.bookies)
        enough = len(self._cluster.bookies) - gone > self._parameters.ensemble_size
        if bookie.recovery is not None and bookie.node.running and not bookie.damaged and enough:
            bookie.leaving = True
            bookie.node.run(bookie.recovery.begin_to_drain(), "drain")

    def flip_bits(self) -> None:
        """The disk changes what was stored long ago in entry logs."""
        bookie = self._some_bookie()
        if self._parameters.digest_type == "DUMMY" or not self._may_lose(bookie):
            return
        files = bookie.node.platter.files()
        # Entry logs. Not the journal, whose newest group nobody can tell from one that was never acknowledged.
        logs = [inode for path, inode in files if path.endswith(".log") and not path.endswith("/" + INDEX_FILE)]
        for inode in logs:
            # Behind the header, whose damage makes a log unreadable as a whole for nobody but its collector.
            for _ in range(max(1, inode.size_bytes // (8 * KIB))):
                if inode.size_bytes > KIB:
                    bookie.damage()
                    inode.flip_bit(self._chance.randrange(KIB, inode.size_bytes), self._chance.randrange(8))

    # --- disks

    def slow_disk(self) -> None:
        """Syncs take long for a while."""
        platter = self._some_bookie().node.platter
        platter.sync_slowness = self._chance.choice((30.0, 300.0, 3_000.0))
        self._later(self._duration(), lambda: setattr(platter, "sync_slowness", 1.0))

    def full_disk(self) -> None:
        """There is little room for a while."""
        bookie = self._some_bookie()
        platter = bookie.node.platter
        platter.capacity_bytes = platter.used_bytes + self._chance.choice((0, 4 * KIB, 100 * KIB, 3_000 * KIB))
        self._later(self._duration(), lambda: _make_disk_good(bookie))

    def failing_disk(self) -> None:
        """Some writes, syncs and reads fail for a while."""
        platter = self._some_bookie().node.platter
        platter.error_share = self._chance.choice((0.0, 0.02, 0.2, 1.0))
        platter.read_error_share = self._chance.choice((0.0, 0.02, 0.5))
        self._later(self._duration(), lambda: setattr(platter, "error_share", 0.0))
        self._later(self._duration(), lambda: setattr(platter, "read_error_share", 0.0))

    def failing_checkpoints(self) -> None:
        """The index takes nothing for a while, so that no checkpoint can end; the journal works."""
        platter = self._some_bookie().node.platter
        platter.failing_name = INDEX_FILE
        self._later(self._duration(), lambda: setattr(platter, "failing_name", ""))

    # --- network

    def late_bookie(self) -> None:
        """What one bookie answers takes long, and then another one dies, which has answered what the first one has
        not."""
        late, other = self._chance.sample(self._cluster.bookies, 2)
        seconds = self._chance.choice((0.1, 0.4, 0.8))
        for host in self._cluster.hosts():
            self._world.network.slow_down(late.node.name, host, seconds)
            self._later(3 * seconds, lambda host=host: self._world.network.slow_down(late.node.name, host, 0.0))  # type: ignore[misc]
        self._later(seconds * (0.5 + self._chance.random()), other.kill)
        self._later(3 * seconds, other.start)

    def partition(self) -> None:
        """Two parts of the hosts do not hear each other."""
        hosts = [*self._cluster.hosts(), METADATA_HOST]
        some = self._chance.sample(hosts, self._chance.randint(1, len(hosts) // 2))
        others = [host for host in hosts if host not in some]
        self._later(self._duration(), self._world.network.partition(some, others))

    def one_way(self) -> None:
        """Some hosts are heard by nobody, yet hear."""
        hosts = [*self._cluster.hosts(), METADATA_HOST]
        some = self._chance.sample(hosts, self._chance.randint(1, 2))
        self._later(self._duration(), self._world.network.block(some, hosts))

    def split_client(self) -> None:
        """One client loses some of the bookies, and another one the others."""
        clients = [client.node.name for client in self._cluster.clients]
        bookies = [bookie.node.name for bookie in self._cluster.bookies]
        self._chance.shuffle(bookies)
        at = self._chance.randint(1, len(bookies) - 1)
        self._chance.shuffle(clients)
        for client, some in zip(clients, (bookies[:at], bookies[at:]), strict=False):
            self._later(self._duration(), self._world.network.partition([client], some))

    def swizzle(self) -> None:
        """Links of some hosts stop one by one and come back in another order."""
        hosts = self._chance.sample(self._cluster.hosts(), self._chance.randint(1, len(self._cluster.hosts())))
        everybody = [*self._cluster.hosts(), METADATA_HOST]
        for host in hosts:
            begin = self._chance.uniform(0.0, 0.5)
            self._later(begin, self._blocking([host], everybody, begin + self._duration()))

    def _blocking(self, some: Sequence[str], others: Sequence[str], seconds: float) -> Callable[[], None]:
        return lambda: self._later(seconds, self._world.network.partition(some, others))

    def resets(self) -> None:
        """Connections break."""
        hosts = self._cluster.hosts()
        for _ in range(self._chance.randint(1, 6)):
            one, other = self._chance.sample(hosts, 2)
            self._world.network.reset(one, other)

    def slow_links(self) -> None:
        """Some links are slow for a while, in one direction."""
        hosts = self._cluster.hosts()
        for _ in range(self._chance.randint(1, 5)):
            one, other = self._chance.sample(hosts, 2)
            self._world.network.slow_down(one, other, self._chance.choice((0.02, 0.2, 1.5)))
            self._later(self._duration(), lambda one=one, other=other: self._world.network.slow_down(one, other, 0.0))  # type: ignore[misc]

    # --- metadata

    def expire_session(self) -> None:
        """The service ends somebody's session."""
        sessions = list(self._world.service.sessions.values())
        if sessions:
            self._chance.choice(sessions).expire()

    def lose_answers(self) -> None:
        """Some answers of the metadata service get lost for a while, with their connection."""
        self._world.service.lost_answer_share = self._chance.choice((0.02, 0.1, 0.3))
        self._later(self._duration(), lambda: setattr(self._world.service, "lost_answer_share", 0.0))

    def metadata_away(self) -> None:
        """Nobody reaches the metadata service for a while."""
        hosts = self._cluster.hosts()
        self._later(self._duration(), self._world.network.partition([METADATA_HOST], hosts))

    # --- clients

    def kill_client(self) -> None:
        """A writer, reader or recoverer dies for good."""
        alive = [client for client in self._cluster.clients if client.node.running]
        if alive:
            self._chance.choice(alive).kill()

    def pause_client(self) -> None:
        """A client stops for a while, and notices nothing of it."""
        alive = [client for client in self._cluster.clients if client.node.running]
        if alive:
            self._pause(self._chance.choice(alive).node)

    # --- help

    def _pause(self, node: SimulatedHost) -> None:
        process, loop = node.process, self._world.loop
        if process is not None and not process.paused:
            loop.pause(process)
            self._paused.append(process)
            self._later(2 * self._duration(), lambda: loop.resume(process))

    def _some_bookie(self) -> SimulatedBookie:
        return self._chance.choice(self._cluster.bookies)

    def _duration(self) -> float:
        return self._chance.choice((0.05, 0.3, 1.0, 3.0)) * (0.5 + self._chance.random())

    def _losses(self) -> int:
        return sum(bookie.lost or bookie.damaged for bookie in self._cluster.bookies)

    def _may_lose(self, bookie: SimulatedBookie) -> bool:
        return bookie.lost or bookie.damaged or self._losses() < self._parameters.losses_max

    def _start_later(self, bookie: SimulatedBookie) -> None:
        self._later(self._chance.choice((0.02, 0.2, 1.0, 3.0)) * (0.5 + self._chance.random()), bookie.start)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def unless_healed() -> None:
            if self._running:
                act()

        self._world.loop.call_later(seconds, unless_healed)


def _make_disk_good(bookie: SimulatedBookie) -> None:
    platter = bookie.node.platter
    platter.capacity_bytes = platter.settings.capacity_bytes
    platter.sync_slowness = 1.0
    platter.error_share = platter.read_error_share = 0.0
    platter.failing_name = ""
    platter.crash_after_operations = -1


_AT_TAKEOVER: Final[dict[str, tuple[str, Callable[[Faults], None]]]] = {
    "dark_after_takeover": ("ended", Faults.dark_after_takeover),
    "split_at_takeover": ("begins", Faults.split_client),
    "kill_at_takeover": ("begins", Faults.kill_bookie),
    "kill_after_takeover": ("ended", Faults.kill_bookie),
    "resets_after_takeover": ("ended", Faults.resets),
}

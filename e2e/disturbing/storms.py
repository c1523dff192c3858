"""What storms do to the processes of a cluster beside killing them; each disturbance says what it did.

All of it works on the parts of `e2e.part`, and keeps what is wrong in `problems`.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from magnetar.metadata.factory import open_store

from e2e.disturbing.control import Disturbance
from e2e.disturbing.relay import Relay, Way
from e2e.part import Part

JUMP_SECONDS: Final = 600.0
JUMPED_SECONDS_MAX: Final = 6.0
"""How long a clock stays where it has jumped to: heartbeats, retries and sweeps of a second or two come within."""
ALL_SHARE: Final = 0.3
"""How often all suffer at once, and not one of them."""
STALL_SECONDS: Final = (2.0, 15.0)
STALL_OF_ALL_SECONDS: Final = (1.0, 4.0)
SYNCS_ONLY_SHARE: Final = 0.6
KILLED_IN_A_STALL_SHARE: Final = 0.5
ANSWER_SECONDS: Final = 2.0
"""How much of a stall must be left for asking whether a bookie serves."""
USED_AGAIN_SECONDS_MAX: Final = 120.0
"""A bookie that was given up is not chosen for half a minute, and then only for new ledgers."""
OFTEN_CHECKPOINTS: Final = {"flushInterval": "1000"}
"""Of bookies whose disks stall, in milliseconds: not only the journal is written in a stall."""
HOLD_SECONDS: Final = (0.5, 8.0)
"""Shorter and longer than the session of a storm, and than the two thirds of it after which its client gives up."""
REFUSED_SECONDS: Final = (0.1, 3.0)
ANSWERS_SWALLOWED_MAX: Final = 4
SWALLOWED_SECONDS_MAX: Final = 20.0
OTHERS_SECONDS_MAX: Final = 5.0
BUSY_SHARE: Final = 0.8
REQUESTS_SHARE: Final = 0.8
"""How often what is halved is a request: half an answer is as good as one that was swallowed."""
STOP_SECONDS: Final = (0.5, 20.0)


class Trouble(ABC):
    """One kind of disturbance, again and again."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    @abstractmethod
    def disturb(self) -> str:
        """Once; blocks until it is over, and says what was done."""

    @abstractmethod
    def finish(self) -> None:
        """Look whether all is as it was before, and whether it was a disturbance at all; under load."""


class ClockJumps(Trouble):
    """Wall clocks go ten minutes forward, back, and forth again; whoever is registered stays so."""

    def __init__(
        self, disturbances: Sequence[Disturbance], registered: Callable[[], dict[str, int]], rng: random.Random
    ) -> None:
        """`registered` tells of each registration when it was made."""
        super().__init__()
        self._disturbances = disturbances
        self._registered = registered
        self._rng = rng

    def disturb(self) -> str:
        """The clock of one process, or of all."""
        before = self._registered()
        everybody = list(self._disturbances)
        victims = everybody if self._rng.random() < ALL_SHARE else [self._rng.choice(everybody)]
        reads = [victim.clock_reads for victim in victims]
        last = self._rng.choice([0.0, JUMP_SECONDS, -JUMP_SECONDS])
        for ahead_s in (JUMP_SECONDS, -JUMP_SECONDS, JUMP_SECONDS, last):
            self._set(victims, ahead_s)
        if any(victim.clock_reads == read for victim, read in zip(victims, reads, strict=True)):
            self.problems.append("nobody has read a clock that was moved")
        after = self._registered()
        for name, made in before.items():
            if after.get(name) != made:
                self.problems.append(f"the session of {name} was lost when clocks jumped")
        return f"the clocks of {'all' if len(victims) > 1 else victims[0].name} jumped, and are {last:+.0f} s ahead"

    def finish(self) -> None:
        """The clocks are put right."""
        self._set(self._disturbances, 0.0)

    def _set(self, victims: Sequence[Disturbance], ahead_s: float) -> None:
        for victim in victims:
            victim.set_clock(ahead_s)
        time.sleep(self._rng.uniform(0.5, JUMPED_SECONDS_MAX))


class DiskStalls(Trouble):
    """Disks of bookies hang for seconds; some bookies are killed in the middle of it."""

    def __init__(self, bookies: dict[Part, Disturbance], rng: random.Random, *, forgetful: bool = False) -> None:
        """`forgetful` plants a mistake: all disks lose what is written during a stall, and all bookies are killed."""
        super().__init__()
        self._bookies = bookies
        self._rng = rng
        self._forgetful = forgetful

    def disturb(self) -> str:
        """One disk for up to a quarter of a minute, or all of them for a few seconds."""
        all_at_once = self._forgetful or self._rng.random() < ALL_SHARE
        victims = list(self._bookies) if all_at_once else [self._rng.choice(list(self._bookies))]
        seconds = self._rng.uniform(*(STALL_OF_ALL_SECONDS if all_at_once else STALL_SECONDS))
        syncs_only = not self._forgetful and self._rng.random() < SYNCS_ONLY_SHARE
        kill = self._forgetful or self._rng.random() < KILLED_IN_A_STALL_SHARE
        ended = time.monotonic() + seconds
        hung = [self._bookies[victim].stalled_calls for victim in victims]
        for victim in victims:
            self._bookies[victim].forget_writes(self._forgetful)
            self._bookies[victim].stall(seconds, syncs_only=syncs_only)
        time.sleep(seconds * self._rng.uniform(0.3, 0.9))
        if syncs_only and not kill:
            self._serves_all_the_same(victims, ended, hung)
        if self._forgetful:
            # They answer what they have forgotten, before they are killed.
            time.sleep(max(0.0, ended - time.monotonic()) + 1.0)
        if kill:
            self._kill(victims, ended)
        time.sleep(max(0.0, ended - time.monotonic()))
        counts = [self._bookies[victim].stalled_calls - before for victim, before in zip(victims, hung, strict=True)]
        who = "all bookies" if all_at_once else victims[0].folder.name
        what = f"syncs of {who}" if syncs_only else who
        return f"stalled {what} for {seconds:.1f} s, {sum(counts)} calls hung{', and killed them' if kill else ''}"

    def _serves_all_the_same(self, victims: Sequence[Part], ended: float, hung: Sequence[int]) -> None:
        """What waits for a sync waits in threads: who hangs answers whoever wants nothing of the disk."""
        for victim, before in zip(victims, hung, strict=True):
            disturbance = self._bookies[victim]
            tried = False
            while time.monotonic() < ended - ANSWER_SECONDS and disturbance.hanging_calls:
                tried = True
                if victim.ready():
                    break
            else:
                if tried and disturbance.stalled_calls > before:
                    self.problems.append(f"{victim.folder.name} answered nobody while its disk hung")

    def _kill(self, victims: Sequence[Part], ended: float) -> None:
        for victim in victims:
            victim.kill()
        time.sleep(max(0.0, ended - time.monotonic()))
        for victim in victims:
            self._bookies[victim].forget_writes(False)
            victim.launch()
        for victim in victims:
            victim.wait_until_ready()

    def finish(self) -> None:
        """Something has hung, and each bookie is written to again."""
        if not any(disturbance.stalled_calls for disturbance in self._bookies.values()):
            self.problems.append("nothing ever hung in a disk that stalled")
        before = {bookie: _journal_changed_ns(bookie.folder) for bookie in self._bookies}
        deadline = time.monotonic() + USED_AGAIN_SECONDS_MAX
        while unused := [each for each, changed in before.items() if _journal_changed_ns(each.folder) == changed]:
            if time.monotonic() > deadline:
                names = ", ".join(bookie.folder.name for bookie in unused)
                self.problems.append(f"not written to for {USED_AGAIN_SECONDS_MAX:.0f} s after the stalls: {names}")
                return
            time.sleep(0.2)


class LostAnswers(Trouble):
    """Connections to ZooKeeper that lose answers, stand still one way, or end in the middle of a frame."""

    def __init__(self, relays: Sequence[Relay], rng: random.Random, *, owned_share: float = 0.0) -> None:
        """`owned_share`: how often only changes of what topics' owners keep suffer, and no other writes."""
        super().__init__()
        self._owned_share = owned_share
        self.provoke: Callable[[], None] = _nothing
        """Has some of them write to ZooKeeper, if they do not all the time."""
        self._relays = relays
        self._writes: dict[Relay, int] = {}
        """As they were at the last disturbance."""
        self._rng = rng

    def disturb(self) -> str:
        """One connection, some of them or all, in one way."""
        # Mostly those through which something is written: bookies write little.
        busy = [relay for relay in self._relays if relay.writes > self._writes.get(relay, 0)]
        self._writes = {relay: relay.writes for relay in self._relays}
        pool = busy if busy and self._rng.random() < BUSY_SHARE else self._relays
        relays = self._rng.sample(pool, min(len(pool), self._rng.choice([1, 2, len(pool)])))
        # Mostly what nobody can tell apart: a write that was applied, or was not, and has no answer.
        kinds = [self._swallow, self._swallow, self._halve, self._halve, self._halve, self._hold, self._refuse]
        how = self._rng.choice(kinds)
        what = how(relays)
        for relay in relays:
            relay.relieve()
        return f"{what} of {len(relays)} connections"

    def finish(self) -> None:
        """Some answer was lost for good."""
        if not any(relay.swallowed + relay.halved for relay in self._relays):
            self.problems.append("no write was ever left without an answer")

    def _swallow(self, relays: Sequence[Relay]) -> str:
        before = sum(relay.swallowed for relay in relays)
        for relay in relays:
            relay.swallow(
                self._rng.randint(1, ANSWERS_SWALLOWED_MAX), owned_only=self._rng.random() < self._owned_share
            )
        self.provoke()
        self._wait(relays)
        return f"swallowed {sum(relay.swallowed for relay in relays) - before} answers"

    def _halve(self, relays: Sequence[Relay]) -> str:
        before = sum(relay.halved for relay in relays)
        way = Way.REQUESTS if self._rng.random() < REQUESTS_SHARE else Way.ANSWERS
        for relay in relays:
            relay.halve(way, owned_only=self._rng.random() < self._owned_share)
        self.provoke()
        self._wait(relays)
        return f"cut {sum(relay.halved for relay in relays) - before} {way.value} in half"

    def _wait(self, relays: Sequence[Relay]) -> None:
        deadline = time.monotonic() + SWALLOWED_SECONDS_MAX
        while (waiting := sum(relay.waits for relay in relays)) and time.monotonic() < deadline:
            if waiting < len(relays):
                # Others may have nothing to write.
                deadline = min(deadline, time.monotonic() + OTHERS_SECONDS_MAX)
            time.sleep(0.05)

    def _hold(self, relays: Sequence[Relay]) -> str:
        way = self._rng.choice(list(Way))
        seconds = self._rng.uniform(*HOLD_SECONDS)
        for relay in relays:
            relay.hold(way, seconds)
        self.provoke()
        time.sleep(seconds)
        return f"held {way.value} for {seconds:.1f} s"

    def _refuse(self, relays: Sequence[Relay]) -> str:
        seconds = self._rng.uniform(*REFUSED_SECONDS)
        for relay in relays:
            relay.refuse(seconds)
        self.provoke()
        time.sleep(seconds)
        return f"refused all for {seconds:.1f} s"


class Stops(Trouble):
    """Processes stand still (SIGSTOP) for half a second to twenty, while others are killed, or they themselves."""

    def __init__(self, parts: Sequence[Part], rng: random.Random) -> None:
        super().__init__()
        self._parts = parts
        self._rng = rng

    def disturb(self) -> str:
        """One or two stand still; another one may be killed meanwhile, or one that stands still."""
        stopped = self._rng.sample(self._parts, self._rng.choice([1, 2]))
        killed = self._rng.choice([None, stopped[0], self._rng.choice(self._parts)])
        seconds = self._rng.uniform(*STOP_SECONDS)
        ended = time.monotonic() + seconds
        for part in stopped:
            part.pause()
        if killed is not None:
            time.sleep(self._rng.uniform(0.0, seconds))
            killed.kill()
        time.sleep(max(0.0, ended - time.monotonic()))
        for part in stopped:
            if part is not killed:
                part.resume()
        if killed is not None:
            killed.start()
        names = " and ".join(part.folder.name for part in stopped)
        return f"stopped {names} for {seconds:.1f} s" + (f", killed {killed.folder.name}" if killed else "")

    def finish(self) -> None:
        """All parts run again already."""


def registrations(metadata_url: str, paths: Sequence[str]) -> dict[str, int]:
    """When each of these nodes was made, by ZooKeeper's clock; those that are there. A new session makes a new node."""

    async def read() -> dict[str, int]:
        store = await open_store(metadata_url)
        try:
            nodes = [await store.get(path) for path in paths]
        finally:
            await store.close()
        return {node.stat.path: node.stat.created_ms for node in nodes if node is not None}

    return asyncio.run(read())


def disturb_all(parts: Sequence[Part], interposer: Path, folder: Path) -> dict[Part, Disturbance]:
    """Have each part started with a clock and a disk of its own."""
    found: dict[Part, Disturbance] = {}
    for part in parts:
        found[part] = disturbance = Disturbance(interposer, folder / f"{part.folder.name}.control", part.folder)
        part.variables |= disturbance.environment
    return found


def _nothing() -> None:
    """They write all the time."""


def _journal_changed_ns(folder: Path) -> int:
    return max((file.stat().st_mtime_ns for file in folder.glob("journal/current/*.txn")), default=0)

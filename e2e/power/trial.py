"""One recorded run of a server, then cuts of it: the disk that each leaves, a start on that, and what is wrong then."""

from __future__ import annotations

import logging
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from e2e import processes
from e2e.power.cuts import Cut, choose_cuts
from e2e.power.fates import Fate, put_disk
from e2e.power.mistakes import Forget
from e2e.power.recording import Recording
from e2e.power.replaying import Beginning, Replay, differences

logger: Final = logging.getLogger(__name__)
SECOND_CUT_SHARE: Final = 0.3
FIRST_START_EVERY: Final = 6
"""One of so many cuts falls into the very first start, when nothing was confirmed and nothing may be in the way."""


_History = TypeVar("_History")


class Subject(Protocol[_History]):
    """A server under trial, on files below one folder that is always the same."""

    def start(self, recording: Recording) -> None:
        """Serve; `processes.NotReady`."""

    def load(self, recording: Recording, seed: int, seconds: float) -> _History:
        """Some traffic, and what came of it."""

    def check(self, recording: Recording, history: _History, cut: int) -> list[str]:
        """What is wrong after a cut. The history then tells what must be there from now on."""

    def settled(self, history: _History, cut: int) -> _History:
        """A history as of the next recording."""

    def kill(self) -> None:
        """SIGKILL."""

    def log_text(self) -> str:
        """What the server has said since its last start."""


def nothing_forgotten(event: object, path: str) -> bool:
    """Every sync counts."""
    del event, path
    return False


@dataclass(slots=True)
class Outcome:
    """What came of a trial."""

    cuts: int = 0
    second_cuts: int = 0
    changes: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    """The cut, what was wrong, where the state is."""
    failed_cuts: int = 0


class Trial(Generic[_History]):
    """All cuts of one seed."""

    def __init__(
        self,
        subject: Subject[_History],
        recorder: Path,
        folder: Path,
        seed: int,
        forget: Forget = nothing_forgotten,
        *,
        first_failure_ends: bool = False,
    ) -> None:
        """`folder` is the trial's own; `folder/disk` is what is recorded, which the subject must use."""
        self.disk = folder / "disk"
        self._subject = subject
        self._recorder = recorder
        self._folder = folder
        self._seed = seed
        self._forget = forget
        self._first_failure_ends = first_failure_ends

    def run(self, seconds: float, count: int, only: int | None = None, focus: str = "") -> Outcome:
        """Record so long, then make so many cuts, or that one alone; for `focus` see `choose_cuts`."""
        began = time.monotonic()
        shutil.rmtree(self.disk, ignore_errors=True)
        self.disk.mkdir(parents=True)
        beginning = Beginning.of(self.disk)
        recording = self._record()
        try:
            self._subject.start(recording)
            ready = recording.now()
            history = self._subject.load(recording, self._seed, seconds)
            recording.freeze()
        finally:
            self._subject.kill()
        events = recording.events()
        outcome = Outcome(changes=len(events))
        unseen = differences(Replay(beginning).until(events, recording.now()), self.disk)
        if unseen:
            outcome.failures.append(f"the recording is not complete: {unseen[:3]}")
            logger.info("%s", outcome.failures[-1])
            return outcome
        rng = random.Random(self._seed)
        first_start = [event for event in events if event.begin <= ready]
        cuts = choose_cuts(beginning, events, ready, count - count // FIRST_START_EVERY, rng, focus)
        cuts += choose_cuts(beginning, first_start, 0, count // FIRST_START_EVERY, rng, focus)
        for number, cut in enumerate(cuts):
            if outcome.failures and self._first_failure_ends:
                break
            if only is None or number == only:
                replay = Replay(beginning, self._forget).until(events, cut.at)
                self._cut(number, cut, replay, self._subject.settled(history, cut.at), outcome)
        outcome.seconds = time.monotonic() - began
        return outcome

    def _record(self) -> Recording:
        # The last one is kept for those who look into a failure.
        folder = self._folder / "recording"
        shutil.rmtree(folder, ignore_errors=True)
        return Recording(self._recorder, self.disk, folder)

    def _cut(self, number: int, cut: Cut, replay: Replay, history: _History, outcome: Outcome) -> None:
        """Start on what the cut has left; sometimes cut once more while that recovers and serves."""
        outcome.cuts += 1
        name = f"{self._seed}:{number}"
        rng = random.Random(name)
        state = self._folder / f"state-{number}"
        beginning = self._put(replay, cut, name, state)
        recording = self._record()
        problems = self._start_and_check(recording, history)
        if not problems and rng.random() < SECOND_CUT_SHARE:
            outcome.second_cuts += 1
            events = recording.events()
            (again,) = choose_cuts(beginning, events, 0, 1, rng)
            replay = Replay(beginning, self._forget).until(events, again.at)
            shutil.rmtree(state)
            self._put(replay, again, f"{name}:again", state)
            settled = self._subject.settled(history, again.at)
            problems = self._start_and_check(self._record(), settled)
            cut = Cut(cut.at, cut.style, f"{cut.reason}, then {again}")
        if problems:
            outcome.failed_cuts += 1
            failures = [f"cut {number} ({cut}; {state}): {problem}" for problem in problems]
            logger.info("%s", "\n".join(failures))
            outcome.failures += failures
            (state.with_suffix(".log")).write_text(self._subject.log_text())
        else:
            shutil.rmtree(state)

    def _put(self, replay: Replay, cut: Cut, name: str, state: Path) -> Beginning:
        shutil.rmtree(self.disk)
        self.disk.mkdir()
        put_disk(replay.top, Fate(cut.style, name, replay, cut.at), self.disk)
        shutil.copytree(self.disk, state, dirs_exist_ok=True)
        return Beginning.of(self.disk)

    def _start_and_check(self, recording: Recording, history: _History) -> list[str]:
        try:
            self._subject.start(recording)
            problems = self._subject.check(recording, history, 0)
            recording.freeze()
            return problems
        except processes.NotReady as failure:
            return [f"it does not start: {failure}"]
        finally:
            self._subject.kill()

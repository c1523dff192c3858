"""What holds for the tests of all parts: none of them may fail because the machine is slow or busy."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from magnetar.net.testing import without_collector
from magnetar.sim.virtual_time import loop_factories

from e2e.leaks import Possessions, left_behind

# By default an example that takes more than 200 ms fails: on a machine that does a lot else, any may.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Modules may say that their tests run on virtual time."""
    assert isinstance(item, pytest.Function)
    return loop_factories(item.module)


CHECKED_FOLDERS = frozenset(["tests", "faults"])
"""Where each test stands alone."""

POSSESSIONS: pytest.StashKey[Possessions] = pytest.StashKey()
"""What there was before the test."""

OF_FIXTURES: pytest.StashKey[Possessions] = pytest.StashKey()
"""What fixtures of modules and sessions have made, such as a ZooKeeper."""


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """What outlives the test is no leak, though the test is the first to ask for it."""
    if fixturedef.scope == "function":
        return (yield)
    before = Possessions.now()
    made = yield
    stash = request.config.stash
    new = Possessions.now().without(before)
    stash[OF_FIXTURES] = stash[OF_FIXTURES].joined(new) if OF_FIXTURES in stash else new
    return made


@pytest.fixture(autouse=True)
def _remember_possessions(request: pytest.FixtureRequest) -> None:
    """Fixtures of modules and sessions stand by now: what comes from here on is the test's."""
    request.node.stash[POSSESSIONS] = Possessions.now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """The test that leaves threads, processes or sockets behind fails, not the one that suffers from them."""
    yield
    if nextitem is None or nextitem.path != item.path:
        # What thousands of tests leave for their report would be looked at by each collection, and by each look at all
        # objects: it took those tests twenty times as long.
        gc.collect()
        gc.freeze()
    before = item.stash.get(POSSESSIONS, None)
    if before is not None and OF_FIXTURES in item.config.stash:
        before = before.joined(item.config.stash[OF_FIXTURES])
    # PySpark's threads and its workers' live as long as its session, whoever made them start; tests on a whole
    # cluster share what they start.
    exempt = (
        item.get_closest_marker("changes_shared_servers")
        or "spark" in item.path.name
        or item.path.parent.name not in CHECKED_FOLDERS
    )
    # Pulsar's C++ client may keep the socket on which it was connecting when it was shut down.
    sockets_count = item.get_closest_marker("clients") is None
    left = left_behind(before, sockets_count=sockets_count) if before is not None and not exempt else []
    if left:
        pytest.fail("the test leaves behind: " + ", ".join(left), pytrace=False)


@pytest.fixture(autouse=True, scope="session")
def _what_is_imported_stays() -> None:
    """Collections look at what tests leave, not at modules."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=os.environ.get("MAGNETAR_COLLECT_AFTER_TESTS") == "1")
def _collect() -> Iterator[None]:
    """With compiled modules: an object that is not what it seems to be shows at the next collection."""
    yield
    gc.collect()
    gc.freeze()  # What lasts is looked at once, or collections would take longer than the tests.


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is freed is freed by itself."""
    with without_collector():
        yield


@pytest.fixture
def synced_names(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Paths whose names were made durable meanwhile, by our own syncs of their directories."""
    found: set[Path] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            found.update(path.iterdir())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found

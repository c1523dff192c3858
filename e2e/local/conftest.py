"""One server for all tests of a session: MAGNETAR_E2E_SERVER says whose (`magnetar` unless it says `apache`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.server import StandaloneProcess, new_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    running = new_server(data=Path(tmp_path_factory.mktemp("server")) / "data")
    running.start()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def up(server: StandaloneProcess) -> None:
    """A test that killed the server and failed must not fail the ones after it."""
    if not server.pids:
        server.start()

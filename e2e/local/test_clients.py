"""Stock Python, Go and Java clients under every pair of workload properties, with a kill -9 in the middle of some.

MAGNETAR_E2E_COUNT sets the messages a workload: a few thousand by default, 100 000 for the full level.
"""

import os
from pathlib import Path

import pytest

from e2e import run_clients
from e2e.clients import builds
from e2e.server import StandaloneProcess
from e2e.workload import Workload, matrix

COUNT = int(os.environ.get("MAGNETAR_E2E_COUNT", "3000"))

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("workload", matrix(COUNT), ids=lambda workload: workload.name)
def test_client_gets_what_it_was_promised(workload: Workload, server: StandaloneProcess, tmp_path: Path) -> None:
    if lacking := builds.missing(workload.client):
        pytest.skip(lacking)
    assert run_clients.run(workload, server, tmp_path) == []

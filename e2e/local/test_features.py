"""Every feature of each stock client, by its own small check program."""

import subprocess

import pytest

from e2e.clients import builds
from e2e.server import StandaloneProcess
from e2e.workload import CLIENTS

NOT_SERVED_YET = {
    ("apache", "java"): {"deadLetterOverUnloads"},
    ("apache", "python"): {"dead_letter_over_unloads"},
}
"""What a server does not do, by server and client. Each must fail: one that passes belongs out of this list."""

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("client", CLIENTS)
def test_features(client: str, server: StandaloneProcess) -> None:
    if lacking := builds.missing(client):
        pytest.skip(lacking)
    command = [*builds.feature_command(client), server.service_url, server.admin_url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    outcomes = [line for line in ended.stdout.splitlines() if line.startswith(("OK ", "FAIL ", "SKIP "))]
    failures = [line for line in outcomes if line.startswith("FAIL ")]
    expected = NOT_SERVED_YET.get((server.name, client), set())
    assert {line.split()[1].rstrip(":") for line in failures} == expected, "\n".join(failures)
    assert len(outcomes) > 20, f"only {len(outcomes)} checks ran: {ended.stderr[-2000:]}"
    assert (ended.returncode == 0) == (not expected)

"""`pulsar-admin` prints against our server what it prints against Apache's (recorded by `python -m e2e.admin_cli`)."""

import pytest

from e2e import admin_cli
from e2e.peers import distribution
from e2e.server import StandaloneProcess

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.skipif(not distribution.available(), reason="no Java, or nothing to fetch Apache's tools with")
def test_admin_tool_prints_what_it_prints_against_apache(server: StandaloneProcess) -> None:
    assert admin_cli.differences(admin_cli.load(), admin_cli.walk(server)) == []

"""`pulsar-admin` prints against our server what it prints against Apache's (recorded by `python -m e2e.admin_cli`)."""

import pytest

from e2e import admin_cli
from e2e.peers import distribution
from e2e.server import StandaloneProcess

DIFFERENT_YET = {
    "magnetar": {
        "clusters get standalone": "names no TLS stores of a client that it has not got",
        "namespaces set-message-ttl acme/orders --messageTTL 3600": "not served yet",
        "namespaces get-message-ttl acme/orders": "not served yet",
        "namespaces set-backlog-quota acme/orders --limit 10M --policy producer_request_hold": "not served yet",
        "namespaces get-backlog-quotas acme/orders": "not served yet",
        "namespaces set-persistence acme/orders -e 1 -w 1 -a 1 -r 0": "not served yet",
        "namespaces get-persistence acme/orders": "not served yet",
        "namespaces set-deduplication acme/orders --enable": "not served yet",
        "namespaces get-deduplication acme/orders": "not served yet",
        "namespaces grant-permission acme/orders --actions produce,consume --role app": "not served yet",
        "namespaces permissions acme/orders": "not served yet",
        "namespaces revoke-permission acme/orders --role app": "not served yet",
        "topics stats persistent://acme/orders/plain": "no deduplication yet",
        "topics stats-internal persistent://acme/orders/plain": "no deduplication yet; read positions begin at 0",
        "topics partitioned-stats persistent://acme/orders/parted --per-partition": "no deduplication yet",
        "topics examine-messages persistent://acme/orders/plain -i earliest -m 1": "not served yet",
        "topics expire-messages persistent://acme/orders/plain -s first -t 1": "nothing to expire is no error here",
        "topics unsubscribe persistent://acme/orders/plain -s missing": "removing what is not there is no error here",
        "topics compact persistent://acme/orders/plain": "not served yet",
    }
}
"""Commands that answer otherwise than Apache's, and why; one that does so no more belongs out of this list."""

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.skipif(not distribution.available(), reason="no Java, or nothing to fetch Apache's tools with")
def test_admin_tool_prints_what_it_prints_against_apache(server: StandaloneProcess) -> None:
    differences = admin_cli.differences(admin_cli.load(), admin_cli.walk(server))
    commands = {difference.split("`")[1] for difference in differences}
    assert commands == set(DIFFERENT_YET.get(server.name, {})), "\n".join(differences)

"""Which redirects the command line follows with an operator's credentials."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.admin_client.client import AdminClient
from magnetar.admin_client.errors import AdminRefused, AdminUnreachable
from magnetar.cli.tools.admin_api import LIMITS, AdminCaller, ListedBrokers


class Asked(AdminCaller):
    """An admin API that gives one answer."""

    def __init__(self, answer: object) -> None:
        super().__init__("http://one:8080", AdminClient(LIMITS))
        self._answer = answer

    async def call(self, method: str, path: str, query: object = None, body: object = None) -> Any:
        del query, body
        assert (method, path) == ("GET", "/admin/v2/brokers")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


async def test_brokers_that_are_listed_are_followed_by_either_port() -> None:
    listed = ListedBrokers(Asked(["one:8080", "two:8080", "[::1]:8080"]))
    assert await listed.serves("http://two:8080/admin/v2/brokers")
    assert await listed.serves("https://two:8443/")
    assert await listed.serves("http://[::1]:8080/")


@pytest.mark.parametrize("url", ["http://three:8080/", "http://two@three:8080/", "http://two.three:8080/", "nonsense"])
async def test_no_other_host_is(url: str) -> None:
    assert not await ListedBrokers(Asked(["one:8080", "two:8080"])).serves(url)


@pytest.mark.parametrize("answer", [None, [], [""], [1, None], AdminRefused(403, "no"), AdminUnreachable("away")])
async def test_a_list_that_is_none_names_nobody(answer: object) -> None:
    assert not await ListedBrokers(Asked(answer)).serves("http://one:8080/")
    assert not await ListedBrokers(Asked(answer)).serves("nonsense")

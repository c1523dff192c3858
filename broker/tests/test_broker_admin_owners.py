"""Requests go to the broker that owns what they are about."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request
from magnetar.broker.admin.owners import redirect


@pytest.mark.parametrize(
    ("asked", "authoritative", "location"),
    [
        ("/a/b", False, "http://b2:8080/a/b?authoritative=false"),
        ("/a/b?authoritative=false", True, "http://b2:8080/a/b?authoritative=true"),
        ("/a/b?x=1&authoritative=false&y=%2F", True, "http://b2:8080/a/b?x=1&y=%2F&authoritative=true"),
        ("/a/b%2Fc/d%252Fe?x=a+b", False, "http://b2:8080/a/b%2Fc/d%252Fe?x=a+b&authoritative=false"),
    ],
)
def test_redirect_keeps_path_and_query(asked: str, authoritative: bool, location: str) -> None:
    answer = redirect(make_mocked_request("PUT", asked), "http://b2:8080/", authoritative=authoritative)
    assert answer.status == 307
    assert answer.headers["Location"] == location
